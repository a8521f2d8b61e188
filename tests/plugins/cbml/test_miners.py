"""The miner of hard pairs."""

import pytest
from pytorch_metric_learning import distances, miners

from pml_ext_cbml.miners import HardPairMiner

from . import loops


@pytest.mark.parametrize("epsilon", [0.1, 0.0, 0.5, -0.1])
@pytest.mark.parametrize("distance", [None, distances.LpDistance(), distances.DotProductSimilarity()])
def test_the_miner_finds_the_pairs_of_pml(epsilon, distance):
    """In the order of their rows."""
    for seed in range(3):
        x, labels = loops.batch(rows=40, size=6, classes=7, seed=seed)
        found = HardPairMiner(epsilon, distance=distance)(x, labels)
        theirs = miners.MultiSimilarityMiner(epsilon, distance=distance or distances.CosineSimilarity())(x, labels)
        for side in (slice(2), slice(2, 4)):
            mine, wanted = (list(zip(*(i.tolist() for i in each[side]), strict=True)) for each in (found, theirs))
            assert mine == sorted(wanted)
