"""Distances with the settings of PML's."""

import pytest
import torch
from pytorch_metric_learning.distances import LpDistance
from pytorch_metric_learning.losses import TripletMarginLoss

from pml_ext.distances import EuclideanDistance


@pytest.mark.parametrize("power", [1, 2, 3.5])
def test_euclidean_distance_has_pmls_power(power):
    x = torch.randn(40, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    twin, labels = x.detach().clone().requires_grad_(), torch.arange(40) % 5
    ours, theirs = EuclideanDistance(power=power), LpDistance(power=power)
    torch.testing.assert_close(ours(x, twin), theirs(x, twin))
    pairs = TripletMarginLoss(distance=ours)(x, labels), TripletMarginLoss(distance=theirs)(twin, labels)
    for loss in pairs:
        loss.backward()
    torch.testing.assert_close(*pairs)
    torch.testing.assert_close(x.grad, twin.grad)
    assert ours.power == power
