"""Losses, miners and memories with relations, against listed pairs."""

import math

import pytest
import torch
from pytorch_metric_learning import losses, miners, regularizers

import pml_ext
from pml_ext import (
    AnchorSwapMiner,
    CBMLLoss,
    CrossBatchMemory,
    FromMatrix,
    HardPairMiner,
    Hierarchy,
    MetricVarianceRegularizer,
    MultipleLosses,
    NegativesOnly,
    RegularizedLoss,
    Relation,
    SemiHardTripletMiner,
    SharedLabel,
    TiledContrastiveLoss,
    TiledMultiSimilarityLoss,
    TiledSupConLoss,
    WithRelation,
    registry,
)
from pml_ext.miners import PairMiner, TiledMiner
from pml_ext.plugin import PairLoss
from pml_ext.relations import related_pairs
from pml_ext.testing import SecondDevice
from pml_ext.testing.calling import CountedOperations

from .made_up import B, C, points, some_sets, value_and_gradient

NUMPY_ZERO = torch.zeros(1, dtype=torch.long).numpy()[0]
PAIR_LOSSES = [c.name for c in registry.components("loss") if issubclass(c.cls, PairLoss)]
MINERS = [c.name for c in registry.components("miner") if issubclass(c.cls, PairMiner)]


X = points()
OF_SETS = CBMLLoss(relation=SharedLabel())


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: Hierarchy(["a/b"], level=3), ValueError, "from 1 to 2"),
        (lambda: FromMatrix(torch.full((2, 2), 0.5)), ValueError, "has the value 0.5.*graded=True"),
        (lambda: SharedLabel().tensor([[0], [7], [1]], 2), ValueError, "3 items are given for 2 embeddings"),
        (lambda: SharedLabel(num_labels=3).tensor([[0], [7]], 2), ValueError, "the label 7 is not from 0 to 2"),
        (lambda: SharedLabel().tensor([0, 1], 2), TypeError, r"multi-hot labels \(2, C\) or 2 lists of integers"),
        (lambda: WithRelation(losses.ContrastiveLoss(), SharedLabel())(X, torch.arange(B)), TypeError, "A class"),
        (lambda: OF_SETS(X), ValueError, r"labels must be given for SharedLabel\("),
        (lambda: Hierarchy(["a/b"]).tensor(["a/c"], 1), ValueError, "no class 'a/c'"),
        (lambda: RegularizedLoss(OF_SETS, MetricVarianceRegularizer()), ValueError, "and the loss compares by Shared"),
        (lambda: registry.build("n-pair", "loss", relation=SharedLabel(graded=True)), ValueError, "has no weights"),
        (lambda: WithRelation(losses.ContrastiveLoss(), SharedLabel(graded=True)), ValueError, "has no weights"),
        (lambda: WithRelation(losses.ArcFaceLoss(3, 4), SharedLabel()), TypeError, "does not compare pairs"),
        (lambda: CBMLLoss()(points(), torch.arange(B), relation=FromMatrix(torch.eye(3))), ValueError, "3 rows"),
        (
            lambda: Hierarchy(["a/b"]).tensor([NUMPY_ZERO], 1),
            TypeError,
            "needs a tensor of integers",
        ),
        (lambda: Hierarchy(["a/b"]).tensor(torch.zeros(2), 2), TypeError, r"a tensor of integers of shape \(2,\)"),
        (lambda: NegativesOnly().tensor(torch.zeros(2), 2), TypeError, r"a tensor of integers of shape \(2,\)"),
        (lambda: pml_ext.Near(0), ValueError, "within of Near must be a finite number above 0, not 0"),
        (lambda: pml_ext.Near(2, 1), ValueError, "beyond of Near must be a finite number at least 2, not 1"),
        (
            lambda: pml_ext.Near(2).tensor([1.0, math.nan], 2),
            ValueError,
            "have 1 NaN or infinite numbers",
        ),
        (lambda: pml_ext.Near(2).tensor([1.0, 2.0], 3), ValueError, "2 items are given for 3 embeddings"),
        (lambda: pml_ext.Near(2).tensor(torch.ones(2, 2, 2), 2), TypeError, r"numbers of shape \(2,\) or \(2, K\)"),
        (lambda: pml_ext.Near(2).tensor(torch.ones(2).bool(), 2), TypeError, "needs numbers of shape"),
        (lambda: pml_ext.Near(2).tensor(["a", "b"], 2), TypeError, "Near needs numbers of shape .* got a list"),
        (
            lambda: pml_ext.Near.of_classes(["1", "a"], 2),
            ValueError,
            "the class 'a' is no number; wanted",
        ),
        (lambda: pml_ext.Near.of_classes(["1", "1 2"], 2), ValueError, "the same number of coordinates"),
        (lambda: pml_ext.DifferentGroups().tensor(torch.arange(4), 4), TypeError, r"integers of shape \(4, 2\), class"),
        (lambda: pml_ext.DifferentGroups().tensor(torch.rand(4, 2), 4), TypeError, "type torch.stack"),
        (lambda: Near().tensor([0.5, 1.0], 2), TypeError, r"a tensor of labels of shape \(2, ...\); got a list"),
        (
            lambda: CBMLLoss(relation=Near())(X, torch.rand(B, 2)),
            ValueError,
            r"one weight for each pair.*\(24, 24, 2\)",
        ),
    ],
)
def test_invalid_relations_and_labels_raise_errors(make, error, text):
    with pytest.raises(error, match=text):
        make()


