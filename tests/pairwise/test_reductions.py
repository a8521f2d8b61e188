"""Masked reductions of rows, against slow sums."""

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from pml_ext import pairwise


class TestReductions:
    mask = torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0], [0, 1, 0, 0]], dtype=torch.bool)
    values = torch.tensor([[1.0, -2.0, 9.0, 4.0], [5.0, 6.0, 7.0, 8.0], [9.0, 3.0, 9.0, 9.0]], dtype=torch.float64)

    def test_sums_means_and_extremes_equal_loops(self):
        assert pairwise.masked_sum(self.values, self.mask).tolist() == [3.0, 0.0, 3.0]
        assert pairwise.masked_mean(self.values, self.mask).tolist() == [1.0, 0.0, 3.0]
        assert pairwise.masked_max(self.values, self.mask).tolist() == [4.0, -math.inf, 3.0]
        assert pairwise.masked_min(self.values, self.mask).tolist() == [-2.0, math.inf, 3.0]

    @pytest.mark.parametrize("log_scale", [0.0, math.log(0.25), -math.inf, torch.tensor([1.5, 2.0, -1.0])])
    @pytest.mark.parametrize(("slope", "center"), [(1.0, 0.0), (-2.0, 0.5)])
    def test_log_sum_exp_equals_a_loop(self, log_scale, slope, center):
        values = self.values.clone().requires_grad_()
        scale = torch.as_tensor(log_scale, dtype=torch.float64).expand(3)
        sums = [
            sum(torch.exp(slope * (v - center)) for v, kept in zip(row, kept_row, strict=True) if kept)
            for row, kept_row in zip(values, self.mask.tolist(), strict=True)
        ]
        expected = torch.stack([torch.log(1 + scale[i].exp() * total) for i, total in enumerate(sums)])

        def compute(matrix):
            sums = pairwise.log_sum_exp(matrix, self.mask, slope=slope, center=center)
            return pairwise.log_one_plus_exp(sums + scale)

        found = compute(values)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
        assert found[1] == 0
        gradients = [torch.autograd.grad(each[::2].sum(), values)[0] for each in (found, expected)]
        torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-14)
        assert gradcheck(compute, values, check_forward_ad=True)
        assert gradgradcheck(compute, values, check_fwd_over_rev=True)

    @pytest.mark.parametrize("log_factors", [None, math.log(0.25), -math.inf, torch.arange(-4.0, 5).view(3, 3)])
    def test_several_sums_are_stacked_as_rows(self, log_factors):
        masks = torch.stack((self.mask, ~self.mask, torch.ones_like(self.mask)))
        slopes = (-2.0, 1.0, 3.0)
        centers = (0.5, 0.0, -1.0)
        offsets = torch.as_tensor(0.0 if log_factors is None else log_factors, dtype=torch.float64).expand(3, 3)

        def together(matrix):
            return pairwise.log_one_plus_sums(matrix, masks, slopes, centers, log_factors)

        def one_by_one(matrix):
            rows = []
            for mask, slope, center, offset in zip(masks, slopes, centers, offsets, strict=True):
                log_sums = pairwise.log_sum_exp(matrix, mask, slope=slope, center=center)
                rows.append(pairwise.log_one_plus_exp(log_sums + offset))
            return torch.stack(rows)

        values = self.values.clone().requires_grad_()
        torch.testing.assert_close(together(values), one_by_one(values), rtol=1e-13, atol=0)
        assert together(values)[0, 1] == 0  # no entries
        upstream = torch.arange(1.0, 10, dtype=torch.float64).view(3, 3)
        gradients = [torch.autograd.grad(f(values), values, upstream)[0] for f in (together, one_by_one)]
        torch.testing.assert_close(*gradients, rtol=1e-13, atol=1e-15)
        assert gradcheck(together, values, check_forward_ad=True)
        assert gradgradcheck(together, values, check_fwd_over_rev=True)

    @pytest.mark.filterwarnings("ignore:Anomaly Detection")
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_log_sum_exp_far_out(self, dtype):
        values = torch.tensor([[1e4, -1e4], [-1e4, -2e4], [1e5, 1e5]], dtype=dtype, requires_grad=True)
        mask = torch.tensor([[True, True], [True, True], [False, True]])
        found = pairwise.log_one_plus_exp(pairwise.log_sum_exp(values, mask))
        assert found.tolist() == [1e4, 0.0, 1e5]
        with torch.autograd.detect_anomaly(check_nan=True):
            found.sum().backward()
        expected = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]], dtype=dtype)
        torch.testing.assert_close(values.grad, expected, rtol=0, atol=1e-30)

    def test_a_row_without_pairs_has_no_gradient(self):
        values = self.values.clone().requires_grad_()
        found = pairwise.log_sum_exp(values, torch.zeros_like(self.mask), slope=-2.0, center=1.5)
        assert (found < -1e300).all()
        assert not torch.autograd.grad(found.sum(), values)[0].any()

    def test_small_sums_keep_their_digits(self):
        assert pairwise.log_one_plus_exp(torch.tensor(-30.0)).item() == pytest.approx(math.exp(-30), rel=1e-5, abs=0)

    def test_bounded_exp_is_finite_and_increasing(self):
        x = torch.tensor([-3.0, 0.0, 60.0, 1e5], requires_grad=True)
        y = pairwise.exp_bounded(x)
        torch.testing.assert_close(y[:3], x[:3].exp())
        assert y.isfinite().all()
        assert y[3] > y[2]
        y.sum().backward()
        torch.testing.assert_close(x.grad[:3], x[:3].detach().exp())
        assert x.grad.isfinite().all()
        limit = 0.75 * math.log(torch.finfo(torch.float32).max)
        assert x.grad[3].item() == pytest.approx(math.exp(limit), rel=1e-4)


