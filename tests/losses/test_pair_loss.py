"""The base of pair losses and losses in tiles: the dense form, PML's values, and memory."""

import copy
import functools

import pytest
import torch
from pytorch_metric_learning import losses, miners, reducers
from pytorch_metric_learning.distances import CosineSimilarity, LpDistance
from pytorch_metric_learning.regularizers import LpRegularizer

from pml_ext import (
    AngularLoss,
    AngularTripletLoss,
    BatchAllTripletLoss,
    CBMLLoss,
    CrossBatchMemory,
    Hierarchy,
    MetricVarianceRegularizer,
    MultipleLosses,
    NPairAngularLoss,
    NPairLoss,
    PDDMDistance,
    RegularizedLoss,
    TiledContrastiveLoss,
    TiledMultiSimilarityLoss,
    TiledNTXentLoss,
    TiledSupConLoss,
    TiledTripletMarginLoss,
)
from pml_ext.distances import compare
from pml_ext.losses import PairLoss, reduced
from pml_ext.losses.joined_terms import JoinedTerms
from pml_ext.pairwise import tiles_of_rows
from pml_ext_train.cli.benchmark import peak_bytes
from pml_ext_triplets.functional import KINDS

SIZE = 5
LOSSES = {
    "cbml": (CBMLLoss, {}),
    "cbml, other settings": (CBMLLoss, {"averaging": "sqrt", "delta": "ratio", "skip_unmined": True}),
    "angular": (AngularLoss, {"alpha": 44}),
    "angular, gathered rows": (AngularLoss, {"alpha": 70}),
    "angular, raw": (AngularLoss, {"alpha": 44, "normalize_embeddings": False}),
    "n-pair": (NPairLoss, {}),
    "n-pair-angular": (NPairAngularLoss, {"alpha": 44}),
    "angular-triplet": (AngularTripletLoss, {"alpha": 44}),
    **{f"batch-all, {kind}": (BatchAllTripletLoss, {"kind": kind}) for kind in KINDS},
    "batch-all, local": (BatchAllTripletLoss, {"positives": "local", "triplets": "all"}),
    "contrastive": (TiledContrastiveLoss, {"pos_margin": 0.3}),
    "multi-similarity": (TiledMultiSimilarityLoss, {}),
    "nt-xent": (TiledNTXentLoss, {}),
    "sup-con": (TiledSupConLoss, {}),
    "triplet-margin": (TiledTripletMarginLoss, {"margin": 0.3}),
    "triplet-margin, swap": (TiledTripletMarginLoss, {"margin": 0.3, "swap": True, "smooth_loss": True}),
}


def batch(count=23, seed=0, classes=6):
    """Ragged classes in no order, one of them of a single image, and some images twice."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (count,), generator=generator)
    labels[7] = 99
    x = torch.randn(count, SIZE, generator=generator, dtype=torch.float64)
    x[1] = x[0]
    return x.requires_grad_(), labels


X, LABELS = batch()
REFERENCES = batch(17, seed=1)
CALLS = {
    "labels": {},
    "pairs": {"indices_tuple": miners.MultiSimilarityMiner(0.3)(X, LABELS)},
    "triplets": {"indices_tuple": miners.TripletMarginMiner(0.3)(X, LABELS)},
    "references": {"ref_emb": REFERENCES[0], "ref_labels": REFERENCES[1]},
    "references and pairs": {
        "ref_emb": REFERENCES[0],
        "ref_labels": REFERENCES[1],
        "indices_tuple": miners.MultiSimilarityMiner(0.3)(X, LABELS, *REFERENCES),
    },
}


def agree(one, other, tolerance=1e-11):
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a.double(), b.double(), rtol=tolerance, atol=tolerance)


def outcome(loss, call, x=X, labels=LABELS):
    """Value, gradients to both sides, and recorded statistics."""
    value = loss(x, labels, **call)
    sides = [x, *([call["ref_emb"]] if "ref_emb" in call else [])]
    statistics = [torch.as_tensor(getattr(loss, name, 0.0)) for name in loss.statistic_names]
    return [value, *torch.autograd.grad(value, sides), *statistics]


class Above(reducers.BaseReducer):
    """The mean of the values above 0.1; PML's ThresholdReducer is refused where values are sums."""

    def pos_pair_reduction(self, losses, *_):
        return losses[losses > 0.1].mean()

    triplet_reduction = pos_pair_reduction


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", LOSSES)
def test_tiles_give_what_the_whole_matrix_gives(name, call):
    """Tiles that do not divide the batch, and larger ones than it; means, and weights that differ."""
    kind, settings = LOSSES[name]
    above = Above() if kind.sums_triplets else reducers.ThresholdReducer(low=0.1)
    for reducer, sizes in ((None, (4, 40)), (above, (6,))):
        dense = outcome(kind(reducer=reducer, collect_stats=True, **settings), CALLS[call])
        assert dense[1].abs().max() > 0
        for size in sizes:
            agree(outcome(kind(reducer=reducer, collect_stats=True, tile_size=size, **settings), CALLS[call]), dense)


