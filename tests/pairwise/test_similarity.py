"""Normalization and distances, against torch's and slow loops."""

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

    def test_normalize_has_the_gradient_of_torchs(self):
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

    def test_shorter_rows_have_a_bounded_gradient(self):
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
    def test_distances_of_normalized_rows_are_exact(self):
        generator = torch.Generator().manual_seed(0)
        x, y = (torch.randn(rows, 5, generator=generator, dtype=torch.float64) for rows in (7, 4))
        y[0] = x[2] + 1e-3  # near
        y[1] = 4 * x[4]  # equal, once normalized
        x = pairwise.normalize(x)
        y = pairwise.normalize(y)
        expected = torch.stack([(row - other).norm() for row in x for other in y]).view(7, 4)
        torch.testing.assert_close(pairwise.euclidean_distances(x, y), expected, rtol=1e-12, atol=1e-15)
        assert pairwise.euclidean_distances(x, y)[4, 1] == 0
        assert torch.equal(pairwise.euclidean_distances(x).diagonal(), torch.zeros(7, dtype=torch.float64))

    @pytest.mark.parametrize("normalized", [True, False])
    def test_a_single_near_pair_among_rows_of_nan(self, normalized):
        x = torch.randn(6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        x = pairwise.normalize(x)
        x[1] = x[0]
        x[3:] = torch.nan
        x = x.to(torch.float32 if normalized else torch.float64)
        x[1, 1] += 1e-5
        found = pairwise.euclidean_distances(x, normalized=normalized)[0, 1]
        torch.testing.assert_close(found, (x[0] - x[1]).norm(), rtol=1e-6, atol=0)
