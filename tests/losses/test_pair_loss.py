"""The base of pair losses: tiles of anchors against the whole matrix, memory, and refusals."""

import pytest
import torch
from pytorch_metric_learning import reducers
from pytorch_metric_learning.distances import CosineSimilarity
from pytorch_metric_learning.regularizers import LpRegularizer

from pml_ext import (
    AngularTripletLoss,
    BatchAllTripletLoss,
    CBMLLoss,
    Hierarchy,
    PDDMDistance,
    TiledContrastiveLoss,
    TiledMultiSimilarityLoss,
)
from pml_ext.distances import compare
from pml_ext.losses import PairLoss, per_anchor, reduced
from pml_ext.pairwise import rows_per_tile, tiles_of_rows
from pml_ext_train.cli.benchmark import peak_bytes

from .tiled_batches import CALLS, LABELS, LOSSES, SIZE, X, agree


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
            tiled = kind(reducer=reducer, collect_stats=True, tile_size=size, **settings)
            agree(outcome(tiled, CALLS[call]), dense)


@pytest.mark.parametrize("name", LOSSES)
def test_batches_without_pairs_are_equal_in_tiles(name):
    kind, settings = LOSSES[name]
    for labels in (torch.arange(4), torch.zeros(4, dtype=torch.long), torch.tensor([0, 0, 1, 2])):
        x = torch.randn(4, SIZE, dtype=torch.float64, requires_grad=True)
        dense, tiled = (outcome(kind(tile_size=size, **settings), {}, x, labels) for size in (None, 3))
        agree(tiled, dense)
        assert tiled[1].isfinite().all()
    assert kind(tile_size=3, **settings)(X[:0], LABELS[:0]) == 0


def test_a_learned_metric_draws_its_dropout_once():
    """In tiles every pair sees the masks of the whole matrix, and generators go on alike; its parameters learn."""
    torch.manual_seed(0)
    distance = PDDMDistance(SIZE).double()
    results = []
    for size in (None, 6):
        loss = CBMLLoss(distance=distance, tile_size=size)
        torch.manual_seed(1)
        value = loss(X, LABELS)
        results.append([value, torch.rand(1), *torch.autograd.grad(value, [X, *distance.parameters()])])
    agree(*results)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (TiledContrastiveLoss, {"pos_margin": 1, "neg_margin": 0}),
        (CBMLLoss, {"reducer": reducers.ThresholdReducer(low=-1)}),
        (CBMLLoss, {"embedding_regularizer": LpRegularizer()}),
    ],
)
def test_value_and_gradient_have_the_same_dropout(kind, settings):
    """Also where the gradient is not computed with the value, but afterwards."""
    torch.manual_seed(0)
    distance = PDDMDistance(SIZE).double()
    results = []
    for size in (None, 6):
        loss = kind(distance=distance, tile_size=size or len(X), **settings)
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


def test_memory_is_linear_and_tiles_come_by_themselves():
    assert rows_per_tile(None, 1024, 1024, torch.device("cpu")) is None
    assert rows_per_tile(None, 32768, 32768, torch.device("cpu")) == 64
    assert rows_per_tile(3, 8, 8, torch.device("cpu")) == 3
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
    loss = make(tile_size=SIZE // 2, embedding_regularizer=regularizer)
    loss(X, LABELS).backward()
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


class Squares(PairLoss):
    """A mean over anchors of each one's squared similarities to its positives, written to be checked by a loop."""

    tiles = "rows"
    statistic_names = ("most",)

    def equation(self, pairs):
        squares = (pairs.matrix.square() * pairs.positives).sum(1)
        self.record(most=pairs.matrix.amax(1))
        return per_anchor(squares)


@pytest.mark.parametrize("tile_size", [None, 4])
def test_an_equation_sees_the_pairs_of_a_loop(tile_size):
    loss = Squares(tile_size=tile_size, collect_stats=True)
    unit = [row / row.norm() for row in X]
    expected = sum(
        (unit[i] @ unit[j]) ** 2 for i in range(len(X)) for j in range(len(X)) if i != j and LABELS[i] == LABELS[j]
    ) / len(X)
    found = loss(X, LABELS)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(*(torch.autograd.grad(value, X)[0] for value in (found, expected)))
    assert loss.most.item() == pytest.approx(1)  # the mean of the diagonal, which no other entry exceeds


def test_settings_that_do_not_fit_are_refused():
    with pytest.raises(TypeError, match=r"relation must be an object such as SharedLabel\(\) .*; got 'class'"):
        Squares(relation="class")
    tree = Hierarchy(["a/b", "a/c"], graded=True)
    with pytest.raises(ValueError, match="Squares has no weights of pairs in its equation; take a relation with grad"):
        Squares()(X[:2], torch.arange(2), relation=tree)
    with pytest.raises(ValueError, match="tile_size"):
        Squares(tile_size=0)
    with pytest.raises(NotImplementedError):
        PairLoss()(X, LABELS)
