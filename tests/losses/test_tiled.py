"""Losses in tiles of anchors: value and gradients of the dense form, of PML's, and memory linear in the batch."""

import copy
import functools

import pytest
import torch
from pytorch_metric_learning import losses, miners, reducers
from pytorch_metric_learning.distances import LpDistance

from pml_ext import (
    BatchAllTripletLoss,
    CBMLLoss,
    CrossBatchMemory,
    MetricVarianceRegularizer,
    MultipleLosses,
    NPairAngularLoss,
    RegularizedLoss,
    TiledContrastiveLoss,
    TiledNTXentLoss,
    TiledSupConLoss,
    TiledTripletMarginLoss,
)
from pml_ext_train.cli.benchmark import peak_bytes

from .tiled_batches import CALLS, LABELS, LOSSES, SIZE, X, agree, batch

PML = {
    "contrastive": losses.ContrastiveLoss(pos_margin=0.3),
    "multi-similarity": losses.MultiSimilarityLoss(),
    "nt-xent": losses.NTXentLoss(),
    "sup-con": losses.SupConLoss(),
    "triplet-margin": losses.TripletMarginLoss(0.3),
    "triplet-margin, swap": losses.TripletMarginLoss(0.3, swap=True, smooth_loss=True),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", PML)
def test_values_are_those_of_pml(name, call):
    kind, settings = LOSSES[name]
    if "swap" in name and "references" in call:
        pytest.skip("PML takes the row of the batch that has the number of the positive among the references")
    given = CALLS[call]
    expected = PML[name](X, LABELS, **given)
    for size in (None, 4):
        value = kind(tile_size=size, **settings)(X, LABELS, **given)
        torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-9)
        gradients = [torch.autograd.grad(v, X, retain_graph=True)[0] for v in (value, expected)]
        different = torch.arange(len(X)) > 1  # PML's Euclidean distance has another gradient between equal points
        torch.testing.assert_close(*(g[different] for g in gradients), rtol=1e-7, atol=1e-7)


REDUCERS = {
    "mean": reducers.MeanReducer(),
    "sum": reducers.SumReducer(),
    "avg-non-zero": reducers.AvgNonZeroReducer(),
    "above": reducers.ThresholdReducer(low=0.2),
    "between": reducers.ThresholdReducer(low=0.1, high=0.7),
    "per anchor": reducers.PerAnchorReducer(),
    "per anchor, not 0": reducers.PerAnchorReducer(reducers.AvgNonZeroReducer()),
    "by sub-loss": reducers.MultipleReducers({"pos_loss": reducers.SumReducer()}, reducers.ThresholdReducer(high=0.9)),
}


@pytest.mark.parametrize("reducer", REDUCERS)
@pytest.mark.parametrize("name", PML)
def test_a_stated_reducer_gives_the_value_of_pml(name, reducer):
    kind, settings = LOSSES[name]
    for call in ("labels", "pairs", "references"):
        if ("swap" in name or "triplet" in name) and ("per anchor" in reducer or call == "references"):
            continue
        for tile_size in (None, 4):
            ours = kind(reducer=REDUCERS[reducer], tile_size=tile_size, **settings)
            theirs = type(PML[name])(reducer=REDUCERS[reducer], **settings)
            value = ours(X, LABELS, **CALLS[call])
            expected = theirs(X, LABELS, **CALLS[call])
            torch.testing.assert_close(value, expected)
            gradients = [torch.autograd.grad(v, X)[0][2:] for v in (value, expected)]
            torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-7)
            assert type(ours.reducer) is type(theirs.reducer)


@pytest.mark.parametrize("reducer", [reducers.ClassWeightedReducer(torch.ones(9)), reducers.DoNothingReducer()])
def test_a_reducer_that_needs_the_list_is_refused(reducer):
    for kind in (TiledContrastiveLoss, TiledTripletMarginLoss):
        with pytest.raises(ValueError, match=f"{kind.__name__} lists no .* not a {type(reducer).__name__}; PML's"):
            kind(reducer=reducer)
    with pytest.raises(ValueError, match="not a PerAnchorReducer"):
        TiledTripletMarginLoss(reducer=reducers.PerAnchorReducer())
    with pytest.raises(ValueError, match="not a PerAnchorReducer"):
        TiledContrastiveLoss(reducer=reducers.PerAnchorReducer(aggregation_func=lambda x, count: x.amax(1)))


