"""The functions of the learned metric, against loops over pairs."""

import itertools
import math

import pytest
import torch
from torch.nn.functional import normalize

from pml_ext import PDDMDistance
from pml_ext_pddm import functional

from . import loops

LABELS = [0, 1, 0, 2, 1, 1, 0]


def points(count=7, seed=1):
    return normalize(torch.randn(count, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))


def built(position=True):
    torch.manual_seed(0)
    return PDDMDistance(5, dropout=0.0, position=position).double()


def masks():
    labels = torch.tensor(LABELS)
    same = labels[:, None] == labels
    return same & ~torch.eye(7, dtype=torch.bool), ~same


@pytest.mark.parametrize("tile", [4, 1000])
def test_unordered_pairs_have_their_masks(tile):
    distance = built()
    x = points()
    positives, negatives = masks()
    one_way = positives.triu()  # of a miner that lists a pair in one order
    scores, near, far = functional.scores_of_pairs(distance.head(), x, one_way, negatives, tile)
    pairs = list(itertools.combinations(range(7), 2))
    expected = loops.matrix(distance, x, x)
    assert scores.tolist() == pytest.approx([expected[pair].item() for pair in pairs])
    assert near.tolist() == [LABELS[i] == LABELS[j] for i, j in pairs]
    assert far.tolist() == [LABELS[i] != LABELS[j] for i, j in pairs]


def test_pairs_of_nan_come_first_and_empty_batches_have_none():
    similarity = points() @ points().T
    similarity[1, 5] = similarity[5, 1] = math.nan
    (a, p, _), number = functional.hard_quadruplets(similarity, *masks())
    assert (a.tolist(), p.tolist(), number) == ([1, 5], [5, 1], 1)
    none = torch.zeros(0, 0, dtype=torch.bool)
    triplets, number = functional.hard_quadruplets(torch.zeros(0, 0), none, none)
    assert ([len(index) for index in triplets], number) == ([0, 0, 0], 0)


@pytest.mark.parametrize("squared", [False, True])
def test_the_feature_hinge_is_that_of_a_triplet(squared):
    a, p, n = (points(6, seed) for seed in range(3))
    found = functional.embedding_hinge(a, p, n, 0.4, squared)
    power = 2 if squared else 1
    expected = [
        max(0.0, 0.4 + math.dist(x, y) ** power - math.dist(x, z) ** power)
        for x, y, z in zip(a.tolist(), p.tolist(), n.tolist(), strict=True)
    ]
    assert found.tolist() == pytest.approx(expected)
