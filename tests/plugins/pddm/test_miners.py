"""The hardest quadruplet."""

import pytest
import torch
from pytorch_metric_learning.distances import CosineSimilarity, LpDistance

from pml_ext import HardQuadrupletMiner, PDDMDistance

from . import loops

LABELS = torch.tensor([0, 1, 0, 2, 1, 1, 0, 2, 0, 3])


def embeddings(seed=0):
    return torch.randn(10, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def expected(similarity, **settings):
    return loops.quadruplets(similarity.tolist(), LABELS.tolist(), **settings)[0]


def listed(triplets):
    return list(zip(*(index.tolist() for index in triplets), strict=True))


@pytest.mark.parametrize("count", [1, 2, 3, 99])
@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_mined_quadruplets_equal_a_slow_loop(count, per_class, seed):
    x = embeddings(seed)
    distance = PDDMDistance(5).double()
    settings = {"num_quadruplets": count, "per_class": per_class}
    loop = {"count": count, "per_class": per_class}
    found = HardQuadrupletMiner(distance, **settings)(x, LABELS)
    assert listed(found) == expected(distance.eval()(x), **loop)
    for euclidean in (LpDistance(), LpDistance(power=2)):
        assert listed(HardQuadrupletMiner(euclidean, **settings)(x, LABELS)) == expected(-LpDistance()(x), **loop)
    assert listed(HardQuadrupletMiner(**settings)(x, LABELS)) == expected(-LpDistance()(x), **loop)
    assert listed(HardQuadrupletMiner(CosineSimilarity(), **settings)(x, LABELS)) == expected(
        CosineSimilarity()(x), **loop
    )


def test_ties_go_to_the_first():
    x = torch.ones(6, 3)
    labels = torch.tensor([0, 0, 1, 1, 0, 1])
    assert listed(HardQuadrupletMiner()(x, labels)) == [(0, 1, 2), (1, 0, 2)]
    found = HardQuadrupletMiner(num_quadruplets=2)(x, labels)
    assert listed(found) == [(0, 1, 2), (1, 0, 2), (0, 4, 2), (4, 0, 2)]


def test_without_gradients_and_without_dropout():
    distance = PDDMDistance(5, dropout=0.9).train()
    x = embeddings().requires_grad_()
    first = HardQuadrupletMiner(distance, num_quadruplets=5)(x, LABELS)
    for _ in range(5):
        again = HardQuadrupletMiner(distance, num_quadruplets=5)(x, LABELS)
        assert listed(again) == listed(first)
    assert x.grad is None
    assert distance.training
