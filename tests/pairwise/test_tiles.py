"""Functions of rows in tiles, against the same function of all rows at once."""

import pytest
import torch

from pml_ext.pairwise import in_parts, in_tiles, rows_per_tile, tiles_of_rows


def made(rows=7, columns=5, size=3):
    draw = torch.Generator().manual_seed(0)
    x, y = (torch.randn(count, size, generator=draw, dtype=torch.float64) for count in (rows, columns))
    return x.requires_grad_(), y.requires_grad_(), torch.tensor(0.7, dtype=torch.float64, requires_grad=True)


def of_a_tile(scale):
    """Two values and an index of each row: a sum of exponentials, the largest product, and where that is."""

    def part(rows, anchors, whole):
        products = scale * anchors[0] @ whole[0].T
        return products.exp().sum(1), products.amax(1), products.argmax(1) + rows.start

    return part


@pytest.mark.parametrize("size", [1, 3, 7, 20])
def test_values_and_gradients_are_those_of_a_loop(size):
    x, y, scale = made()
    sums, largest, places = in_tiles(of_a_tile(scale), (x,), (y,), tiles_of_rows(7, size), [scale], values=2)
    products = [[scale * (row * other).sum() for other in y] for row in x]
    expected = (
        torch.stack([sum(each.exp() for each in row) for row in products]),
        torch.stack([max(row, key=torch.Tensor.item) for row in products]),
    )
    torch.testing.assert_close((sums, largest), expected, rtol=1e-12, atol=1e-12)
    starts = [row - row % size for row in range(7)]
    assert places.tolist() == [row.index(max(row)) + start for row, start in zip(products, starts, strict=True)]
    assert not places.requires_grad
    weights = torch.arange(1.0, 8.0, dtype=torch.float64)
    values = [(a * weights).sum() + (b * weights.flip(0)).sum() for a, b in ((sums, largest), expected)]
    gradients = [torch.autograd.grad(value, (x, y, scale)) for value in values]
    torch.testing.assert_close(*gradients, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("weights", ["alike", "different"])
def test_gradients_computed_with_the_values_are_the_same(weights):
    x, y, scale = made()

    def part(rows, anchors, whole):
        return [(scale * anchors[0] @ whole[0].T).exp().sum(1)]

    given = torch.arange(7.0, dtype=torch.float64) if weights == "different" else torch.full((7,), 0.25).double()
    gradients = []
    for at_once in (False, True):
        (value,) = in_tiles(part, (x,), (y,), tiles_of_rows(7, 3), [scale], at_once=at_once)
        gradients.append(torch.autograd.grad((value * given).sum(), (x, y, scale)))
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)


def test_tiles_can_be_differentiated_again():
    x, y, scale = made()

    def value(rows):
        def part(tile, anchors, whole):
            return [(scale * anchors[0] @ whole[0].T).exp().sum(1)]

        return in_tiles(part, (rows,), (y,), tiles_of_rows(7, 2), [scale])[0].sum()

    assert torch.autograd.gradgradcheck(value, x)
    hessian = torch.func.hessian(value)(x.detach())
    torch.testing.assert_close(hessian, torch.autograd.functional.hessian(value, x.detach()))


def test_no_tile_is_kept_for_the_backward_pass():
    x, y, scale = made(64, 64)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):
        values = in_tiles(of_a_tile(scale), (x,), (y,), tiles_of_rows(64, 8), [scale], values=2)
    assert max(saved) == x.numel()  # a tile has 8 x 64 entries
    assert [len(value) for value in values] == [64, 64, 64]


def test_slices_stop_at_the_ends():
    assert tiles_of_rows(7, 3) == [slice(0, 3), slice(3, 6), slice(6, 7)]
    assert tiles_of_rows(0, 3) == [slice(0, 0)]
    assert tiles_of_rows(10, 3, [2, 4, 9, 10]) == [slice(0, 4), slice(4, 9), slice(9, 10)]
    assert tiles_of_rows(0, 3, []) == [slice(0, 0)]


def test_a_size_is_chosen_from_the_entries():
    cpu = torch.device("cpu")
    assert rows_per_tile(5, 10, 10, cpu) == 5
    assert rows_per_tile(None, 1024, 2048, cpu) is None
    assert rows_per_tile(None, 1024, 2049, cpu) == 256
    assert rows_per_tile(None, 64, 1 << 22, cpu) == 8  # the least, though one row has as many entries as a tile
    assert rows_per_tile(None, 1024, 2049, torch.device("cuda")) is None


def test_parts_are_computed_again_in_the_backward_pass():
    x = torch.arange(10.0, dtype=torch.float64, requires_grad=True)
    calls = []

    def squares(part):
        calls.append(len(part))
        return part.square() * part

    found = torch.cat(in_parts(squares, 4, x))
    assert calls == [4, 4, 2]
    (gradient,) = torch.autograd.grad(found.sum(), x)
    assert len(calls) == 6
    assert gradient.tolist() == [3 * number**2 for number in range(10)]
    with torch.no_grad():
        assert len(in_parts(squares, 4, x)) == 3
