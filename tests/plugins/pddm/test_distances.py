"""The learned metric: equal to Eq. 2, symmetric, tiled, a distance like PML's."""

import copy

import pytest
import torch

from pml_ext import MahalanobisDistance, PDDMDistance
from pml_ext_train.cli.benchmark import peak_bytes

from . import loops

DOUBLE = {"dtype": torch.float64}


def build(size=6, seed=0, **settings):
    torch.manual_seed(seed)
    return PDDMDistance(size, **settings).double().eval()


def points(count=7, size=6, seed=1):
    return torch.randn(count, size, generator=torch.Generator().manual_seed(seed), **DOUBLE)


@pytest.mark.parametrize(
    "settings", [{}, {"position": False}, {"hidden_size": 3}, {"hidden_size": 9, "position": False}]
)
def test_equal_to_a_loop_over_pairs(settings):
    distance = build(**settings)
    x = points()
    y = points(4, seed=2)
    torch.testing.assert_close(distance(x), loops.matrix(distance, x, x), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(distance(x, y), loops.matrix(distance, x, y), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(distance.pairwise_distance(x[:4], y), loops.matrix(distance, x[:4], y).diagonal())
    torch.testing.assert_close(distance.compute_mat(x, y), loops.matrix(distance, x, y))


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
    x = points()
    y = points(4, seed=2)
    unit = [torch.nn.functional.normalize(each) for each in (x, y)]
    torch.testing.assert_close(distance(x, y), torch.cdist(*unit))  # it starts as the Euclidean one
    with torch.no_grad():
        distance.linear.weight.copy_(torch.randn(6, 6, generator=torch.Generator().manual_seed(5)))
    torch.testing.assert_close(distance(x, y), loops.mahalanobis(distance.linear.weight.detach(), x, y))
    rows = distance.pairwise_distance(*(each[:4] for each in unit))
    torch.testing.assert_close(rows, distance(x[:4], y).diagonal(), rtol=1e-5, atol=1e-5)  # torch adds 1e-6
    assert distance.metric is distance


def test_the_mahalanobis_distance_has_whole_gradients():
    """Rows after the map are not of unit length: nothing later removes what a gradient has along them."""
    distance = MahalanobisDistance(6).double()
    (x, y) = (points(), points(4, seed=2))
    weight = torch.randn(6, 6, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
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
        x = points(count, size, seed=3).detach().to(dtype)
        x[-1] = x[0]
        found = distance(x.requires_grad_())
        assert found[0, -1] == found[-1, 0] == 0
        found[[0, -1], [-1, 0]].sum().backward()
        assert not x.grad.any()
