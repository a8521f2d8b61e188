"""Regularizers that spread embeddings, against loops."""

import math

import pytest
import torch
from pytorch_metric_learning import losses

from pml_ext import EntropyRegularizer, GlobalOrthogonalRegularizer

from .points import RAGGED, batch


def test_entropy_regularizer_equals_a_slow_loop():
    x, y = batch(RAGGED)
    points = [p / p.norm() for p in x.detach()]
    nearest = [min((p - q).norm().item() for j, q in enumerate(points) if j != i) for i, p in enumerate(points)]
    expected = -sum(math.log(d) for d in nearest) / len(nearest)
    assert EntropyRegularizer()(x).item() == pytest.approx(expected, rel=1e-12)
    found = losses.ContrastiveLoss(embedding_regularizer=EntropyRegularizer(), embedding_reg_weight=0.5)(x, y)
    torch.testing.assert_close(found, losses.ContrastiveLoss()(x, y) + 0.5 * expected)  # PML's slot


def test_entropy_of_equal_embeddings_and_of_one():
    x = torch.ones(3, 4).requires_grad_()
    value = EntropyRegularizer(least_distance=1e-3)(x)
    assert value.item() == pytest.approx(-math.log(1e-3))
    value.backward()
    assert (x.grad == 0).all()
    EntropyRegularizer()(torch.ones(1, 4).requires_grad_()).backward()


def test_global_orthogonal_against_a_loop():
    x, y = batch(RAGGED)
    points = [p / p.norm() for p in x.detach()]
    s = [float(points[i] @ points[j]) for i in range(len(y)) for j in range(len(y)) if y[i] != y[j]]
    expected = (sum(s) / len(s)) ** 2 + max(0, sum(v * v for v in s) / len(s) - 1 / x.shape[1])
    assert GlobalOrthogonalRegularizer()(x, y).item() == pytest.approx(expected, rel=1e-12)
    assert GlobalOrthogonalRegularizer()(x, torch.zeros_like(y)).item() == 0


def test_short_rows_of_float16_have_a_bounded_gradient():
    generator = torch.Generator().manual_seed(0)
    directions = torch.nn.functional.normalize(torch.randn(16, 4, generator=generator))
    x = (directions * 10 ** (-7 * torch.rand(16, 1, generator=generator))).half().requires_grad_()
    (gradient,) = torch.autograd.grad(EntropyRegularizer()(x), x)
    assert gradient.isfinite().all()
    assert gradient.norm(dim=1).max() > 1
