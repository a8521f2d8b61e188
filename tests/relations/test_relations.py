"""Relations: their weights against float64 loops; losses, miners and memories with them, against listed pairs."""

import itertools
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

B = 24  # items of a batch
C = 6  # labels


def points(seed=0, rows=B, size=8):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, size, generator=generator, dtype=torch.float64).requires_grad_()


def some_sets(seed=0, rows=B, share=0.35):
    return torch.rand(rows, C, generator=torch.Generator().manual_seed(seed)) < share


X = points()
SETS = some_sets()
CLASSES = torch.arange(B) // 4


def value_and_gradient(loss, x, *arguments, **named):
    value = loss(x, *arguments, **named)
    return value.detach(), torch.autograd.grad(value, x)[0]


def test_different_groups_equal_a_slow_loop():
    classes = torch.randint(3, (B,), generator=torch.Generator().manual_seed(0))
    groups = torch.randint(-1, 4, (B,), generator=torch.Generator().manual_seed(1))
    relation = pml_ext.DifferentGroups()
    labels = relation.tensor(torch.stack([classes, groups], 1), B)
    found = relation.matrix(labels, labels)
    for i, j in itertools.product(range(B), repeat=2):
        expected = float(classes[i] == classes[j])
        if groups[i] >= 0 and groups[i] == groups[j]:
            expected = math.nan
        assert found[i, j].item() == pytest.approx(expected, nan_ok=True)


def jaccard(first, second):
    shared = len(first & second)
    return shared, shared / len(first | second) if first | second else 0.0


@pytest.mark.parametrize("graded", [False, True])
@pytest.mark.parametrize("threshold", [0.0, 1 / 3, 0.5, 1.0])
def test_shared_labels_equal_a_slow_loop(threshold, graded):
    first = some_sets(0)
    second = some_sets(1, 17)
    relation = SharedLabel(threshold, graded)
    found = relation.matrix(relation.tensor(first.float(), B), second)
    one_by_one = relation.weights(first[:, None], second[None])
    lists = [{label for label in range(C) if row[label]} for row in first]
    of_lists = relation.matrix(SharedLabel(num_labels=C).tensor([sorted(each) for each in lists], B), second)
    for i, j in itertools.product(range(B), range(17)):
        shared, index = jaccard(lists[i], {label for label in range(C) if second[j, label]})
        wanted = 0.0 if not shared else index if graded else 1.0
        if shared and index < threshold:
            wanted = math.nan
        for each in (found, one_by_one, of_lists):
            assert each[i, j].item() == pytest.approx(wanted, rel=1e-6, nan_ok=True)


def test_missing_label_of_a_table_raises():
    table = torch.tensor([[1.0, 0.0], [float("nan"), 1.0], [0.0, float("nan")]])
    with pytest.raises(ValueError, match="multi-hot labels of SharedLabel have 2 NaN; wanted 0"):
        SharedLabel().tensor(table, 3)


def test_a_matrix_of_the_batch():
    matrix = torch.where(torch.rand(B, B, generator=torch.Generator().manual_seed(3)) < 0.3, math.nan, 0.0)
    matrix[torch.arange(B), (torch.arange(B) + 1) % B] = 1
    wanted = CBMLLoss()(X, None, (*torch.where(matrix == 1), *torch.where((matrix == 0).fill_diagonal_(False))))
    for loss, labels in itertools.product((CBMLLoss(), CBMLLoss(tile_size=5)), (None, torch.arange(B))):
        torch.testing.assert_close(loss(X, labels, relation=FromMatrix(matrix)), wanted)


def random_numbers(columns, seed=0, integers=False):
    generator = torch.Generator().manual_seed(seed)
    numbers = 10 * torch.rand(B, *columns, generator=generator, dtype=torch.float64)
    return numbers.long() if integers else numbers


