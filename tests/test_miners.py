"""Miners in tiles: the same as of the whole matrix, and semi-hard triplets against PML's and a loop."""

import pytest
import torch
from pytorch_metric_learning import distances, miners

from pml_ext import (
    HardPairMiner,
    HardQuadrupletMiner,
    LocalPositiveMiner,
    NegativesOnly,
    SemiHardTripletMiner,
    WithRelation,
)
from pml_ext.testing.calling import CountedOperations

LABELS = torch.tensor([3, 3, 3, 0, 0, 1, 2, 2, 2, 2, 7, 0, 3, 2])
MINERS = {
    "hard pairs": HardPairMiner,
    "local positives": LocalPositiveMiner,
    "semi-hard, nearest": SemiHardTripletMiner,
    "semi-hard, all": lambda **settings: SemiHardTripletMiner(negatives="all", **settings),
}


def points(rows=14, seed=0):
    return torch.randn(rows, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def triplets(indices):
    return list(zip(*(index.tolist() for index in indices), strict=True))


@pytest.mark.parametrize("tile_size", [1, 3, 14, 100])
@pytest.mark.parametrize("references", [False, True])
@pytest.mark.parametrize("name", MINERS)
def test_tiles_find_what_the_whole_matrix_has(name, references, tile_size):
    given = (points(), LABELS, *((points(9, 1), torch.arange(9) % 4) if references else ()))
    whole = MINERS[name]()
    for one, other in zip(whole(*given), MINERS[name](tile_size=tile_size)(*given), strict=True):
        assert torch.equal(one, other)
    assert len(whole(*given)[0]) > 3


@pytest.mark.parametrize("distance", [None, distances.LpDistance(power=2), distances.CosineSimilarity()])
@pytest.mark.parametrize("margin", [0.2, 0.05, 1.0])
def test_all_semi_hard_triplets_are_those_of_pml(margin, distance):
    theirs = miners.TripletMarginMiner(margin, "semihard", distance=distance or distances.LpDistance())
    ours = SemiHardTripletMiner(margin, "all", distance=distance, tile_size=4)
    for given in ((points(), LABELS), (points(), LABELS, points(20, 2), torch.arange(20) % 5)):
        mined = triplets(ours(*given))
        assert mined == sorted(triplets(theirs(*given)))
        assert mined


def test_the_nearest_of_them_by_a_loop():
    x = torch.nn.functional.normalize(points(seed=4))
    expected = []
    for a in range(len(x)):
        for p in range(len(x)):
            if a == p or LABELS[a] != LABELS[p]:
                continue
            d_ap = (x[a] - x[p]).norm()
            excess = {n: (x[a] - x[n]).norm() - d_ap for n in range(len(x)) if LABELS[n] != LABELS[a]}
            inside = {n: e for n, e in excess.items() if 0 < e <= 0.3}
            if inside:
                expected.append((a, p, min(inside, key=inside.get)))
    assert triplets(SemiHardTripletMiner(0.3)(x, LABELS)) == expected
    assert len(expected) > 5


@pytest.mark.parametrize("make", [lambda: HardPairMiner(epsilon=-0.2), SemiHardTripletMiner])
def test_a_large_batch_is_never_listed(make):
    x = points(2048).float()
    labels = torch.arange(2048) // 4
    with CountedOperations() as counted:
        mined = make()(x, labels)
    returned = max(len(index) for index in mined)
    assert counted.largest <= max(returned, 1 << 21) < 2048 * 2048  # of a tile, or of the answer


@pytest.mark.parametrize("references", [False, True])
@pytest.mark.parametrize("kind", [*MINERS.values(), HardQuadrupletMiner])
def test_a_tuple_makes_labels_unnecessary(kind, references):
    if references and kind is HardQuadrupletMiner:
        pytest.skip("takes no references")
    x, *others = points(), *((points(9, 1), torch.arange(9) % 4) if references else ())
    listed = miners.MultiSimilarityMiner(0.5)(x, LABELS, *others)
    ref_emb = {"ref_emb": others[0]} if references else {}
    expected = kind()(x, LABELS, *others, indices_tuple=listed)
    assert len(expected[0]) > 0
    for miner in (kind(), kind(relation=NegativesOnly()), WithRelation(kind(), NegativesOnly())):
        for given in (listed, [index.numpy() for index in listed], [index.tolist() for index in listed]):
            found = miner(x, None, **ref_emb, indices_tuple=given)
            assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


LISTED = HardPairMiner()(points(), LABELS)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        *[(lambda kind=kind: kind()(points(), None), "^labels must be given") for kind in MINERS.values()],
        *[(lambda kind=kind: kind()(points(), LABELS, points(9, 1)), "ref_labels must") for kind in MINERS.values()],
        (lambda: HardQuadrupletMiner()(points(), None), "^labels must be given"),
        (
            lambda: HardQuadrupletMiner(per_class=True)(points(), None, indices_tuple=LISTED),
            "per_class of HardQuadrupletMiner needs classes",
        ),
        (
            lambda: WithRelation(miners.MultiSimilarityMiner(), NegativesOnly())(
                points(), LABELS, indices_tuple=LISTED
            ),
            "MultiSimilarityMiner takes no indices_tuple",
        ),
    ],
)
def test_missing_labels_and_unusable_tuples_are_named(call, text):
    with pytest.raises(ValueError, match=text):
        call()
