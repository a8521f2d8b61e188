"""Numbers that are near, against float64 loops."""

import itertools
import math

import pytest
import torch

import pml_ext

from .made_up import B


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
    names = ["37", "4", "40.5"]
    relation = pml_ext.Near.of_classes(names, within=4, graded=True)
    labels = torch.tensor([0, 2, 1])
    numbers = torch.tensor([37, 40.5, 4])
    expected = pml_ext.Near(4, graded=True).matrix(numbers, numbers)
    torch.testing.assert_close(relation.matrix(labels, labels), expected)
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