@pytest.mark.parametrize("integers", [False, True])
@pytest.mark.parametrize("columns", [(), (1,), (3,)])
@pytest.mark.parametrize(
    ("within", "beyond", "graded", "p"), [(2, None, False, 2), (2, 4.5, True, 1), (3, None, True, 2)]
)
def test_near_numbers_equal_a_slow_loop(within, beyond, graded, p, columns, integers):
    relation = pml_ext.Near(within, beyond, graded, p)
    x = random_numbers(columns, 0, integers)
    y = random_numbers(columns, 1, integers)
    found = relation.matrix(relation.tensor(x, B), relation.tensor(y, B))
    assert relation.tensor(x, B).dtype == x.dtype
    for i, j in itertools.product(range(B), repeat=2):
        parts = (x[i].reshape(-1) - y[j].reshape(-1)).abs().tolist()
        distance = sum(part**p for part in parts) ** (1 / p)
        far = within if beyond is None else beyond
        expected = math.nan
        if distance > far or (graded and distance >= far):
            expected = 0.0
        if distance < within or (distance == within and not graded):
            expected = 1 - distance / within if graded else 1.0
        assert found[i, j].item() == pytest.approx(expected, abs=1e-6, nan_ok=True)


def test_names_of_classes_may_be_numbers():
    relation = pml_ext.Near.of_classes(["37", "4", "40.5"], within=4, graded=True)
    labels = torch.tensor([0, 2, 1])
    numbers = torch.tensor([37, 40.5, 4])
    torch.testing.assert_close(relation.matrix(labels, labels), pml_ext.Near(4, graded=True).matrix(numbers, numbers))
    assert pml_ext.Near.of_classes(["1 2", "4 6"], within=5).matrix(labels[:1], labels[2:]).tolist() == [[1.0]]


@pytest.mark.parametrize("kind", [torch.uint8, torch.int8, torch.int16, torch.int64])
def test_differences_of_small_integers_are_exact(kind):
    ages = torch.tensor([1, 2, 100], dtype=kind)
    assert pml_ext.Near(1).matrix(ages, ages).tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    if kind != torch.uint8:
        assert pml_ext.Near(150).matrix(ages, -ages)[2, 2] == 0


def test_numbers_of_lists_keep_their_digits():
    """float32 has a spacing of 128 at timestamps."""
    times = [1_700_000_000.0, 1_700_000_059.0, 1_700_000_121.0]
    wanted = [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    near = pml_ext.Near(60)
    numbers = near.tensor(times, 3)
    assert near.matrix(numbers, numbers).tolist() == wanted
    by_class = pml_ext.Near(60, numbers=times)
    classes = torch.arange(3)
    assert by_class.matrix(classes, classes).tolist() == wanted


PATHS = ["animal/bird/owl", "animal/bird/robin", "animal/fish/cod", "plant/tree/oak", "plant/moss", "animal/bird"]


@pytest.mark.parametrize("graded", [False, True])
@pytest.mark.parametrize("level", [1, 2, 3])
def test_trees_of_classes_equal_a_loop(level, graded):
    relation = Hierarchy(PATHS, level, graded)
    labels = torch.arange(len(PATHS))
    found = relation.matrix(labels, labels)
    for i, j in itertools.product(range(len(PATHS)), repeat=2):
        paths = [PATHS[k].split("/") + [""] * (3 - len(PATHS[k].split("/"))) for k in (i, j)]
        depth = next((d for d in range(3) if paths[0][d] != paths[1][d]), 3)
        wanted = 0.0 if depth < level else depth / 3 if graded else 1.0
        assert found[i, j].item() == pytest.approx(wanted, rel=1e-6)
    classes = relation.classes(labels)
    assert graded or torch.equal(classes[:, None] == classes, found > 0)
    assert relation.tensor(["plant/moss", ("animal", "bird", "owl")], 2).tolist() == [4, 0]


def test_unknown_items_are_nobodys_positive():
    labels = torch.tensor([0, 0, 1, -1, -1])
    weights = NegativesOnly().matrix(labels, labels)
    for i, j in itertools.product(range(5), repeat=2):
        both = labels[i] == -1 and labels[j] == -1
        assert weights[i, j].item() == pytest.approx(math.nan if both else float(labels[i] == labels[j]), nan_ok=True)


PAIR_LOSSES = [c.name for c in registry.components("loss") if issubclass(c.cls, PairLoss)]
MINERS = [c.name for c in registry.components("miner") if issubclass(c.cls, PairMiner)]


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
            lambda: Hierarchy(["a/b"]).tensor([torch.zeros(1, dtype=torch.long).numpy()[0]], 1),
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
    for named, columns in (({}, labels), ({"ref_emb": points(1, 18).detach()}, ref_labels)):
        pairs = related_pairs(relation, labels, columns, itself=not named)
        wanted = value_and_gradient(registry.build(name, "loss"), X, None, pairs, **named)
        more = named | {"ref_labels": ref_labels} if named else {}
        for tile_size in (None, 5):
            loss = registry.build(name, "loss", tile_size=tile_size, relation=relation)
            torch.testing.assert_close(value_and_gradient(loss, X, labels, **more), wanted, rtol=1e-9, atol=1e-12)
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
    relation = SharedLabel(0.3, graded=True)
    value = graded_loops(X, relation.matrix(SETS, SETS))[loss.__name__]
    wanted = value.detach(), torch.autograd.grad(value, X)[0]
    for tile_size in (None, 5):
        found = value_and_gradient(loss(tile_size=tile_size), X, SETS, relation=relation)
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-9)  # weights are float32
    ones = FromMatrix((SharedLabel().matrix(SETS, SETS) > 0).float(), graded=True)
    torch.testing.assert_close(loss()(X, relation=ones), loss()(X, SETS, relation=SharedLabel()), rtol=1e-9, atol=0)