@pytest.mark.parametrize("name", LOSSES)
def test_batches_without_pairs_are_equal_in_tiles(name):
    kind, settings = LOSSES[name]
    for labels in (torch.arange(4), torch.zeros(4, dtype=torch.long), torch.tensor([0, 0, 1, 2])):
        x = torch.randn(4, SIZE, dtype=torch.float64, requires_grad=True)
        dense, tiled = (outcome(kind(tile_size=size, **settings), {}, x, labels) for size in (None, 3))
        agree(tiled, dense)
        assert tiled[1].isfinite().all()
        apart = (None, x.detach(), labels + 9)  # references of other classes
        assert all(kind(tile_size=size, **settings)(x, labels, *apart).isfinite() for size in (None, 3))
    assert kind(tile_size=3, **settings)(X[:0], LABELS[:0]) == 0


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (CBMLLoss, {}),
        (TiledContrastiveLoss, {"pos_margin": 1, "neg_margin": 0}),
        (CBMLLoss, {"reducer": reducers.ThresholdReducer(low=-1)}),
        (CBMLLoss, {"embedding_regularizer": LpRegularizer()}),
    ],
)
def test_a_learned_metric_draws_its_dropout_once(kind, settings):
    """In tiles every pair sees the masks of the whole matrix, and generators go on alike; its parameters learn.

    Also where the gradient is not computed with the value, but afterwards.
    """
    torch.manual_seed(0)
    distance = PDDMDistance(SIZE).double()
    results = []
    for size in (None, 6):
        loss = kind(distance=distance, tile_size=size, **settings)
        torch.manual_seed(1)
        value = loss(X, LABELS)
        results.append([value, torch.rand(1), *torch.autograd.grad(value, [X, *distance.parameters()])])
    agree(*results)
    distance.eval()
    assert not torch.isclose(kind(distance=distance, tile_size=6, **settings)(X, LABELS), results[0][0])


