"""Sums over the triplets of each pair, against lists of them."""

import numpy as np
import pytest
import torch
from torch.autograd import gradgradcheck

from pml_ext_triplets import functional
from pml_ext_triplets.functional import KINDS

from .points import LABELS, batch
from .test_losses import value_of

MARGIN = 0.3


def setup():
    """Distances, and the masks of positives and negatives."""
    x, labels = batch(LABELS)
    points = torch.nn.functional.normalize(x.detach())
    distances = (points[:, None] - points).norm(dim=2)
    same = labels[:, None] == labels
    return distances, same & ~torch.eye(len(labels), dtype=torch.bool), ~same


def listed_sums(distances, positives, negatives, kind, everything):
    """``[(sum, count)]`` of each positive pair, in row-major order."""
    found = []
    for a, p in positives.nonzero().tolist():
        values = [
            value_of(kind, MARGIN, distances[a, p], distances[a, n], distances[p, n])
            for n in negatives[a].nonzero().flatten().tolist()
            if everything or distances[a, n] < distances[a, p] + MARGIN
        ]
        found.append((sum(values, distances.sum() * 0), len(values)))
    return torch.stack([total for total, _ in found]), [count for _, count in found]


@pytest.mark.parametrize("many", [24, 0], ids=["passes", "sorting"])
@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_sums_and_counts_are_those_of_a_list(monkeypatch, kind, everything, many):
    monkeypatch.setattr(functional, "_MANY", many)
    distances, positives, negatives = setup()
    distances.requires_grad_()
    pairs = functional.lay_out(*torch.where(positives), len(positives))
    between = (distances, pairs.positives) if kind == "soft" else None
    sums, counts = functional.pair_sums(distances, pairs, negatives, KINDS[kind](MARGIN), everything, between)
    expected, numbers = listed_sums(distances, positives, negatives, kind, everything)
    torch.testing.assert_close(sums, expected, rtol=1e-10, atol=1e-12)
    assert counts.tolist() == numbers
    assert not counts.requires_grad
    weights = torch.rand(len(sums), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for given in (torch.ones(()).double().expand(len(sums)), weights):
        gradients = [torch.autograd.grad(each, distances, given, retain_graph=True)[0] for each in (sums, expected)]
        torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kind", ["hinge", "squared-hinge"])
def test_hinges_can_be_differentiated_again(kind):
    distances, positives, negatives = setup()
    pairs = functional.lay_out(*torch.where(positives), len(positives))
    hinge = KINDS[kind](MARGIN)
    assert gradgradcheck(
        lambda d: functional.pair_sums(d, pairs, negatives, hinge)[0], distances.clone().requires_grad_()
    )


def test_positives_are_laid_out_by_anchor():
    _, mask, _ = setup()
    pairs = functional.lay_out(*torch.where(mask), len(mask))
    assert torch.stack([pairs.anchors, pairs.positives], 1).tolist() == mask.nonzero().tolist()
    values = torch.arange(1.0, len(pairs.anchors) + 1)
    matrix = pairs.laid_out(values, -1.0, len(mask))
    for row, kept in zip(matrix.tolist(), mask, strict=True):
        assert len([value for value in row if value > 0]) == kept.sum()
    assert matrix.shape == (len(mask), int(mask.sum(1).max()))
    assert sorted(matrix[matrix > 0].tolist()) == values.tolist()
    every = functional.all_positions(mask)
    full = every.laid_out(torch.arange(float(mask.numel())), -1.0, len(mask))
    assert torch.equal(full >= 0, mask)
    none = torch.zeros(3, 4, dtype=torch.bool)
    assert functional.lay_out(*torch.where(none), len(none)).most == 1


@pytest.mark.parametrize("labels", [[0, 0, 0, 1, 2, 2], [0, 1, 0, 1, 2, 2]], ids=["padded", "without padding"])
def test_values_of_pairs_come_back_as_listed(labels):
    labels = torch.tensor(labels)
    mask = (labels[:, None] == labels) & ~torch.eye(6, dtype=torch.bool)
    pairs = functional.lay_out(*torch.where(mask), len(mask))
    assert (pairs.columns is None) == bool((mask.sum(1) == 1).all())
    for each in (pairs, functional.all_positions(mask)):
        values = torch.arange(1.0, len(each.anchors) + 1)
        found = each.listed(each.laid_out(values, 0.0, 6))
        assert torch.equal(found, values * mask[each.anchors, each.positives])


@pytest.mark.parametrize("percentile", [0.0, 37.5, 60.0, 100.0])
def test_local_positives_are_those_below_a_percentile(percentile):
    distances, positives, _ = setup()
    found = functional.local_positives(distances, positives, percentile)
    for row, kept, mask in zip(distances.numpy(), found.numpy(), positives.numpy(), strict=True):
        limit = np.percentile(row[mask], percentile) if mask.any() else -1
        assert np.array_equal(kept, mask & (row <= limit + 1e-12))
    distances[0, 2] = torch.nan
    assert functional.local_positives(distances, positives, percentile)[0, 2]  # shows in the loss


def test_nan_shows_in_every_sum(monkeypatch):
    for many in (24, 0):
        monkeypatch.setattr(functional, "_MANY", many)
        distances, positives, negatives = setup()
        distances[0, 1] = torch.nan  # a negative of the first anchor
        pairs = functional.lay_out(*torch.where(positives), len(positives))
        sums, _ = functional.pair_sums(distances, pairs, negatives, KINDS["hinge"](MARGIN))
        assert sums[pairs.anchors == 0].isnan().all()
        assert sums[pairs.anchors != 0].isfinite().all()
