"""Normalization and similarity matrices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .transforms import transformed


def normalize(x: Tensor, eps: float = 1e-12) -> Tensor:
    """L2-normalized rows, ``x / max(|x|, eps)``.

    Args:
        x: ``[B, D]``.
        eps: the least length divided by. A row of zeros stays zero and gets gradient zero (the quotient's would be
            1/eps).

    Returns:
        ``[B, D]``.
    """
    norm = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    return x * torch.where(norm == 0, 0, norm.clamp(min=eps).reciprocal())


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