def test_a_relation_and_mined_pairs_keep_the_weights():
    relation = SharedLabel(graded=True)
    pairs = related_pairs(relation, SETS, SETS, itself=True)
    for tile_size in (None, 5):
        loss = TiledMultiSimilarityLoss(tile_size=tile_size, relation=relation)
        torch.testing.assert_close(loss(X, SETS, pairs), loss(X, SETS))


# Miners


@pytest.mark.parametrize("name", MINERS)
def test_related_miners_equal_listed_pairs(name):
    tiled = issubclass(registry.get(name, "miner").cls, TiledMiner)
    settings = {"tile_size": 5} if tiled else {"num_quadruplets": 40}
    plain = registry.build(name, "miner", **settings)
    related = registry.build(name, "miner", relation=SharedLabel(), **settings)
    pairs = related_pairs(SharedLabel(), SETS, SETS, True)
    torch.testing.assert_close(related(X, SETS), plain(X, CLASSES, indices_tuple=pairs), rtol=0, atol=0)
    kept = pairs[0] < 5  # issue 742: a tuple narrows what is mined
    narrowed = plain(X, CLASSES, indices_tuple=(pairs[0][kept], pairs[1][kept], *pairs[2:]))
    assert not tiled or set(narrowed[0].tolist()) <= set(range(5))
    assert len(narrowed[0]) > 0


