"""The functions of the learned metric, against loops over pairs."""

import itertools

import pytest
import torch
from torch.nn.functional import normalize

from pml_ext import PDDMDistance
from pml_ext_pddm import functional

from . import loops

LABELS = torch.tensor([0, 1, 0, 2, 1, 1, 0])


@pytest.mark.parametrize("tile", [4, 1000])
def test_unordered_pairs_have_their_masks(tile):
    torch.manual_seed(0)
    distance = PDDMDistance(5, dropout=0.0).double()
    x = normalize(torch.randn(7, 5, dtype=torch.float64))
    same = LABELS[:, None] == LABELS
    one_way = same.triu(1)  # of a miner that lists a pair in one order
    scores, near, far = functional.scores_of_pairs(distance.head(), x, one_way, ~same, tile)
    pairs = list(itertools.combinations(range(7), 2))
    expected = loops.matrix(distance, x, x)
    assert scores.tolist() == pytest.approx([expected[pair].item() for pair in pairs])
    assert near.tolist() == [bool(same[pair]) for pair in pairs]
    assert far.tolist() == [not same[pair] for pair in pairs]
