"""The shared pair functions, against slow forms written from their definitions."""

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from pml_ext import pairwise
from pml_ext.pairwise import similarity


class TestSimilarity:
    @pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
    def test_normalize_is_torchs_to_the_last_digit(self, dtype):
        angles = torch.arange(180.0).deg2rad()  # one of them 90 degrees: products near 0 show every digit
        x = torch.stack([2 * angles.cos(), angles.sin() / 2], dim=1).to(dtype)
        x = torch.cat([x, x * 1e-3])[:-1]
        in_full_precision = x.float() if dtype == torch.float16 else x
        expected = torch.nn.functional.normalize(in_full_precision).to(dtype)
        assert torch.equal(pairwise.normalize(x), expected)

    def test_normalize_has_the_gradient_of_torchs_down_to_a_length_of_a_millionth(self):
        draw = torch.Generator().manual_seed(0)
        x, weights = (torch.randn(5, 4, generator=draw, dtype=torch.float64) for _ in range(2))
        x *= torch.tensor([1e4, 1, 1e-3, 1e-5, 3e-6], dtype=torch.float64)[:, None]
        gradients = []
        for function in (pairwise.normalize, similarity._written_out, torch.nn.functional.normalize):
            z = x.clone().requires_grad_()
            gradients.append(torch.autograd.grad((function(z) * weights).sum(), z)[0])
        torch.testing.assert_close(gradients[0], gradients[2], rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(gradients[1], gradients[2], rtol=1e-10, atol=1e-12)
        z = x[:3].requires_grad_()
        assert gradcheck(pairwise.normalize, z / z.detach().norm(dim=1, keepdim=True), check_forward_ad=True)
        assert gradgradcheck(pairwise.normalize, z / z.detach().norm(dim=1, keepdim=True))

    def test_shorter_rows_have_the_gradient_of_that_length_and_a_row_of_zeros_has_none(self):
        x = torch.tensor([[3e-9, 4e-9], [3e-14, 4e-14], [0.0, 0.0]], dtype=torch.float64)
        weights = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
        for function in (pairwise.normalize, similarity._written_out):
            z = x.clone().requires_grad_()
            y = function(z)
            torch.testing.assert_close(y.detach(), torch.nn.functional.normalize(x))
            (gradient,) = torch.autograd.grad((y * weights).sum(), z)
            along = torch.tensor([1.0, 0.0], dtype=torch.float64) - 0.6 * torch.tensor([0.6, 0.8], dtype=torch.float64)
            torch.testing.assert_close(gradient[0], along * 1e6)  # the projection, by 1e-6 where it was 5e-9
            torch.testing.assert_close(gradient[1], weights[1] * 1e6)  # divided by a constant: no projection
            assert gradient[2].tolist() == [0.0, 0.0]


class TestEuclideanDistances:
    def test_of_normalized_rows(self):
        generator = torch.Generator().manual_seed(0)
        x, y = (torch.randn(rows, 5, generator=generator, dtype=torch.float64) for rows in (7, 4))
        y[0] = x[2] + 1e-3  # near
        y[1] = 4 * x[4]  # equal, once normalized
        x, y = pairwise.normalize(x), pairwise.normalize(y)
        expected = torch.stack([(row - other).norm() for row in x for other in y]).view(7, 4)
        torch.testing.assert_close(pairwise.euclidean_distances(x, y), expected, rtol=1e-12, atol=1e-15)
        assert pairwise.euclidean_distances(x, y)[4, 1] == 0
        assert torch.equal(pairwise.euclidean_distances(x).diagonal(), torch.zeros(7, dtype=torch.float64))


class TestPairMasks:
    def test_self_pairs_of_a_tuple_are_left_out_only_without_references(self):
        same = torch.tensor([0, 1])
        indices = (same, torch.tensor([0, 0]), same, torch.tensor([2, 1]))
        positives, negatives = pairwise.pair_masks(torch.empty(3, 3), None, indices)
        assert positives.nonzero().tolist() == [[1, 0]]
        assert negatives.nonzero().tolist() == [[0, 2]]
        positives, _ = pairwise.pair_masks(torch.empty(3, 3), None, indices, references=True)
        assert positives.nonzero().tolist() == [[0, 0], [1, 0]]

    def test_what_is_missing_is_named(self):
        with pytest.raises(ValueError, match=r"^labels must be given where no indices_tuple is"):
            pairwise.pair_masks(torch.empty(3, 3), None)
        with pytest.raises(ValueError, match=r"^ref_labels must be given"):
            pairwise.pair_masks(torch.empty(3, 3), torch.arange(3), references=True)
        with pytest.raises(ValueError, match=r"three index tensors .* or four .* got 2"):
            pairwise.pair_masks(torch.empty(3, 3), None, (torch.arange(1),) * 2)


def test_the_inequalities_of_hard_pairs_are_strict():
    similarity = torch.tensor([[1.0, 0.75, 0.5]])
    positives, negatives = torch.tensor([[False, True, False]]), torch.tensor([[False, False, True]])
    assert not any(mask.any() for mask in pairwise.hard_pair_masks(similarity, positives, negatives, 0.25))
    assert all(mask.any() for mask in pairwise.hard_pair_masks(similarity, positives, negatives, 0.26))


class TestReductions:
    mask = torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0], [0, 1, 0, 0]], dtype=torch.bool)
    values = torch.tensor([[1.0, -2.0, 9.0, 4.0], [5.0, 6.0, 7.0, 8.0], [9.0, 3.0, 9.0, 9.0]], dtype=torch.float64)

    def test_sums_means_and_extremes(self):
        assert pairwise.masked_sum(self.values, self.mask).tolist() == [3.0, 0.0, 3.0]
        assert pairwise.masked_mean(self.values, self.mask).tolist() == [1.0, 0.0, 3.0]
        assert pairwise.masked_max(self.values, self.mask).tolist() == [4.0, -math.inf, 3.0]
        assert pairwise.masked_min(self.values, self.mask).tolist() == [-2.0, math.inf, 3.0]

    @pytest.mark.parametrize("log_scale", [0.0, math.log(0.25), -math.inf, torch.tensor([1.5, 2.0, -1.0])])
    @pytest.mark.parametrize(("slope", "center"), [(1.0, 0.0), (-2.0, 0.5)])
    def test_log_sum_exp(self, log_scale, slope, center):
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

    def test_exp_bounded(self):
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


