"""The learned metric: equal to Eq. 2, symmetric, tiled, a distance like PML's."""

import copy

import pytest
import torch

from pml_ext import PDDMDistance
from pml_ext.benchmark import peak_bytes
from pml_ext.evaluation import neighbors_under, reranked_under

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
    distance, x, y = build(**settings), points(), points(4, seed=2)
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
    x, y = torch.randn(33, 16), torch.randn(33, 16)
    found = distance(x)
    assert torch.equal(found, found.T)
    torch.manual_seed(0)
    one = distance.pairwise_distance(x, y)
    torch.manual_seed(0)
    assert torch.equal(distance.pairwise_distance(y, x), one)


def test_tiles_change_nothing_and_bound_memory():
    whole, x = PDDMDistance(32, dropout=0, memory_budget=1 << 30), torch.randn(96, 32, requires_grad=True)
    tiled = copy.deepcopy(whole)
    tiled.memory_budget = 1 << 17
    y = torch.randn(40, 32)
    for references in (None, y):
        one, other = whole(x, references), tiled(x, references)
        torch.testing.assert_close(one, other)
        (one_grad,), (other_grad,) = (torch.autograd.grad(each.square().sum(), x) for each in (one, other))
        torch.testing.assert_close(one_grad, other_grad)
    peaks = [peak_bytes(lambda x, _: d(x).square().sum(), x, torch.zeros(96)) for d in (tiled, whole)]  # noqa: B023
    assert peaks[0] < peaks[1] / 5


def test_dropout_only_while_gradients_are_on_and_one_mask_a_call():
    distance, x = build(16, dropout=0.5), points(9, 16)
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
    torch.manual_seed(0)
    head = distance.head()
    kept = (head.w_u != 0).any(1)
    assert 0 < kept.sum() < 16
    torch.testing.assert_close(head.w_u[kept], 2 * distance.difference.weight[kept])
    assert torch.equal(kept, head.b_u != 0)
    for name, layer in (("w_v", distance.position), ("w_c", distance.combine)):
        rows = (getattr(head, name) != 0).any(1)
        torch.testing.assert_close(getattr(head, name)[rows], 2 * layer.weight[rows])
    assert torch.equal(head.w_s[0], distance.score.weight)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"embedding_size": 0}, "embedding_size of PDDMDistance must be a whole number of at least 1, not 0"),
        ({"dropout": 1.0}, "dropout"),
        ({"memory_budget": 0}, "memory_budget"),
    ],
)
def test_settings_are_checked(settings, text):
    with pytest.raises(ValueError, match=text):
        PDDMDistance(**{"embedding_size": 4, **settings})


def test_embeddings_are_checked():
    distance = PDDMDistance(6)
    for call in (distance, distance.compute_mat, distance.pairwise_distance):
        with pytest.raises(ValueError, match=r"query_emb must have embedding_size=6 columns; got shape \(3, 5\)"):
            call(torch.randn(3, 5), torch.randn(3, 6))
        with pytest.raises(ValueError, match=r"ref_emb must have embedding_size=6 columns; got shape \(3, 5\)"):
            call(torch.randn(3, 6), torch.randn(3, 5))
    with pytest.raises(TypeError, match="floating point"):
        distance([1, 2])


class Pairs(torch.nn.Module):
    """The scores of row with row, as a module that can be exported."""

    def __init__(self, distance):
        super().__init__()
        self.distance = distance

    def forward(self, x, y):
        return self.distance.pairwise_distance(x, y)


EXPORTED = {
    "row with row": (Pairs, (5, 5), (6, 6)),
    "two sets": (torch.nn.Identity, (5, 3), (6, 4)),
    "a set with itself": (torch.nn.Identity, (5,), (6,)),
}


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit:FutureWarning")
@pytest.mark.parametrize("position", [True, False])
@pytest.mark.parametrize("what", EXPORTED)
def test_a_trace_serves_other_sizes(what, position):
    """Also what ONNX's legacy exporter writes, which is a trace."""
    wrap, example, sizes = EXPORTED[what]
    module = build(position=position)
    module = wrap(module) if wrap is Pairs else module
    traced = torch.jit.trace(module, tuple(points(count, seed=count) for count in example), check_trace=False)
    for counts in (sizes, example, tuple(2 * count for count in sizes)):
        inputs = [points(count, seed=9 + number) for number, count in enumerate(counts)]
        torch.testing.assert_close(traced(*inputs), module(*inputs), rtol=1e-12, atol=1e-12)


@pytest.mark.skipif(not hasattr(torch.compiler, "is_exporting"), reason="torch.export of this torch says nothing")
def test_an_exported_program_serves_other_sizes():
    distance = build()
    rows, columns = torch.export.Dim("rows"), torch.export.Dim("columns")
    shapes = ({0: rows}, {0: columns})
    program = torch.export.export(distance, (points(5), points(3)), dynamic_shapes=shapes).module()
    x, y = points(6, seed=2), points(4, seed=3)
    torch.testing.assert_close(program(x, y), distance(x, y), rtol=1e-12, atol=1e-12)


def test_searches_exactly_and_by_a_shortlist():
    """The shortlist's answers near the exact ones as it grows, and equal them when it is the gallery."""
    distance = build(seed=3, hidden_size=64)  # of few hidden units all may be 0, which makes ties
    gallery, queries = points(300, seed=4), points(40, seed=5)
    _, exact = neighbors_under(distance)(queries, 5, gallery)
    expected = distance(queries, gallery).topk(5).indices
    assert torch.equal(exact, expected)
    shares = []
    for shortlist in (5, 30, 120, 300):
        values, found = reranked_under(distance, shortlist)(queries, 5, gallery)
        shares.append((found[:, :, None] == exact[:, None]).any(2).double().mean().item())
        torch.testing.assert_close(values, distance(queries, gallery).gather(1, found))
    assert shares[0] < shares[1] < shares[2] < shares[3] == 1
