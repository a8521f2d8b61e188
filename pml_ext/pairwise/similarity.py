"""Normalization and similarity matrices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .transforms import transformed


def normalize(x: Tensor, eps: float = 1e-12) -> Tensor:
    r"""L2-normalized rows, :math:`y = x / \max(|x|, \epsilon)`.

    The gradient is :math:`(g - y \, y^T g) / |x|`, in three passes where autograd takes seven: half of the time of a
    small batch. It can be differentiated again. Under torch.func, in forward mode and compiled it is autograd's.

    Args:
        x: ``[B, D]``.
        eps: the least length divided by. A row of zeros stays zero and gets gradient zero (the quotient's would be
            1/eps).

    Returns:
        ``[B, D]``.
    """
    if transformed() or torch.compiler.is_compiling():
        return _normalized(x, eps)[0]
    rows: Tensor = _Normalize.apply(x, eps)  # type: ignore[no-untyped-call]
    return rows


def _normalized(x: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """The rows, their lengths ``[B, 1]``, and what they were multiplied by ``[B, 1]``."""
    norm = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    inverse = torch.where(norm == 0, 0, norm.clamp(min=eps).reciprocal())
    return x * inverse, norm, inverse


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:  # type: ignore[override]
        rows, norm, inverse = _normalized(x, eps)
        ctx.save_for_backward(x, rows, inverse, norm >= eps)
        ctx.eps = eps
        return rows

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        x, rows, inverse, is_long = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradient is to be differentiated: from the input again
            rows, _, inverse = _normalized(x, ctx.eps)
        along = torch.linalg.vecdot(grad, rows, dim=1)[:, None] * is_long  # shorter rows are divided by a constant
        return torch.addcmul(grad, rows, along, value=-1) * inverse, None


def gram(x: Tensor) -> Tensor:
    """``x @ x.T``, whose backward takes one matrix product instead of two. Can be differentiated repeatedly.

    Under torch.func and in forward mode it is the product itself.

    Args:
        x: ``[B, D]``.

    Returns:
        ``[B, B]``, symmetric.
    """
    if transformed():
        return x @ x.T
    product: Tensor = _Gram.apply(x)  # type: ignore[no-untyped-call]
    return product


class _Gram(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x)
        return x @ x.T

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        product: Tensor = (grad + grad.T) @ x
        return product


def cosine_similarity(x: Tensor, references: Tensor | None = None) -> Tensor:
    """Cosines of the angles between rows.

    Args:
        x: ``[B, D]``.
        references: ``[R, D]``, or None for ``x`` itself.

    Returns:
        ``[B, R]`` or ``[B, B]``.
    """
    x = normalize(x)
    return gram(x) if references is None else x @ normalize(references).T
