"""Distances with the settings of PML's."""

import pytest
import torch
from pytorch_metric_learning.distances import LpDistance
from pytorch_metric_learning.losses import TripletMarginLoss

from pml_ext.distances import EuclideanDistance, GramCosineSimilarity, GramDotProductSimilarity


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


def test_fixed_settings_may_be_written_out():
    assert EuclideanDistance(normalize_embeddings=True, p=2, collect_stats=True).collect_stats
    assert not GramDotProductSimilarity(normalize_embeddings=False).normalize_embeddings
    assert GramCosineSimilarity(normalize_embeddings=True).normalize_embeddings


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: EuclideanDistance(p=1), r"has p=2, not 1; type pytorch_metric_learning.distances.LpDistance\(p=1\)"),
        (lambda: EuclideanDistance(normalize_embeddings=False), r"type .*LpDistance\(normalize_embeddings=False\)"),
        (lambda: EuclideanDistance(power=0.5), "power of EuclideanDistance must be a finite number at least 1"),
        (lambda: GramDotProductSimilarity(normalize_embeddings=True), "type GramCosineSimilarity.normalize_emb.*=True"),
        (lambda: GramCosineSimilarity(normalize_embeddings=False), "type GramDotProductSimilarity.normalize_.*=False"),
    ],
)
def test_other_settings_are_told_what_to_type(make, text):
    with pytest.raises(ValueError, match=text):
        make()