def test_backward_inside_autocast_has_full_precision():
    x = torch.nn.functional.normalize(torch.randn(24, 8, generator=torch.Generator().manual_seed(0)))
    gradients = []
    for inside in (False, True):
        leaf = x.clone().requires_grad_()
        loss = TiledContrastiveLoss(pos_margin=1, neg_margin=0, tile_size=6, distance=CosineSimilarity())
        with torch.autocast("cpu", torch.bfloat16):
            value = loss(leaf, torch.arange(24) // 4)
            if inside:
                value.backward()
        if not inside:
            value.backward()
        gradients.append(leaf.grad)
    assert torch.equal(*gradients)


def test_a_whole_matrix_equation_is_not_tiled():
    class Torn(PairLoss):
        tiles = "rows"

        def equation(self, pairs):
            return reduced(pairs.matrix.mean())

    with pytest.raises(ValueError, match="PairLoss has no tiles: .* leave out tile_size"):
        PairLoss(tile_size=4)
    with pytest.raises(TypeError, match="Torn gives one value for the whole batch"):
        Torn(tile_size=4)(X, LABELS)


def test_memory_of_tiles_is_linear_in_the_batch():
    peaks = []
    for count in (400, 800):
        x = torch.randn(count, 8, requires_grad=True)
        y = torch.arange(count) // 4
        peaks.append(peak_bytes(CBMLLoss(tile_size=12800 // count), x, y))
    assert peaks[1] < 1.4 * peaks[0]
    assert peaks[1] < peak_bytes(CBMLLoss(), x, y) / 10


@pytest.mark.parametrize("make", [CBMLLoss, TiledMultiSimilarityLoss])
@pytest.mark.parametrize("regularizer", [None, LpRegularizer()])
def test_a_regularizer_leaves_tiles_in_one_pass(make, regularizer, monkeypatch):
    """A tile's matrix is computed once, not again in the backward pass."""
    count = 0

    def counted(*arguments):
        nonlocal count
        count += 1
        return compare(*arguments)

    monkeypatch.setattr("pml_ext.distances.compare", counted)
    make(tile_size=SIZE // 2, embedding_regularizer=regularizer)(X, LABELS).backward()
    assert count == len(tiles_of_rows(len(X), SIZE // 2))


OF_SINGLE_VALUES = [
    reducers.MeanReducer(),
    reducers.AvgNonZeroReducer(),
    reducers.ThresholdReducer(low=0.1),
    reducers.PerAnchorReducer(),
    reducers.ClassWeightedReducer(torch.ones(100)),
    reducers.MultipleReducers({"loss": reducers.AvgNonZeroReducer()}),
]


@pytest.mark.parametrize("reducer", OF_SINGLE_VALUES, ids=lambda reducer: type(reducer).__name__)
@pytest.mark.parametrize("kind", [BatchAllTripletLoss, AngularTripletLoss])
def test_sums_of_triplets_are_no_single_values(kind, reducer):
    """BatchAllTripletLoss gave 3.2 with AvgNonZeroReducer where PML's triplet loss gives 0.4."""
    for call in ("labels", "pairs", "references"):
        for tile_size in (None, 4):
            with pytest.raises(ValueError, match=f"{kind.__name__} lists no triplets .*Reducer would take"):
                kind(reducer=reducer, tile_size=tile_size)(X, LABELS, **CALLS[call])


def test_settings_that_do_not_fit_are_refused():
    with pytest.raises(TypeError, match=r"relation must be an object such as SharedLabel\(\) .*; got 'class'"):
        CBMLLoss(relation="class")
    tree = Hierarchy(["a/b", "a/c"], graded=True)
    with pytest.raises(ValueError, match="NPairLoss has no weights of pairs in its equation; take a rel"):
        NPairLoss()(X[:2], torch.arange(2), relation=tree)
    with pytest.raises(NotImplementedError):
        PairLoss()(X, LABELS)


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
    assert peak_bytes(memory, x, torch.arange(64) // 4) < 64 * 4000 * 8  # of one list of indices


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


def test_rows_sorted_by_class_are_put_back():
    terms = JoinedTerms("Mine", torch.tensor([2, 0, 1]))  # the batch row of each sorted row
    triplets = torch.tensor([0, 0, 1]), torch.tensor([1, 1, 0]), torch.tensor([2, 1, 2])
    tile = {"losses": torch.tensor([1.0, 2.0, 3.0]), "indices": triplets, "reduction_type": "triplet"}
    found = terms.terms(tuple(terms.flat({"loss": tile}, 0)))["loss"]
    assert found["losses"].tolist() == [3, 1, 2]  # equal anchors and positives stay in their order
    assert [index.tolist() for index in found["indices"]] == [[0, 2, 2], [2, 0, 0], [1, 1, 0]]
