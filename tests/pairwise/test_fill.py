"""Numbers in place of masked values, and constants that are made once."""

import math

import pytest
import torch

from pml_ext.pairwise import fill


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_constant_is_made_once_for_each_dtype(dtype):
    like = torch.zeros(3, dtype=dtype)
    made = fill.constant(0.123, like)
    assert (made.item(), made.dtype, made.shape) == (pytest.approx(0.123), dtype, ())
    assert fill.constant(0.123, like) is made


def test_a_constant_does_not_outlive_its_transform():
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


def test_row_numbers_do_not_outlive_their_transform():
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