def wrapped(tile_size):
    two = MultipleLosses([CBMLLoss(tile_size=tile_size), TiledNTXentLoss(tile_size=tile_size)])
    return RegularizedLoss(two, MetricVarianceRegularizer())


MEMORIES = {
    "cbml": CBMLLoss,
    "sup-con": TiledSupConLoss,
    "n-pair-angular": NPairAngularLoss,
    "batch-all": functools.partial(BatchAllTripletLoss, kind="soft"),
    "wrapped": wrapped,
}


@pytest.mark.parametrize("detach_batch", [False, True])
@pytest.mark.parametrize("name", MEMORIES)
def test_a_memory_works_without_listed_pairs(monkeypatch, name, detach_batch):
    """The pairs of the lists that PML's losses get, gradients through the batch's own rows of the queue included."""
    built = (MEMORIES[name](tile_size=size) for size in (None, None, 4))
    listed, *others = (CrossBatchMemory(loss, SIZE, 40, detach_batch=detach_batch) for loss in built)
    for seed in range(3):
        x, labels = batch(15, seed)
        with monkeypatch.context() as patch:
            patch.setattr("pml_ext.losses.memory.takes_all_pairs", lambda loss: False)
            expected = [value := listed(x, labels), *torch.autograd.grad(value, x)]
        for memory in others:
            agree([value := memory(x, labels), *torch.autograd.grad(value, x)], expected)


def test_a_large_memory_lists_no_pair():
    memory = CrossBatchMemory(CBMLLoss(tile_size=8), 8, 4000)
    memory.add_to_memory(torch.randn(3900, 8), torch.arange(3900) // 4)
    x = torch.randn(64, 8, requires_grad=True)
    labels = torch.arange(64) // 4
    assert peak_bytes(memory, x, labels) < 64 * 4000 * 8  # of one list of indices


def test_reducers_of_triplets_have_the_meaning_of_pml():
    ours, theirs = (
        functools.partial(kind, margin=0.3, distance=LpDistance())
        for kind in (BatchAllTripletLoss, losses.TripletMarginLoss)
    )
    pairs = [ours(), theirs()], [ours(reducer=reducers.SumReducer()), theirs(reducer=reducers.SumReducer())]
    for ours_loss, theirs_loss in pairs:
        torch.testing.assert_close(ours_loss(X, LABELS), theirs_loss(X, LABELS))
    for reducer in (reducers.MeanReducer(), reducers.AvgNonZeroReducer()):
        call = CALLS["triplets"]
        torch.testing.assert_close(ours(reducer=reducer)(X, LABELS, **call), theirs(reducer=reducer)(X, LABELS, **call))


# Pairs that an indices_tuple lists more than once

A, P, B, N = miners.MultiSimilarityMiner(0.3)(X, LABELS)
REPEATED = {
    "triplets": miners.TripletMarginMiner(0.3)(X, LABELS),
    "pairs": tuple(torch.cat([index, index[::2], index[::3]]) for index in (A, P, B, N)),
}


@pytest.mark.parametrize("tile_size", [None, 4])
@pytest.mark.parametrize("listed", REPEATED)
@pytest.mark.parametrize("name", PML)
def test_repeated_pairs_count_as_in_pml(name, listed, tile_size):
    kind, settings = LOSSES[name]
    for reducer in (None, reducers.SumReducer(), reducers.MeanReducer(), reducers.ThresholdReducer(low=0.1)):
        theirs = copy.deepcopy(PML[name])
        if reducer is not None:
            theirs.set_reducer(reducer)
        ours = kind(tile_size=tile_size, reducer=reducer, **settings)
        values = [loss(X, LABELS, REPEATED[listed]) for loss in (ours, theirs)]
        torch.testing.assert_close(*values, rtol=1e-9, atol=1e-9)
        gradients = [torch.autograd.grad(value, X)[0][2:] for value in values]  # the first two rows are equal
        torch.testing.assert_close(*gradients, rtol=1e-7, atol=1e-7)
