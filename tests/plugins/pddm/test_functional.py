"""The functions of the learned metric, against loops over pairs."""

import itertools

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
