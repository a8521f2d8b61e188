"""The learned metric, its loss and its miner, against Eq. 2 to 4 pair by pair."""

import copy
import itertools

import pytest
import torch
from pytorch_metric_learning.distances import CosineSimilarity, LpDistance
from pytorch_metric_learning.losses import TripletMarginLoss
from pytorch_metric_learning.reducers import MeanReducer
from torch.nn.functional import normalize

from pml_ext import HardQuadrupletMiner, MahalanobisDistance, PDDMDistance, PDDMLoss
from pml_ext.testing import SkipCheck, check_component
from pml_ext_pddm import functional
from pml_ext_train.cli.benchmark import peak_bytes

from . import loops

DOUBLE = {"dtype": torch.float64}


def build(size=6, seed=0, **settings):
    torch.manual_seed(seed)
    return PDDMDistance(size, **settings).double().eval()


def points(count=7, size=6, seed=1):
    return torch.randn(count, size, generator=torch.Generator().manual_seed(seed), **DOUBLE)


X = points()
Y = points(4, seed=2)


@pytest.mark.parametrize(
    "settings", [{}, {"position": False}, {"hidden_size": 3}, {"hidden_size": 9, "position": False}]
)
def test_equal_to_a_loop_over_pairs(settings):
    distance = build(**settings)
    torch.testing.assert_close(distance(X), loops.matrix(distance, X, X), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(distance(X, Y), loops.matrix(distance, X, Y), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(distance.pairwise_distance(X[:4], Y), loops.matrix(distance, X[:4], Y).diagonal())
    torch.testing.assert_close(distance.compute_mat(X, Y), loops.matrix(distance, X, Y))


def test_what_dead_units_and_equal_embeddings_give():
    """r(0) = 0, and u = 0 between equal embeddings; gradients stay finite."""
    distance = build()
    with torch.no_grad():
        distance.difference.bias.fill_(-10)
        distance.position.bias[:] = torch.linspace(-1, 1, 6)
    x = points()
    x[3] = x[0]
    x.requires_grad_()
    found = distance(x)
    torch.testing.assert_close(found, loops.matrix(distance, x, x))
    found.sum().backward()
    assert x.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in distance.parameters())
    zero = torch.zeros(2, 6, **DOUBLE, requires_grad=True)
    distance(zero).sum().backward()
    assert torch.equal(zero.grad, torch.zeros_like(zero))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("budget", [None, 5000])
def test_symmetric_to_the_last_bit(training, budget):
    """Training or not, in one piece or in tiles; and which image of a pair comes first changes nothing."""
    distance = PDDMDistance(16, memory_budget=budget).train(training)
    x = torch.randn(33, 16)
    y = torch.randn(33, 16)
    found = distance(x)
    assert torch.equal(found, found.T)
    torch.manual_seed(0)
    one = distance.pairwise_distance(x, y)
    torch.manual_seed(0)
    assert torch.equal(distance.pairwise_distance(y, x), one)


def test_tiles_change_nothing_and_bound_memory():
    whole = PDDMDistance(32, dropout=0, memory_budget=1 << 30)
    x = torch.randn(96, 32, requires_grad=True)
    tiled = copy.deepcopy(whole)
    tiled.memory_budget = 1 << 17
    y = torch.randn(40, 32)
    for references in (None, y):
        one = whole(x, references)
        other = tiled(x, references)
        torch.testing.assert_close(one, other)
        (one_grad,), (other_grad,) = (torch.autograd.grad(each.square().sum(), x) for each in (one, other))
        torch.testing.assert_close(one_grad, other_grad)
    peaks = [peak_bytes(lambda x, _: d(x).square().sum(), x, torch.zeros(96)) for d in (tiled, whole)]  # noqa: B023
    assert peaks[0] < peaks[1] / 5


def test_dropout_has_one_mask_a_call_with_gradients():
    distance = build(16, dropout=0.5)
    x = points(9, 16)
    plain = distance(x)
    distance.train()
    with torch.no_grad():
        assert torch.equal(distance(x), plain)
    torch.manual_seed(0)
    one = distance(x)
    assert not torch.allclose(one, plain)
    assert not torch.equal(distance(x), one)
    torch.manual_seed(0)
    assert torch.equal(distance(x), one)
    torch.manual_seed(0)
    distance.memory_budget = 10_000  # tiles share the mask
    torch.testing.assert_close(distance(x), one)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit:FutureWarning")
@pytest.mark.parametrize("position", [True, False])
@pytest.mark.parametrize(
    ("method", "example", "sizes"),
    [("pairwise_distance", (5, 5), (6, 6)), ("forward", (5, 3), (6, 4)), ("forward", (5,), (6,))],
)
def test_a_trace_serves_other_sizes(method, example, sizes, position):
    """Also what ONNX's legacy exporter writes, which is a trace."""
    distance = build(position=position)
    inputs = tuple(points(count, seed=count) for count in example)
    traced = torch.jit.trace_module(distance, {method: inputs}, check_trace=False)
    for counts in (sizes, example, tuple(2 * count for count in sizes)):
        inputs = [points(count, seed=9 + number) for number, count in enumerate(counts)]
        found, wanted = (getattr(module, method)(*inputs) for module in (traced, distance))
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def test_the_mahalanobis_distance_equals_a_loop():
    distance = MahalanobisDistance(6).double()
    unit = [normalize(each) for each in (X, Y)]
    torch.testing.assert_close(distance(X, Y), torch.cdist(*unit))  # it starts as the Euclidean one
    with torch.no_grad():
        distance.linear.weight.copy_(points(6, 6, seed=5))
    torch.testing.assert_close(distance(X, Y), loops.mahalanobis(distance.linear.weight.detach(), X, Y))
    rows = distance.pairwise_distance(*(each[:4] for each in unit))
    torch.testing.assert_close(rows, distance(X[:4], Y).diagonal(), rtol=1e-5, atol=1e-5)  # torch adds 1e-6
    assert distance.metric is distance


def test_the_mahalanobis_distance_has_whole_gradients():
    """Rows after the map are not of unit length: nothing later removes what a gradient has along them."""
    distance = MahalanobisDistance(6).double()
    x = points()
    y = points(4, seed=2)
    weight = points(6, 6, seed=5)
    apart = ~torch.eye(len(x), dtype=torch.bool)  # at distance 0 there is a kink

    def compute(x, weight, y=None):
        found = torch.func.functional_call(distance, {"linear.weight": weight}, (x, y))
        return found[apart] if y is None else found

    for inputs in ((x, weight), (x, weight, y), (x, torch.eye(6, dtype=torch.float64))):
        inputs = [each.detach().requires_grad_() for each in inputs]
        assert torch.autograd.gradcheck(compute, inputs, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(compute, inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_embeddings_have_mahalanobis_distance_0(dtype):
    for size, count in ((5, 8), (64, 33), (512, 101)):
        distance = MahalanobisDistance(size).to(dtype)
        torch.nn.init.normal_(distance.linear.weight, generator=torch.Generator().manual_seed(1))
        x = points(count, size, seed=3).to(dtype)
        x[-1] = x[0]
        found = distance(x.requires_grad_())
        assert found[0, -1] == found[-1, 0] == 0
        found[[0, -1], [-1, 0]].sum().backward()
        assert not x.grad.any()


@pytest.mark.parametrize("tile", [4, 1000])
def test_unordered_pairs_have_their_masks(tile):
    distance = build(5, dropout=0.0)
    x = normalize(points(7, 5))
    same = LABELS[:7, None] == LABELS[:7]
    one_way = same.triu(1)  # of a miner that lists a pair in one order
    scores, near, far = functional.scores_of_pairs(distance.head(), x, one_way, ~same, tile)
    pairs = list(itertools.combinations(range(7), 2))
    expected = loops.matrix(distance, x, x)
    assert scores.tolist() == pytest.approx([expected[pair].item() for pair in pairs])
    assert near.tolist() == [bool(same[pair]) for pair in pairs]
    assert far.tolist() == [not same[pair] for pair in pairs]


LABELS = torch.tensor([0, 1, 0, 2, 1, 1, 0, 2, 0, 1, 2, 2])


def build_loss(seed=0, *, dropout=0.0, position=True, hidden_size=None, **settings):
    torch.manual_seed(seed)
    return PDDMLoss(PDDMDistance(5, hidden_size, dropout, position).double(), **settings)


def reference(embeddings, labels, component, distance, indices_tuple=None, pointwise=None, **settings):
    others = [settings.pop(name, None) for name in ("detach_scaling", "detach_embeddings", "embedding_loss")]
    if any(others) or (pointwise and indices_tuple is not None):
        raise SkipCheck("tests below: what is detached, and another loss in the place of the feature term")
    metric, embedding = loops.objective(component.distance, embeddings, labels.tolist(), indices_tuple, **settings)
    if pointwise is not None:
        metric = loops.pointwise(component.distance, embeddings, labels.tolist(), pointwise)
    return metric + embedding


def test_pddm_loss_equals_a_slow_loop():
    torch.manual_seed(0)
    whole, lmdm = (PDDMDistance(8, dropout=0.0, position=position) for position in (True, False))
    settings = [
        {"distance": [whole], "num_quadruplets": [1, 4, 1000], "per_class": [False, True]},
        {"distance": [lmdm]},
        {"distance": [whole], "score_margin": [0.1], "embedding_margin": [0.3], "embedding_weight": [2.0, 0.0]},
        {"distance": [whole], "pointwise": ["logistic", "fisher"], "squared": [False, True]},
        {"distance": [whole], "embedding_loss": [None, TripletMarginLoss()]},
    ]
    check_component(PDDMLoss, reference=reference, settings=settings, checks=["check_reference", "check_settings"])


def test_the_gradient_flows_through_the_scale_or_not():
    """By finite differences of a loss whose scale is held where it is."""
    x = points(12, 5).requires_grad_()
    loss = build_loss(embedding_weight=0.0)
    matrix = loss.distance(x)
    off = matrix[~torch.eye(len(x), dtype=torch.bool)]
    a, p, n = HardQuadrupletMiner(loss.distance)(x, LABELS)

    def value(low, high):
        return (0.5 + (matrix[a, n] - matrix[a, p]) / (high - low)).clamp(min=0).sum()

    free = value(off.min(), off.max())
    fixed = value(off.min().detach(), off.max().detach())
    for expected, settings in ((free, {}), (fixed, {"detach_scaling": True})):
        found = build_loss(embedding_weight=0.0, **settings)(x, LABELS)
        torch.testing.assert_close(found, expected)
        one, other = (torch.autograd.grad(each, x, retain_graph=True)[0] for each in (found, expected))
        torch.testing.assert_close(one, other)


def test_score_term_kept_from_the_embedding():
    x = points(12, 5).requires_grad_()
    loss = build_loss(detach_embeddings=True)
    loss(x, LABELS).backward()
    trained = {name for name, parameter in loss.named_parameters() if parameter.grad.abs().sum() > 0}
    assert trained == {name for name, _ in loss.named_parameters()} - {"distance.score.bias"}  # differences lack it
    a, p, n = (normalize(x)[index] for index in HardQuadrupletMiner(loss.distance)(x, LABELS))
    feature_term = 0.5 * (1 + (a - p).norm(dim=1) - (a - n).norm(dim=1)).clamp(min=0).sum()
    torch.testing.assert_close(x.grad, torch.autograd.grad(feature_term, x)[0])


def test_one_mask_for_the_whole_step():
    """Mining, scaling and hinges see the same head; without that, scaled scores leave [0, 1]."""
    loss = build_loss(dropout=0.5, hidden_size=32)
    x = points(12, 5)  # of fewer units all may be 0, which makes ties
    for seed in range(10):
        torch.manual_seed(seed)
        found = loss.compute_loss(x, LABELS, None, x, LABELS)["score"]
        torch.manual_seed(seed)
        head = loss.distance.head()
        twin = copy.deepcopy(loss.distance)
        twin.dropout = 0.0
        with torch.no_grad():
            layers = (twin.difference, twin.position, twin.combine)
            for layer, weight, bias in zip(layers, head[0:6:2], head[1:6:2], strict=True):
                layer.weight.copy_(weight)
                layer.bias.copy_(bias)
        metric, _ = loops.objective(twin, x, LABELS.tolist())
        assert found["losses"].sum().item() == pytest.approx(metric.item(), rel=1e-9)
        assert ((found["losses"] >= 0) & (found["losses"] <= 1.5)).all()


def test_equal_scores_are_scaled_to_zero():
    loss = build_loss()
    x = points(12, 5).requires_grad_()
    with torch.no_grad():
        loss.distance.score.weight.zero_()
    assert loss.compute_loss(x, LABELS, None, x, LABELS)["score"]["losses"].tolist() == [0.5, 0.5]
    loss(x, LABELS).backward()
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in loss.parameters())


def test_embedding_loss_of_pml_replaces_the_term():
    x = points(12, 5).requires_grad_()
    triplet = TripletMarginLoss(margin=0.2)
    loss = build_loss(embedding_loss=triplet, embedding_weight=3.0, num_quadruplets=3, collect_stats=True)
    triplets = HardQuadrupletMiner(loss.distance, num_quadruplets=3)(x, LABELS)
    metric, _ = loops.objective(loss.distance, x, LABELS.tolist(), num_quadruplets=3)
    assert loss(x, LABELS).item() == pytest.approx((metric + 3 * triplet(x, LABELS, triplets)).item(), rel=1e-9)
    assert loss.feature_loss.item() == pytest.approx(triplet(x, LABELS, triplets).item(), rel=1e-9)


@pytest.mark.parametrize("settings", [{}, {"pointwise": "logistic"}])
@pytest.mark.parametrize("labels", [torch.arange(6), torch.zeros(6, dtype=torch.long)])
def test_without_quadruplets_the_loss_is_always_0(settings, labels):
    """PML's MeanReducer gives NaN for no triplet."""
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(0), requires_grad=True)
    loss = PDDMLoss(PDDMDistance(8), reducer=MeanReducer(), **settings)
    value = loss(x, labels)
    assert value.isfinite()
    value.backward()
    assert x.grad.isfinite().all()


WITH_A_LONE_CLASS = torch.tensor([0, 1, 0, 2, 1, 1, 0, 2, 0, 3])


def listed(triplets):
    return list(zip(*(index.tolist() for index in triplets), strict=True))


@pytest.mark.parametrize("count", [1, 2, 3, 99])
@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_mined_quadruplets_equal_a_slow_loop(count, per_class, seed):
    x = points(10, 5, seed)
    distance = PDDMDistance(5).double()
    for similarity, metrics in (
        (distance.eval()(x), [distance.train()]),
        (-LpDistance()(x), [None, LpDistance(), LpDistance(power=2)]),
        (CosineSimilarity()(x), [CosineSimilarity()]),
    ):
        wanted, _ = loops.quadruplets(similarity.tolist(), WITH_A_LONE_CLASS.tolist(), count, per_class)
        for metric in metrics:
            miner = HardQuadrupletMiner(metric, num_quadruplets=count, per_class=per_class)
            assert listed(miner(x, WITH_A_LONE_CLASS)) == wanted


def test_ties_go_to_the_first():
    x = torch.ones(6, 3)
    labels = torch.tensor([0, 0, 1, 1, 0, 1])
    assert listed(HardQuadrupletMiner()(x, labels)) == [(0, 1, 2), (1, 0, 2)]
    assert listed(HardQuadrupletMiner(num_quadruplets=2)(x, labels)) == [(0, 1, 2), (1, 0, 2), (0, 4, 2), (4, 0, 2)]


def test_without_gradients_and_without_dropout():
    distance = PDDMDistance(5, dropout=0.9).train()
    x = points(10, 5).requires_grad_()
    first = HardQuadrupletMiner(distance, num_quadruplets=5)(x, WITH_A_LONE_CLASS)
    for _ in range(5):
        assert listed(HardQuadrupletMiner(distance, num_quadruplets=5)(x, WITH_A_LONE_CLASS)) == listed(first)
    assert x.grad is None
    assert distance.training
