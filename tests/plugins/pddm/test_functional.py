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


@pytest.mark.parametrize("position", [True, False])
@pytest.mark.parametrize("tile", [3, 1000])
def test_scores_are_those_of_a_loop(position, tile):
    distance = built(position)
    head = distance.head()
    x = points().requires_grad_()
    y = points(4, seed=2)
    for found, expected in (
        (functional.score_matrix(head, x, y, tile), loops.matrix(distance, x, y)),
        (functional.score_matrix(head, x, None, tile), loops.matrix(distance, x, x)),
        (functional.score_pairs(head, x[:4], y, tile), loops.matrix(distance, x[:4], y).diagonal()),
    ):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
        gradients = [torch.autograd.grad(each.square().sum(), x, retain_graph=True)[0] for each in (found, expected)]
        # the loop normalizes once more, which leaves out a multiple of the row
        torch.testing.assert_close(*(each - (each * x).sum(1, keepdim=True) * x for each in gradients))


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


@pytest.mark.parametrize("kind", functional.POINTWISE)
def test_pointwise_terms_are_those_of_a_loop(kind):
    distance = built()
    x = points()
    scores, *of_pairs = functional.scores_of_pairs(distance.head(), x, *masks(), 1000)
    found = functional.POINTWISE[kind](scores, *of_pairs)
    assert found.item() == pytest.approx(float(loops.pointwise(distance, x, LABELS, kind)), rel=1e-9)
    none = torch.zeros_like(of_pairs[0])
    assert functional.POINTWISE[kind](scores, none, none) == 0
    assert functional.fisher(torch.ones(3), *torch.tensor([[True, False, True], [False, True, False]])) == 0


@pytest.mark.parametrize(("count", "per_class"), [(1, False), (3, False), (1, True), (99, True)])
def test_hard_quadruplets_are_those_of_a_loop(count, per_class):
    similarity = points() @ points().T
    similarity[0, 2] = similarity[2, 0] = similarity[1, 4] = similarity[4, 1] = -0.9  # a tie
    classes = torch.tensor(LABELS) if per_class else None
    triplets, number = functional.hard_quadruplets(similarity, *masks(), count, classes)
    found = list(zip(*(index.tolist() for index in triplets), strict=True))
    assert (found, number) == loops.quadruplets(similarity.tolist(), LABELS, count, per_class)


def test_pairs_of_nan_come_first_and_empty_batches_have_none():
    similarity = points() @ points().T
    similarity[1, 5] = similarity[5, 1] = math.nan
    (a, p, _), number = functional.hard_quadruplets(similarity, *masks())
    assert (a.tolist(), p.tolist(), number) == ([1, 5], [5, 1], 1)
    none = torch.zeros(0, 0, dtype=torch.bool)
    triplets, number = functional.hard_quadruplets(torch.zeros(0, 0), none, none)
    assert ([len(index) for index in triplets], number) == ([0, 0, 0], 0)


def test_scores_are_scaled_between_the_least_and_the_greatest():
    scores = torch.tensor([[9.0, 2.0, 5.0], [2.0, -9.0, 3.0], [5.0, 3.0, 0.0]], requires_grad=True)
    rows, columns = functional.min_max_pairs(scores)
    assert (rows.tolist(), columns.tolist()) == ([0, 0], [1, 2])  # the diagonal does not count; ties: the first
    least, greatest = scores[rows, columns]
    assert functional.min_max_scale(scores, least, greatest)[1, 2].item() == pytest.approx(1 / 3)
    same = functional.min_max_scale(scores, least, least)
    assert same.tolist() == [[0.0] * 3] * 3
    assert not torch.autograd.grad(same.sum(), scores)[0].any()


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
