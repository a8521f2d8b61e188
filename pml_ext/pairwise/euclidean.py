"""Euclidean distances that are right between near points too."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_NEAR = 0.2  # nearer pairs are subtracted, not multiplied: in float32 a product knows d^2 to 1e-7
_CHUNK = 1 << 22  # numbers subtracted at a time


def euclidean_distances(x: Tensor, references: Tensor | None = None) -> Tensor:
    """Distances between rows of about unit length: one matrix product, and differences where that is inexact.

    Equal rows have distance 0 with gradient 0. The gradient is that along the sphere, as what comes before
    (:func:`pml_ext.pairwise.normalize`) lets through.

    *Cost:* one product of ``B x D x R`` forward and one backward (two with references), and ``O(D)`` for each pair
    nearer than 0.2.

    Args:
        x: ``[B, D]``, normalised rows.
        references: ``[R, D]``, or None for ``x`` itself.

    Returns:
        ``[B, R]`` or ``[B, B]``.
    """
    found: Tensor = _EuclideanDistances.apply(x, references)  # type: ignore[no-untyped-call]
    return found


class _EuclideanDistances(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, references: Tensor | None) -> Tensor:
        y = x if references is None else references
        squares = x.square().sum(1)
        product = x @ y.T
        squared = product.mul_(-2).add_(squares[:, None]).add_(squares if y is x else y.square().sum(1))
        rows, columns = torch.where(squared < _NEAR**2)
        step = max(1, _CHUNK // x.shape[1])
        near = [(x[rows[i : i + step]] - y[columns[i : i + step]]).square().sum(1) for i in range(0, len(rows), step)]
        distances = squared.clamp_(min=0)
        if near:
            distances.index_put_((rows, columns), torch.cat(near))
        distances.sqrt_()
        ctx.save_for_backward(x, references, distances)
        return distances

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:  # type: ignore[override]
        x, references, distances = ctx.saved_tensors
        if torch.is_grad_enabled():
            raise RuntimeError("euclidean_distances can be differentiated once")
        weights = torch.where(distances > 0, grad / distances, 0).neg_()
        if references is None:
            return (weights + weights.T) @ x, None
        wanted_x, wanted_references = ctx.needs_input_grad
        return weights @ references if wanted_x else None, weights.T @ x if wanted_references else None