@pytest.mark.parametrize(
    "make", [lambda r: HardPairMiner(relation=r), lambda r: WithRelation(miners.MultiSimilarityMiner(), r)]
)
def test_miners_take_no_pairs_of_a_group(make):
    classes = torch.arange(B) % 3
    groups = classes + 3 * (torch.arange(B) // 6)
    first, positive, second, negative = make(pml_ext.DifferentGroups())(X, torch.stack([classes, groups], 1))
    assert len(first)
    assert ((groups[first] != groups[positive]) & (classes[first] == classes[positive])).all()
    assert (classes[second] != classes[negative]).all()


def test_wrapped_miners_keep_their_inner_relation():
    miner = AnchorSwapMiner(SemiHardTripletMiner(relation=SharedLabel()))
    assert isinstance(miner.relation, SharedLabel)
    swapped = miner(X, SETS)
    assert (SharedLabel().matrix(SETS, SETS)[swapped[0], swapped[1]] > 0).all()
    with pytest.raises(ValueError, match="per_class of HardQuadrupletMiner needs classes"):
        registry.build("hard-quadruplet", "miner", per_class=True, relation=SharedLabel())(X, SETS)


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
    torch.testing.assert_close(memory(*second), value(second[0], second[1], None, columns, None))
    torch.save(memory.state_dict(), tmp_path / "memory.pt")
    again = CrossBatchMemory(make(), 8, memory_size=3 * B)
    again.load_state_dict(torch.load(tmp_path / "memory.pt", weights_only=True))
    third = points(2), some_sets(2)
    torch.testing.assert_close(again(*third), memory(*third), rtol=0, atol=0)
    with pytest.raises(ValueError, match="the memory keeps labels of shape"):
        memory(points(3), torch.zeros(B, C + 1))


def test_compiled_loss_with_sets_is_equal():
    loss = CBMLLoss(relation=SharedLabel())
    compiled = torch.compile(loss, backend="eager")
    for labels in (SETS, torch.nn.functional.one_hot(torch.arange(B) // 4, C)):
        torch.testing.assert_close(compiled(X, labels), loss(X, labels))


def test_tiles_have_no_matrix_of_the_batch():
    with CountedOperations() as counted:
        CBMLLoss(tile_size=16, relation=SharedLabel())(points(0, 512).detach(), some_sets(0, 512))
    assert counted.largest <= 2 * 16 * 512  # the masks of both kinds of pairs of a tile


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
    wanted = value_and_gradient(CBMLLoss(relation=relation), X, labels)
    loss = CBMLLoss(relation=relation)
    if wrapped:
        loss = RegularizedLoss(loss, regularizers.LpRegularizer(), weight=0)
    memory = CrossBatchMemory(loss, 8, B)
    assert wanted[0] > 0
    for _ in range(2):
        torch.testing.assert_close(value_and_gradient(memory, X, labels), wanted, rtol=1e-9, atol=1e-12)
    assert torch.equal(memory.label_memory.double(), labels.double())


@pytest.mark.parametrize("miner", [None, WithRelation(miners.MultiSimilarityMiner(), pml_ext.Near(1))])
def test_numbers_in_a_memory_of_pmls_loss(miner):
    """Pairs are listed there from labels as they are, one number for each item."""
    loss = WithRelation(losses.ContrastiveLoss(), pml_ext.Near(1))
    memory = CrossBatchMemory(loss, 8, B, miner=miner)
    labels = torch.arange(B) * 0.3
    torch.testing.assert_close(memory(X, labels), loss(X, labels, miner and miner(X, labels)))
    assert memory.label_memory.dtype == labels.dtype


def test_a_memory_of_integers_takes_floats():
    memory = CrossBatchMemory(CBMLLoss(relation=Near()), 8, 2 * B)
    memory.add_to_memory(points(), torch.arange(B))
    memory.add_to_memory(points(1), torch.arange(B) + 0.25)
    assert torch.equal(memory.label_memory, torch.cat([torch.arange(B), torch.arange(B) + 0.25]))


def test_lists_of_labels_of_other_widths_are_compared():
    shared = SharedLabel()
    first = shared.tensor([[0], [1]], 2)
    assert shared.weights(first, shared.tensor([[0, 4], [1]], 2)).tolist() == [1, 1]


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


def as_set(mined):
    return set(zip(*(index.tolist() for index in mined[:2]), strict=True)), set(
        zip(*(index.tolist() for index in mined[-2:]), strict=True)
    )


@pytest.mark.parametrize("miner", [miners.MultiSimilarityMiner(), miners.BatchHardMiner(), miners.TripletMarginMiner()])
def test_pmls_miners_mine_for_each_anchor(miner):
    x = points().detach()
    wrapped = WithRelation(miner, SharedLabel())
    assert as_set(wrapped(x, torch.nn.functional.one_hot(CLASSES))) == as_set(miner(x, CLASSES))
    mined = wrapped(x, SETS)
    weights = SharedLabel().matrix(SETS, SETS)
    (a, p) = mined[:2]
    (b, n) = (mined[0], mined[2]) if len(mined) == 3 else mined[2:]
    assert (weights[a, p] > 0).all()
    assert (weights[b, n] == 0).all()
    assert (a != p).all()
    assert len(a) > 10


@pytest.mark.parametrize("loss", [losses.ContrastiveLoss, losses.TripletMarginLoss, losses.SupConLoss])
def test_pmls_losses_get_pairs_without_labels(loss):
    wrapped = WithRelation(loss(), SharedLabel())
    found = value_and_gradient(wrapped, X, torch.nn.functional.one_hot(CLASSES))
    torch.testing.assert_close(found, value_and_gradient(loss(), X, CLASSES), rtol=1e-12, atol=1e-12)
    ours = {"ContrastiveLoss": "tiled-contrastive", "TripletMarginLoss": "tiled-triplet-margin"}
    twin = registry.build(ours.get(loss.__name__, "tiled-sup-con"), "loss", relation=SharedLabel())
    torch.testing.assert_close(wrapped(X, SETS), twin(X, SETS), rtol=1e-6, atol=1e-9)
