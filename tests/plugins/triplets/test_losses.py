"""The batch-all triplet loss against listing all triplets; its miners and its sampler."""

import itertools

import numpy as np
import pytest
import torch
from pytorch_metric_learning import miners, reducers
from torch.autograd import gradcheck

from pml_ext import BatchAllTripletLoss
from pml_ext.testing import check_component
from pml_ext_triplets import functional

from ..cbml import loops
from .points import LABELS, batch

KINDS = tuple(functional.KINDS)


def value_of(kind, margin, ap, an, pn):
    """Sec. 5.1 and 5.2 as printed."""
    if kind == "hinge":
        return (ap - an + margin).clamp(min=0)
    if kind == "squared-hinge":
        return (ap**2 - an**2 + margin).clamp(min=0)
    if kind == "ratio":
        r = ap.exp() / (ap.exp() + an.exp())
        return r**2 - (1 - r) ** 2
    return ap + ((margin - an).exp() + (margin - pn).exp()).log()


def distance(x, y):
    if torch.equal(x, y):
        return x.sum() * 0
    return (x - y).norm()


def listed(
    x,
    labels,
    indices_tuple=None,
    ref_emb=None,
    ref_labels=None,
    *,
    kind="hinge",
    margin=0.2,
    triplets="violating",
    positives="all",
    percentile=60.0,
):
    """The mean over S, one triplet after the other."""
    points = torch.stack([p / p.norm().clamp(min=1e-12) for p in x])
    others = torch.stack([p / p.norm().clamp(min=1e-12) for p in (x if ref_emb is None else ref_emb)])
    d = [[distance(p, q) for q in others] for p in points]
    between = [[distance(p, q) for q in others] for p in others]
    if indices_tuple is None:
        pairs, negatives = loops.pairs_from_labels(labels, ref_labels)
    else:
        pairs, negatives = loops.pairs_of(indices_tuple)
        pairs = [(a, p) for a, p in pairs if a != p]
    if positives == "local":
        of = {a: [d[a][p].item() for b, p in pairs if b == a] for a, _ in pairs}
        pairs = {(a, p) for a, p in pairs if d[a][p].item() <= np.percentile(of[a], percentile) + 1e-12}
    every = [(a, p, n) for (a, p), (b, n) in itertools.product(sorted(pairs), sorted(negatives)) if a == b]
    if indices_tuple is not None and len(indices_tuple) == 3:
        given = zip(*(index.tolist() for index in indices_tuple), strict=True)
        every = [(a, p, n) for a, p, n in given if (a, p) in pairs]
    total = x.sum() * 0
    count = 0
    for a, p, n in every:
        if triplets == "all" or d[a][n] < d[a][p] + margin:
            total = total + value_of(kind, margin, d[a][p], d[a][n], between[p][n])
            count = count + 1
    return total / max(1, count)


@pytest.mark.parametrize("many", [False, True], ids=["few positives", "many"])
def test_the_loss_equals_listing_all_triplets(monkeypatch, many):
    if many:
        monkeypatch.setattr(functional, "_MANY", 0)
        monkeypatch.setattr(functional, "_ENTRIES", 30)
    ways = {"kind": KINDS, "triplets": ["violating", "all"], "positives": ["all", "local"]}
    margins = {"kind": ["hinge", "squared-hinge"], "margin": [-0.1, 0.0, 0.5, 3.0]}
    check_component(
        BatchAllTripletLoss, reference=listed, settings=[ways, margins], checks=["check_reference", "check_settings"]
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_ties_and_duplicates_equal_the_loop(kind, dtype):
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    x, labels = batch([0, 0, 0, 1, 1, 1, 2, 2], dtype=dtype)
    with torch.no_grad():
        x[1] = x[0]  # an exact duplicate of the class
        x[3] = x[0]  # and one of another class
        x[6] = 3 * x[7]  # the same direction
    twin = x.detach().double().requires_grad_()
    found = BatchAllTripletLoss(kind=kind)(x, labels)
    torch.testing.assert_close(found.double(), listed(twin, labels, kind=kind), rtol=tolerance, atol=tolerance)
    found.backward()
    assert x.grad.isfinite().all()
    corners = torch.eye(4, dtype=dtype).repeat(2, 1).requires_grad_()  # all distances are 0 or the same
    twin = corners.detach().double().requires_grad_()
    y = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
    found = BatchAllTripletLoss(kind=kind)(corners, y)
    expected = listed(twin, y, kind=kind)
    torch.testing.assert_close(found, expected.to(dtype), rtol=tolerance, atol=tolerance)
    found.backward()
    expected.backward()
    torch.testing.assert_close(corners.grad, twin.grad.to(dtype), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", ["hinge", "soft"])
def test_mined_triplets_outside_of_s_are_not_counted(kind):
    x, labels = batch(LABELS)
    chosen = miners.TripletMarginMiner(margin=0.6)(x, labels)
    loss = BatchAllTripletLoss(kind=kind)
    torch.testing.assert_close(loss(x, labels, chosen), listed(x, labels, chosen, kind=kind))
    assert listed(x, labels, chosen, kind=kind, triplets="all") != listed(x, labels, chosen, kind=kind)
    assert loss(x, labels, tuple(torch.zeros(0, dtype=torch.long) for _ in range(3))) == 0


@pytest.mark.parametrize("many", [False, True], ids=["passes", "sorting"])
@pytest.mark.parametrize("kind", ["hinge", "squared-hinge"])
def test_gradients_of_reducers_with_weights_of_their_own(monkeypatch, kind, many):
    if many:
        monkeypatch.setattr(functional, "_MANY", 0)
    x, labels = batch(LABELS)
    weights = torch.rand(200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    class Weighted(reducers.BaseReducer):
        def pos_pair_reduction(self, losses, *_):
            return losses @ weights[: len(losses)]

    assert gradcheck(lambda e: BatchAllTripletLoss(kind=kind, reducer=Weighted())(e, labels), (x,))


def test_the_share_of_violating_triplets_is_recorded():
    x, labels = batch(LABELS)
    loss = BatchAllTripletLoss(collect_stats=True)
    info = BatchAllTripletLoss(reducer=reducers.DoNothingReducer())(x, labels)["loss"]
    loss(x, labels)
    same = labels[:, None] == labels
    possible = ((same.sum(1) - 1) * (~same).sum(1)).sum()
    assert loss.violating.item() == pytest.approx(info["divisor"].item() / possible.item())
