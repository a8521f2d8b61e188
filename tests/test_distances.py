"""Distances with the settings of PML's."""

import pytest
import torch
from pytorch_metric_learning.distances import LpDistance
from pytorch_metric_learning.losses import TripletMarginLoss

from pml_ext import MahalanobisDistance
from pml_ext.distances import EuclideanDistance, GramCosineSimilarity
from pml_ext.pairwise import normalize


@pytest.mark.parametrize("power", [1, 2, 3.5])
def test_euclidean_distance_has_pmls_power(power):
    x = torch.randn(40, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    twin = x.detach().clone().requires_grad_()
    labels = torch.arange(40) % 5
    ours = EuclideanDistance(power=power)
    theirs = LpDistance(power=power)
    torch.testing.assert_close(ours(x, twin), theirs(x, twin))
    pairs = TripletMarginLoss(distance=ours)(x, labels), TripletMarginLoss(distance=theirs)(twin, labels)
    for loss in pairs:
        loss.backward()
    torch.testing.assert_close(*pairs)
    torch.testing.assert_close(x.grad, twin.grad)
    assert ours.power == power


@pytest.mark.parametrize("distance", [GramCosineSimilarity(), EuclideanDistance(), MahalanobisDistance(8)])
@pytest.mark.parametrize("with_references", [False, True])
def test_distance_in_autocast_trains_outside(distance, with_references):
    """A loss of PML computes the matrix in autocast, and backward runs outside of it."""
    x = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    x[1] = x[0] + 1e-3  # a pair near enough for differences
    gradients = []
    for enabled in (False, True):
        points = x.clone().requires_grad_()
        references = x.flip(0) if with_references else None
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            matrix = distance(points, references)
        assert matrix.dtype == torch.float32
        gradients += torch.autograd.grad(matrix.square().sum(), points)
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("distance", [GramCosineSimilarity(), EuclideanDistance(), MahalanobisDistance(8)])
def test_a_zero_row_of_float16_gives_no_nan(distance):
    """The least length that a row is divided by, 1e-12, is 0 in float16."""
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(0)).half()
    x[1] = 0
    x[2] = 60000  # whose length is infinite in float16
    x.requires_grad_()
    for references in (None, x.detach().clone()):
        matrix = distance(x, references)
        wanted = distance(x.float(), None if references is None else references.float())
        torch.testing.assert_close(matrix.float(), wanted, rtol=0, atol=5e-2)
        (gradient,) = torch.autograd.grad(matrix.sum(), x)
        assert gradient.isfinite().all()
    assert distance.pairwise_distance(normalize(x), normalize(x)).isfinite().all()
