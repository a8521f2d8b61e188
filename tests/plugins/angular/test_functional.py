"""The equations of angular losses on matrices, against loops over coordinates."""

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from pml_ext.losses.classes import class_members
from pml_ext_angular import functional

LABELS = torch.tensor([0, 0, 1, 1, 1, 2])
PAIRS = torch.tensor([0, 1, 2, 3, 4, 4]), torch.tensor([1, 0, 4, 2, 2, 3])


def points(count=6, size=4, unit=True):
    x = torch.randn(count, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return torch.nn.functional.normalize(x) if unit else x


def negatives_of(anchor):
    return [n for n in range(len(LABELS)) if LABELS[n] != LABELS[anchor]]


def between_of(similarity):
    """The products of distinct partners, and each partner's row in them."""

    def between(partners):
        used, rows = torch.unique(partners, return_inverse=True)
        return similarity[used], rows

    return between


def log_sums(x, t):
    """The logarithms of the sums in Eq. (8)."""
    rows = []
    for a, p in zip(*(index.tolist() for index in PAIRS), strict=True):
        exponents = [4 * t * (x[a] + x[p]) @ x[n] - 2 * (1 + t) * x[a] @ x[p] for n in negatives_of(a)]
        rows.append(sum(map(torch.exp, exponents)).log())
    return torch.stack(rows)


def test_sums_of_pairs_are_those_of_a_loop():
    x = points().requires_grad_()
    mask = LABELS[:, None] != LABELS
    found = functional.log_sums_of_pairs(x @ x.T, mask, *PAIRS)
    rows = []
    for a, p in zip(*(index.tolist() for index in PAIRS), strict=True):
        rows.append(sum(torch.exp(x[a] @ x[n] - x[a] @ x[p]) for n in negatives_of(a)).log())
    expected = torch.stack(rows)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(*(torch.autograd.grad(each.square().sum(), x)[0] for each in (found, expected)))


def test_sums_of_pairs_have_derivatives_of_any_order_and_mode():
    similarity = (points() @ points().T).requires_grad_()
    mask = LABELS[:, None] != LABELS

    def compute(matrix):
        return functional.log_sums_of_pairs(matrix, mask, *PAIRS)

    assert gradcheck(compute, similarity, check_forward_ad=True)
    assert gradgradcheck(compute, similarity)


@pytest.mark.parametrize("entries", [1 << 23, 7])
def test_sums_of_rows_are_those_of_a_loop(monkeypatch, entries):
    monkeypatch.setattr(functional, "MAX_ENTRIES", entries)  # one pair at a time
    x = points().requires_grad_()
    similarity = x @ x.T
    mask = LABELS[:, None] != LABELS
    found = functional.log_sums_of_rows(similarity, between_of(similarity), mask, *PAIRS, 0.75)
    expected = log_sums(x, 0.75)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(*(torch.autograd.grad(each.square().sum(), x)[0] for each in (found, expected)))


@pytest.mark.parametrize("small", [0, 100])
@pytest.mark.parametrize("t", [1.0, functional.PRODUCT_SLOPE / 4])
def test_sums_of_products_are_those_of_a_loop(small, t):
    """By class, and in one group."""
    x = points().requires_grad_()
    mask = LABELS[:, None] != LABELS
    classes = class_members(LABELS, small=small)
    found = functional.log_sums_of_products(x @ x.T, mask, classes, *PAIRS, t)
    expected = log_sums(x, t)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(*(torch.autograd.grad(each.square().sum(), x)[0] for each in (found, expected)))


@pytest.mark.parametrize("small", [0, 100])
def test_sums_of_both_equations_are_those_of_each(small):
    """By class, and in one group."""
    x = points().requires_grad_()
    mask = LABELS[:, None] != LABELS
    classes = class_members(LABELS, small=small)
    found = functional.log_sums_of_products(x @ x.T, mask, classes, *PAIRS, 0.75, with_n_pair=True)
    n_pair = functional.log_sums_of_pairs(x @ x.T, mask, *PAIRS)
    expected = torch.stack((n_pair, log_sums(x, 0.75)))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(*(torch.autograd.grad(each.square().sum(), x)[0] for each in (found, expected)))


@pytest.mark.parametrize("with_n_pair", [False, True])
@pytest.mark.parametrize("small", [0, 100])
def test_products_have_derivatives_of_any_order_and_mode(small, with_n_pair):
    similarity = (points() @ points().T).requires_grad_()
    mask = LABELS[:, None] != LABELS
    classes = class_members(LABELS, small=small)

    def compute(matrix):
        return functional.log_sums_of_products(matrix, mask, classes, *PAIRS, 0.5, with_n_pair=with_n_pair)

    assert gradcheck(compute, similarity, check_forward_ad=True)
    assert gradgradcheck(compute, similarity)


SUMS = {
    "pairs": lambda matrix, mask: functional.log_sums_of_pairs(matrix, mask, *PAIRS),
    "rows": lambda matrix, mask: functional.log_sums_of_rows(matrix, between_of(matrix), mask, *PAIRS, 1.0),
    "products": lambda matrix, mask: functional.log_sums_of_products(matrix, mask, None, *PAIRS, 4.0),
    "products by class": lambda matrix, mask: functional.log_sums_of_products(
        matrix, mask, class_members(LABELS, small=0), *PAIRS, 0.125
    ),
    "products with N-pair": lambda matrix, mask: functional.log_sums_of_products(
        matrix, mask, None, *PAIRS, 1.0, with_n_pair=True
    ),
}


@pytest.mark.parametrize("sums", SUMS.values(), ids=SUMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pairs_without_negatives_have_no_gradient(sums, dtype):
    """Neither a first nor a second one; the loss is the logarithm of 1."""
    similarity = (points() @ points().T).to(dtype).requires_grad_()
    found = sums(similarity, torch.zeros(6, 6, dtype=torch.bool))
    assert (found < -1e36).all()
    loss = torch.nn.functional.softplus(found).sum()
    assert loss == 0
    (gradient,) = torch.autograd.grad(loss, similarity, create_graph=True)
    assert gradient.tolist() == torch.zeros(6, 6).tolist()
    assert not torch.autograd.grad(gradient.square().sum() + gradient.sum(), similarity)[0].any()


def test_sides_and_angles_are_those_of_the_triangle():
    a, p, n = points(3, unit=False)
    center = (a + p) / 2
    squared = [each @ each for each in (a, p, n)]
    ap, nc = functional.squared_sides(*squared, a @ p, a @ n, p @ n)
    assert ap.item() == pytest.approx((a - p).square().sum().item())
    assert nc.item() == pytest.approx((n - center).square().sum().item())
    angle = math.degrees(math.atan((a - p).norm() / (2 * (n - center).norm())))
    assert functional.angle_at_negative(ap, nc).item() == pytest.approx(angle)
    assert functional.angle_at_negative(torch.tensor(1.0), torch.tensor(-1e-9)) == 90  # by rounding below 0
    assert functional.squared_tangent(60) == pytest.approx(3)
    for alpha in (20.0, 60.0):
        wanted = max(0.0, ap.item() - 4 * math.tan(math.radians(alpha)) ** 2 * nc.item())
        assert functional.hinge(ap, nc, alpha=alpha).item() == pytest.approx(wanted)


@pytest.mark.parametrize("entries", [1 << 23, 7])
def test_hinges_are_summed_over_the_negatives(monkeypatch, entries):
    monkeypatch.setattr(functional, "MAX_ENTRIES", entries)
    x = points(unit=False)
    similarity = x @ x.T
    squares = x.square().sum(1)
    mask = LABELS[:, None] != LABELS
    found = functional.hinge_sums(PAIRS, similarity, between_of(similarity), (squares, squares), mask, alpha=25.0)
    t = math.tan(math.radians(25)) ** 2
    for value, a, p in zip(found.tolist(), *(index.tolist() for index in PAIRS), strict=True):
        hinges = [
            max(0.0, ((x[a] - x[p]).square().sum() - 4 * t * (x[n] - (x[a] + x[p]) / 2).square().sum()).item())
            for n in negatives_of(a)
        ]
        assert value == pytest.approx(sum(hinges))
    assert found.max() > 0
