"""HardPairMiner against Eq. (25) and PML's own miner."""

import pytest
from pytorch_metric_learning import distances, miners

from pml_ext_cbml import HardPairMiner

from . import loops


def pairs(indices):
    a1, p, a2, n = (index.tolist() for index in indices)
    return sorted(zip(a1, p, strict=True)), sorted(zip(a2, n, strict=True))


@pytest.mark.parametrize("epsilon", [0.1, 0.0, 0.5, -0.1])
@pytest.mark.parametrize("distance", [None, distances.LpDistance(), distances.DotProductSimilarity()])
def test_finds_the_pairs_of_pml(epsilon, distance):
    for seed in range(3):
        x, labels = loops.batch(rows=40, size=6, classes=7, seed=seed)
        found = HardPairMiner(epsilon, distance=distance)(x, labels)
        cosine = distances.CosineSimilarity()
        assert pairs(found) == pairs(miners.MultiSimilarityMiner(epsilon, distance=distance or cosine)(x, labels))
        assert pairs(found) == tuple(
            list(zip(*(i.tolist() for i in side), strict=True)) for side in (found[:2], found[2:])
        )