def pairs_of(size, dtype=torch.float64):
    """Similarities with ties, and masks with anchors that lack positives, negatives or both."""
    draw = torch.Generator().manual_seed(size)
    matrix = (torch.rand(size, size, generator=draw, dtype=dtype) * 40).round() / 20 - 1
    masks = torch.rand(2, size, size, generator=draw) < torch.tensor([0.1, 0.8]).view(2, 1, 1)
    masks[0, 0] = False
    masks[1, 1] = False
    masks[:, 2] = False
    return matrix, masks


@pytest.mark.parametrize("size", [12, 80])  # masks as booleans and as floats
@pytest.mark.parametrize("log_factors", [None, -0.5])
@pytest.mark.parametrize("epsilon", [0.1, 0.0, -0.2])
def test_sums_of_hard_pairs_need_no_masks(size, log_factors, epsilon):
    matrix, masks = pairs_of(size)
    matrix.requires_grad_()
    masks = pairwise.indicators(masks, matrix)
    arguments = ((-2.0, 100.0), (0.5, 1.0), log_factors)
    hard = pairwise.hard_pair_masks(matrix, masks, epsilon)
    expected = pairwise.log_one_plus_sums(matrix, hard, *arguments)
    found = pairwise.log_one_plus_hard_sums(matrix, masks, *arguments, epsilon)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    assert found[:, :3].count_nonzero() == 0
    slopes = [torch.autograd.grad(each.sum(), matrix, create_graph=True)[0] for each in (found, expected)]
    torch.testing.assert_close(*slopes, rtol=1e-11, atol=1e-14)
    curvatures = [torch.autograd.grad(each.square().sum(), matrix)[0] for each in slopes]
    torch.testing.assert_close(*curvatures, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("size", [12, 80])
def test_sums_of_hard_pairs_show_a_nan(size):
    matrix, masks = pairs_of(size, torch.float32)
    matrix[5, masks[1, 5].nonzero()[0]] = torch.nan
    terms = pairwise.log_one_plus_hard_sums(
        matrix, pairwise.indicators(masks, matrix), (-2.0, 100.0), (0.5, 1.0), None, 0.1
    )
    assert terms[:, 5].isnan().all()
    assert terms[:, 6:].isfinite().all()


@pytest.mark.parametrize("size", [12, 400])  # booleans, and a product of matrices
def test_sums_inside_several_masks_are_equal(size):
    matrix, masks = pairs_of(size)
    expected = torch.stack([pairwise.masked_sum(matrix, mask) for mask in masks])
    found = pairwise.masked_sums(matrix, pairwise.indicators(masks, matrix))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