class TestBatch:
    @pytest.mark.parametrize(
        ("embeddings", "labels", "error", "text"),
        [
            (torch.ones(2, 2, dtype=torch.long), None, TypeError, r"floating point .* \(2, 2\) and dtype torch.int64"),
            (torch.ones(4), None, ValueError, r"two dimensions, \(batch size, embedding size\); got .* \(4,\)"),
            (torch.ones(4, 2), [0, 1, 0, 1], TypeError, r"labels .* integers of shape \(4,\).* got a list of length 4"),
            (torch.ones(4, 2), torch.ones(4), TypeError, r"of integers .* dtype torch.float32; type labels.long\(\)"),
            (torch.ones(4, 2), torch.arange(3), ValueError, r"shape \(4,\).* got a tensor of shape \(3,\)"),
        ],
    )
    def test_check_batch(self, embeddings, labels, error, text):
        with pytest.raises(error, match=text):
            pairwise.check_batch(embeddings, labels)

    def test_check_references(self):
        with pytest.raises(ValueError, match=r"ref_emb must have the embedding size of embeddings, 2; got .* \(3, 5\)"):
            pairwise.check_references(torch.ones(4, 2), torch.ones(3, 5), torch.arange(3))

    def test_full_precision(self):
        for given in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            wanted = torch.float64 if given == torch.float64 else torch.float32
            assert pairwise.to_full_precision(torch.ones(2, dtype=given)).dtype == wanted
        rows = torch.tensor([[1.0, 0.0], [0.0, 2.0**-10]]).half().requires_grad_()
        (gradient,) = torch.autograd.grad(pairwise.to_full_precision(rows, normalized=True).sum(), rows)
        assert gradient.tolist() == [[1, 1], [0.25, 0.25]]  # the second row counts as one of length 2^-8
        half = torch.ones(2, 2).half()
        first, second = pairwise.pair_to_full_precision(half, half)
        assert first is second
        assert pairwise.pair_to_full_precision(half, None)[1] is None
        first, second = pairwise.pair_to_full_precision(half, torch.ones(2, 2).double())
        assert first.dtype == second.dtype == torch.float64