# Losses


class Near(Relation):
    """A relation of somebody else: integers that differ by at most one."""

    def weights(self, x, y):
        return ((x - y).abs() <= 1).float()


class NearPlaces(Relation):
    """Positions in the plane, at most 1 apart."""

    def weights(self, x, y):
        return ((x - y).norm(dim=-1) <= 1).float()


class Times(Near):
    """Times as floating point numbers, with a check of its own."""

    def tensor(self, labels, count, device=None, axis=0):
        return torch.as_tensor(labels, device=device).double()


TABLE = torch.tensor([[1, 0, math.nan], [0, 1, 1], [math.nan, 1, 0]])
INTEGERS = torch.arange(B) % 3, torch.arange(18) % 3
RELATIONS = {  # with labels of a batch and of references
    "threshold": (SharedLabel(0.5), (some_sets(), some_sets(1, 18))),
    "classes": (FromMatrix(TABLE, by_label=True), INTEGERS),
    "unknown": (NegativesOnly(0), INTEGERS),
    "of somebody else": (Near(), INTEGERS),
    "floats": (Near(), tuple(2.3 * each / 2 for each in INTEGERS)),
    "positions": (NearPlaces(), tuple(torch.stack([0.7 * each, each % 2], 1) for each in INTEGERS)),
    "numbers": (pml_ext.Near(0.5, 1.0), tuple(0.7 * each for each in INTEGERS)),
    "places": (pml_ext.Near(1), tuple(torch.stack([0.7 * each, each % 2], 1) for each in INTEGERS)),
    "groups": (
        pml_ext.DifferentGroups(),
        tuple(torch.stack([each, each.cumsum(0) // 2], 1) for each in INTEGERS),
    ),
}


@pytest.mark.parametrize("case", RELATIONS)
@pytest.mark.parametrize("name", PAIR_LOSSES)
def test_a_relation_gives_what_its_pairs_give(name, case):
    relation, (labels, ref_labels) = RELATIONS[case]
    x = points()
    y = points(1, 18).detach()
    for named, columns in (({}, labels), ({"ref_emb": y}, ref_labels)):
        pairs = related_pairs(relation, labels, columns, itself=not named)
        wanted = value_and_gradient(registry.build(name, "loss"), x, None, pairs, **named)
        more = named | {"ref_labels": ref_labels} if named else {}
        for tile_size in (None, 5):
            loss = registry.build(name, "loss", tile_size=tile_size, relation=relation)
            torch.testing.assert_close(value_and_gradient(loss, x, labels, **more), wanted, rtol=1e-9, atol=1e-12)
    assert wanted[1].abs().max() > 0


def graded_loops(x, weights):
    """CBML, multi-similarity, contrastive and SupCon with weights of positive pairs, anchor by anchor."""
    points = torch.nn.functional.normalize(x)
    s = points @ points.T
    d = torch.cdist(points, points)
    cbml, ms, supcon, pulled, pushed = ([] for _ in range(5))
    for i in range(len(x)):
        P = [j for j in range(len(x)) if j != i and weights[i, j] > 0]
        N = [j for j in range(len(x)) if j != i and weights[i, j] == 0]
        w = weights[i].double()
        pulled += [w[j] * d[i, j] for j in P]
        pushed += [(1 - d[i, j]).clamp(min=0) for j in N]
        pos = sum((w[j] * torch.exp(-2 * (s[i, j] - 0.5)) for j in P), torch.zeros(()))
        ms.append(torch.log(1 + pos) / 2 + torch.log(1 + sum(torch.exp(50 * (s[i, j] - 0.5)) for j in N)) / 50)
        if P:
            every = torch.stack([s[i, j] for j in P + N]).mul(10).logsumexp(0)
            supcon.append(sum(w[j] * (every - 10 * s[i, j]) for j in P) / sum(w[j] for j in P))
        if P and N:
            top = max(s[i, j] for j in N) + 0.1
            low = min(s[i, j] for j in P) - 0.1
            one = sum((w[j] * torch.exp((0.5 - s[i, j]) / 0.5) for j in P if s[i, j] < top), torch.zeros(()))
            two = sum((torch.exp((s[i, j] - 1) / 0.01) for j in N if s[i, j] > low), torch.zeros(()))
            mean_p, mean_n = (sum(s[i, j] for j in each) / len(each) for each in (P, N))
            target = 0.2 * mean_p + 0.8 * mean_n
            cbml.append(torch.log(1 + one) + torch.log(1 + two) + sum((s[i, j] - target) ** 2 for j in N) / len(N))
        else:
            cbml.append(torch.zeros(()))
    means = [torch.stack([v for v in each if v > 0]).mean() for each in (pulled, pushed)]
    return {
        "CBMLLoss": torch.stack([v.double() for v in cbml]).mean(),
        "TiledMultiSimilarityLoss": torch.stack([v.double() for v in ms]).mean(),
        "TiledSupConLoss": torch.stack([v for v in supcon if v > 0]).mean(),
        "TiledContrastiveLoss": means[0] + means[1],
    }


@pytest.mark.parametrize("loss", [CBMLLoss, TiledMultiSimilarityLoss, TiledSupConLoss, TiledContrastiveLoss])
def test_graded_losses_against_a_loop(loss):
    x = points()
    labels = some_sets()
    relation = SharedLabel(0.3, graded=True)
    value = graded_loops(x, relation.matrix(labels, labels))[loss.__name__]
    wanted = value.detach(), torch.autograd.grad(value, x)[0]
    for tile_size in (None, 5):
        found = value_and_gradient(loss(tile_size=tile_size), x, labels, relation=relation)
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-9)  # weights are float32
    ones = FromMatrix((SharedLabel().matrix(labels, labels) > 0).float(), graded=True)
    torch.testing.assert_close(loss()(x, relation=ones), loss()(x, labels, relation=SharedLabel()), rtol=1e-9, atol=0)


def test_a_relation_and_mined_pairs_keep_the_weights():
    x = points()
    labels = some_sets()
    relation = SharedLabel(graded=True)
    pairs = related_pairs(relation, labels, labels, itself=True)
    for tile_size in (None, 5):
        loss = TiledMultiSimilarityLoss(tile_size=tile_size, relation=relation)
        torch.testing.assert_close(loss(x, labels, pairs), loss(x, labels))


# Miners


@pytest.mark.parametrize("name", MINERS)
def test_related_miners_equal_listed_pairs(name):
    x = points()
    labels = torch.arange(B) // 4
    sets = some_sets()
    tiled = issubclass(registry.get(name, "miner").cls, TiledMiner)
    settings = {"tile_size": 5} if tiled else {"num_quadruplets": 40}
    plain = registry.build(name, "miner", **settings)
    related = registry.build(name, "miner", relation=SharedLabel(), **settings)
    pairs = related_pairs(SharedLabel(), sets, sets, True)
    torch.testing.assert_close(related(x, sets), plain(x, labels, indices_tuple=pairs), rtol=0, atol=0)
    kept = pairs[0] < 5  # issue 742: a tuple narrows what is mined
    narrowed = plain(x, labels, indices_tuple=(pairs[0][kept], pairs[1][kept], *pairs[2:]))
    assert not tiled or set(narrowed[0].tolist()) <= set(range(5))
    assert len(narrowed[0]) > 0


@pytest.mark.parametrize(
    "make", [lambda r: HardPairMiner(relation=r), lambda r: WithRelation(miners.MultiSimilarityMiner(), r)]
)
def test_miners_take_no_pairs_of_a_group(make):
    x = points()
    classes = torch.arange(B) % 3
    groups = classes + 3 * (torch.arange(B) // 6)
    mined = make(pml_ext.DifferentGroups())(x, torch.stack([classes, groups], 1))
    first, positive, second, negative = mined
    assert len(first)
    assert ((groups[first] != groups[positive]) & (classes[first] == classes[positive])).all()
    assert (classes[second] != classes[negative]).all()


def test_wrapped_miners_keep_their_inner_relation():
    x = points()
    sets = some_sets()
    miner = AnchorSwapMiner(SemiHardTripletMiner(relation=SharedLabel()))
    assert isinstance(miner.relation, SharedLabel)
    swapped = miner(x, sets)
    assert (SharedLabel().matrix(sets, sets)[swapped[0], swapped[1]] > 0).all()
    with pytest.raises(ValueError, match="per_class of HardQuadrupletMiner needs classes"):
        registry.build("hard-quadruplet", "miner", per_class=True, relation=SharedLabel())(x, sets)


# Around and inside of other things


MEMORIES = {
    "ours": lambda: CBMLLoss(relation=SharedLabel()),
    "in tiles": lambda: registry.build("batch-all-triplets", "loss", relation=SharedLabel(), tile_size=5),
    "PML's": lambda: WithRelation(losses.ContrastiveLoss(), SharedLabel()),
    "two": lambda: MultipleLosses([CBMLLoss(relation=SharedLabel()), TiledSupConLoss(relation=SharedLabel())]),
    "regularized": lambda: RegularizedLoss(CBMLLoss(relation=SharedLabel()), regularizers.LpRegularizer(), weight=0.0),
}


@pytest.mark.parametrize("make", MEMORIES.values(), ids=MEMORIES)
def test_a_memory_keeps_labels_of_any_shape(make, tmp_path):
    first = (points(0), some_sets(0))
    second = (points(1), some_sets(1))
    memory = CrossBatchMemory(make(), 8, memory_size=3 * B)
    torch.testing.assert_close(memory(*first), make()(*first))
    columns = torch.cat([first[0].detach(), second[0]])
    weights = SharedLabel().matrix(second[1], torch.cat([first[1], second[1]]))
    weights[torch.arange(B), B + torch.arange(B)] = math.nan  # itself
    value = make()
    matrix = FromMatrix(weights)
    for module in value.modules():
        if "relation" in vars(module).get("_modules", {}):
            module.relation = matrix
    found = memory(*second)
    torch.testing.assert_close(found, value(second[0], second[1], None, columns, None))
    torch.save(memory.state_dict(), tmp_path / "memory.pt")
    again = CrossBatchMemory(make(), 8, memory_size=3 * B)
    again.load_state_dict(torch.load(tmp_path / "memory.pt", weights_only=True))
    third = points(2), some_sets(2)
    torch.testing.assert_close(again(*third), memory(*third), rtol=0, atol=0)
    with pytest.raises(ValueError, match="the memory keeps labels of shape"):
        memory(points(3), torch.zeros(B, C + 1))


def test_compiled_loss_with_sets_is_equal():
    x = points()
    sets = some_sets()
    loss = CBMLLoss(relation=SharedLabel())
    compiled = torch.compile(loss, backend="eager")
    for labels in (sets, torch.nn.functional.one_hot(torch.arange(B) // 4, C)):
        torch.testing.assert_close(compiled(x, labels), loss(x, labels))


def test_tiles_have_no_matrix_of_the_batch():
    with CountedOperations() as counted:
        CBMLLoss(tile_size=16, relation=SharedLabel())(points(0, 512).detach(), some_sets(0, 512))
    assert counted.largest <= 2 * 16 * 512  # the masks of both kinds of pairs of a tile


CLASSES = torch.arange(B) // 4
ELSEWHERE = [
    (SharedLabel(0.3, graded=True), some_sets()),
    (Hierarchy([f"{k % 2}/{k}" for k in range(C)], graded=True), CLASSES),
    (FromMatrix(torch.eye(C), by_label=True), CLASSES),
    (NegativesOnly(0), CLASSES),
    (FromMatrix(torch.eye(B).roll(1, 0)), None),
    (pml_ext.Near(1, graded=True), torch.arange(B) * 0.3),
    (pml_ext.Near(1, numbers=torch.arange(C) * 0.6), CLASSES),
    (pml_ext.DifferentGroups(), torch.stack([CLASSES, torch.arange(B) // 2], 1)),
]


@pytest.mark.parametrize(("relation", "labels"), ELSEWHERE)
def test_relations_work_on_a_second_device(relation, labels):
    x = points().detach()
    loss = CBMLLoss(tile_size=5, relation=relation)
    wanted = loss(x, labels)
    with SecondDevice() as second:
        loss = second.move(loss)
        found = loss(x.to(second.device), None if labels is None else labels.to(second.device))
        assert found.device == second.device
        torch.testing.assert_close(found.cpu(), wanted)


@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "regularized"])
@pytest.mark.parametrize(
    ("relation", "labels"),
    [
        (Near(), torch.arange(B) * 0.3),
        (Times(), torch.arange(B) * 0.3),
        (NearPlaces(), torch.stack([torch.arange(B) * 0.3, torch.arange(B) % 2], 1)),
        (pml_ext.Near(1, graded=True), torch.arange(B) * 0.3),
        (pml_ext.Near(1), torch.stack([torch.arange(B) * 0.3, torch.arange(B) % 2], 1)),
        (pml_ext.DifferentGroups(), torch.stack([torch.arange(B) % 3, torch.arange(B) // 2], 1)),
    ],
    ids=["floats", "tensor of its own", "positions", "near", "near places", "groups"],
)
def test_labels_of_any_form_in_a_memory(relation, labels, wrapped):
    """A queue of integers cut the fractions off, so that the loss was another one, or 0."""
    x = points()
    wanted = value_and_gradient(CBMLLoss(relation=relation), x, labels)
    loss = CBMLLoss(relation=relation)
    if wrapped:
        loss = RegularizedLoss(loss, regularizers.LpRegularizer(), weight=0)
    memory = CrossBatchMemory(loss, 8, B)
    assert wanted[0] > 0
    for _ in range(2):
        torch.testing.assert_close(value_and_gradient(memory, x, labels), wanted, rtol=1e-9, atol=1e-12)
    assert torch.equal(memory.label_memory.double(), labels.double())


@pytest.mark.parametrize("miner", [None, WithRelation(miners.MultiSimilarityMiner(), pml_ext.Near(1))])
def test_numbers_in_a_memory_of_pmls_loss(miner):
    """Pairs are listed there from labels as they are, one number for each item."""
    loss = WithRelation(losses.ContrastiveLoss(), pml_ext.Near(1))
    memory = CrossBatchMemory(loss, 8, B, miner=miner)
    x = points()
    labels = torch.arange(B) * 0.3
    torch.testing.assert_close(memory(x, labels), loss(x, labels, miner and miner(x, labels)))
    assert memory.label_memory.dtype == labels.dtype


def test_a_memory_of_integers_takes_floats():
    memory = CrossBatchMemory(CBMLLoss(relation=Near()), 8, 2 * B)
    memory.add_to_memory(points(), torch.arange(B))
    memory.add_to_memory(points(1), torch.arange(B) + 0.25)
    assert torch.equal(memory.label_memory, torch.cat([torch.arange(B), torch.arange(B) + 0.25]))


def test_lists_of_labels_of_other_widths_are_compared():
    shared = SharedLabel()
    first = shared.tensor([[0], [1]], 2)
    second = shared.tensor([[0, 4], [1]], 2)
    assert shared.weights(first, second).tolist() == [1, 1]


@pytest.mark.parametrize("loss", [CBMLLoss, TiledSupConLoss])
def test_listed_positive_without_graded_weight_is_ignored(loss):
    """SharedLabel(threshold=...) calls a pair with a smaller share neither positive nor negative."""
    sets = torch.tensor([[1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 0, 1, 1, 1], [0, 0, 0, 0, 1]])
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    negatives = (torch.tensor([0, 1]), torch.tensor([3, 3]))
    listed = (torch.tensor([0, 0]), torch.tensor([1, 2]), *negatives)
    kept = (torch.tensor([0]), torch.tensor([1]), *negatives)
    graded = loss(relation=SharedLabel(threshold=0.3, graded=True))
    assert graded(x, sets, listed).isfinite()
    torch.testing.assert_close(graded(x, sets, listed), graded(x, sets, kept))
