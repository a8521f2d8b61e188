"""Numbers in place of masked values, and constants that are made once."""

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from pml_ext.pairwise import fill


def test_values_outside_of_a_mask_are_a_number():
    values = torch.tensor([[1.0, torch.nan], [3.0, 4.0]], dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True, False], [False, True]])
    filled = fill.fill_outside(values, mask, -2)
    assert filled.tolist() == [[1.0, -2.0], [-2.0, 4.0]]
    filled.sum().backward()
    assert values.grad.tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_values_are_zero_where_others_are_at_most_a_limit():
    values = torch.tensor([torch.inf, torch.nan, 3.0, 4.0])
    others = torch.tensor([-1.0, 0.5, 0.6, torch.nan])
    assert fill.zero_at_most(values, others, 0.5).tolist() == [0.0, 0.0, 3.0, 4.0]


def test_zeros_have_derivatives():
    others = torch.tensor([-1.0, 0.5, 0.7, 2.0], dtype=torch.float64)
    values = torch.randn(4, dtype=torch.float64, requires_grad=True)

    def kept(values):
        return fill.zero_at_most(values.exp(), others, 0.6)

    assert gradcheck(kept, values, check_forward_ad=True)
    assert gradgradcheck(kept, values, check_fwd_over_rev=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_constant_is_made_once_for_each_dtype(dtype):
    like = torch.zeros(3, dtype=dtype)
    made = fill.constant(0.123, like)
    assert (made.item(), made.dtype, made.shape) == (pytest.approx(0.123), dtype, ())
    assert fill.constant(0.123, like) is made


def test_several_constants_are_numbers_of_matrices():
    like = torch.zeros(3, dtype=torch.float64)
    made = fill.constant((0.25, -torch.inf), like)
    assert (made.tolist(), made.dtype) == ([[[0.25]], [[-torch.inf]]], torch.float64)
    assert fill.constant((0.25, -torch.inf), like) is made


def test_a_scaled_product():
    values = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    column = torch.randn(3, 1, dtype=torch.float64, requires_grad=True)
    assert torch.equal(fill.scaled_product(values, column, -0.5), -0.5 * values * column)
    counts = torch.tensor([[2, 0]], dtype=torch.uint8)
    assert fill.scaled_product(counts, torch.tensor(1.5, dtype=torch.float64), -1).tolist() == [[-3.0, 0.0]]
    assert gradgradcheck(lambda x, y: fill.scaled_product(x, y, 3.0), (values, column), check_fwd_over_rev=True)


def test_a_constant_does_not_outlive_a_transform_or_inference_mode():
    values = torch.tensor([1.0, 2.0])
    mask = torch.tensor([True, False])

    def filled(values):
        return fill.fill_outside(values, mask, 7.25).sum()

    assert torch.func.grad(filled)(values).tolist() == [1.0, 0.0]
    assert torch.func.vmap(torch.func.grad(filled))(values[None]).tolist() == [[1.0, 0.0]]
    with torch.inference_mode():
        assert fill.fill_outside(values, mask, 7.25).tolist() == [1.0, 7.25]
    fresh = fill.constant(7.25, values)
    assert not fresh.is_inference()
    assert torch.func.grad(filled)(values).tolist() == [1.0, 0.0]
    tracked = values.clone().requires_grad_()
    (tracked * fresh).sum().backward()
    assert tracked.grad.tolist() == [7.25, 7.25]


def test_row_numbers_are_made_once_for_batches_of_one_size():
    batch = torch.zeros(3, 2)
    made = fill.row_numbers(batch)
    assert (made.tolist(), made.dtype) == ([0, 1, 2], torch.int64)
    assert fill.row_numbers(torch.ones(3, dtype=torch.float64)) is made
    assert fill.row_numbers(torch.zeros(5)).tolist() == [0, 1, 2, 3, 4]
    assert fill.row_numbers(batch).tolist() == [0, 1, 2]


def test_row_numbers_do_not_outlive_a_transform_or_inference_mode():
    def first_rows(values):
        return values[fill.row_numbers(values)[:2]].sum()

    values = torch.ones(4)
    assert torch.func.vmap(torch.func.grad(first_rows))(values[None]).tolist() == [[1.0, 1.0, 0.0, 0.0]]
    with torch.inference_mode():
        assert first_rows(values) == 2
    assert not fill.row_numbers(values).is_inference()
    tracked = values.clone().requires_grad_()
    first_rows(tracked).backward()
    assert tracked.grad.tolist() == [1.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize("floats", [True, False])
def test_masks_of_both_forms_choose_the_same_values(floats, monkeypatch):
    monkeypatch.setattr(fill, "_SMALL", 3 if floats else 4)
    values = torch.tensor([[1.0, -2.0], [3.0, 1e30]])
    mask = torch.tensor([[True, False], [False, True]])
    form = fill.indicators(mask, values)
    assert (form.dtype, fill.prefers_floats(values)) == (torch.float32 if floats else torch.bool, floats)
    assert fill.zero_outside(values, form).tolist() == [[1.0, 0.0], [0.0, values[1, 1].item()]]
    assert torch.equal(fill.fill_outside(values, form, -1e38), torch.where(mask, values, -1e38))
    assert torch.equal(
        fill.fill_outside(values, form, (2, -3)), torch.stack([torch.where(mask, values, n) for n in (2, -3)])
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_of_shares_are_never_denormal(dtype, monkeypatch):
    monkeypatch.setattr(fill, "_SMALL", 0)
    precision = torch.finfo(dtype)
    exponents = torch.linspace(math.log(precision.tiny) - 20, 0, 500, dtype=dtype)
    shares = fill.without_tiny(torch.softmax(exponents, 0))
    weights = fill.weights_of_shares(torch.cat([exponents.exp(), -exponents.exp()]), shares)
    products = (shares[:, None] * weights).abs()
    assert products[products > 0].min() >= precision.tiny
    assert shares.sum() == pytest.approx(1)
    assert fill.without_tiny(torch.tensor([torch.nan, 1.0], dtype=dtype)).isnan().tolist() == [True, False]
    assert fill.weights_of_shares(torch.tensor([torch.nan, 1.0], dtype=dtype), shares).isnan().tolist() == [True, False]
