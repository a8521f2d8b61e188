"""Euclidean distances that are accurate for near points too."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .transforms import transformed

_NEAR = 0.2  # nearer pairs use differences: in float32, d^2 by a matrix product has an error of 1e-7
_CHUNK = 1 << 22  # entries of differences held at a time


def euclidean_distances(x: Tensor, references: Tensor | None = None) -> Tensor:
    """Return distances between rows of about unit length, by one matrix product; of near pairs, by differences.

    Equal rows have distance 0 with gradient 0. The gradient omits a multiple of the row, which :func:`normalize`
    removes anyway. Higher derivatives and forward mode work; ``vmap`` does not, since the choice of near pairs depends
    on the values. *Cost:* one product of ``B x D x R`` forward and one backward (two with references), and ``O(D)`` for
    each pair nearer than 0.2.

    ``x`` is ``[B, D]``, references ``[R, D]``, or None for ``x`` itself.
    """
    if transformed(x, x if references is None else references):
        return _written_out(x, references)
    distances: Tensor = _EuclideanDistances.apply(x, references)  # type: ignore[no-untyped-call]
    return distances


def _squared_distances(x: Tensor, y: Tensor) -> Tensor:
    if torch.compiler.is_compiling() and x.device.type != "mps":  # no shape may depend on which pairs are near
        return _squared_in_float64(x, y)
    squares, others = x.square().sum(1, keepdim=True), y.square().sum(1)
    if 4 * x.shape[1] <= min(len(x), len(y)):  # two columns more save a pass over the matrix
        one = torch.cat([x, squares, torch.ones_like(squares)], 1)
        squared = one @ torch.cat([-2 * y, y.new_ones(len(y), 1), others[:, None]], 1).T
    else:
        squared = torch.addmm(others, x, y.T, alpha=-2).add_(squares)
    rows, columns = torch.where(squared < _NEAR**2)  # also catches negative rounding errors
    step = max(1, _CHUNK // x.shape[1])
    near = [(x[rows[i : i + step]] - y[columns[i : i + step]]).square().sum(1) for i in range(0, len(rows), step)]
    if near:
        squared.index_put_((rows, columns), torch.cat(near))
    return squared


def _squared_in_float64(x: Tensor, y: Tensor) -> Tensor:
    """Return squared distances with an error of 1e-15; rows nearer than 1e-7 count as equal."""
    one, other = x.double(), y.double()
    squared = one.square().sum(1)[:, None] + other.square().sum(1) - 2 * one @ other.T
    return torch.where(squared < 1e-14, 0, squared).to(x.dtype)


def _written_out(x: Tensor, references: Tensor | None) -> Tensor:
    """Return the same values by plain operators, with the derivatives of ``-2 x @ y.T`` for the squares."""
    y = x if references is None else references
    fixed, product = x.detach(), x @ y.T
    squared = _squared_distances(fixed, fixed if y is x else y.detach()) + 2 * (product.detach() - product)
    zero = squared == 0
    return torch.where(zero, 0, torch.where(zero, 1, squared).sqrt())


class _EuclideanDistances(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, references: Tensor | None) -> Tensor:
        distances = _squared_distances(x, x if references is None else references).sqrt_()
        ctx.save_for_backward(x, references, distances)
        return distances

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:  # type: ignore[override]
        x, references, distances = ctx.saved_tensors
        if torch.is_grad_enabled():  # double backward: distances that are differentiable themselves
            distances = euclidean_distances(x, references)
            zero = distances == 0
            weights = torch.where(zero, 0, grad / torch.where(zero, 1, distances))
        else:
            weights = torch.where(distances > 0, grad / distances, 0)
        if references is None:
            return -((weights + weights.T) @ x), None
        wanted_x, wanted_references = ctx.needs_input_grad
        return -(weights @ references) if wanted_x else None, -(weights.T @ x) if wanted_references else None
