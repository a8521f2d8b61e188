"""Masked reductions over the rows of a matrix; defined, with finite gradients, where a row's mask is empty."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .transforms import transformed

# Masks enter as factors 0 and 1: on a CPU, torch.where and masked_fill take ten times as long as a product. There, too,
# fresh memory costs more than arithmetic, so what can be done in place is.


def masked_sum(values: Tensor, mask: Tensor) -> Tensor:
    """Return the sum of each row's masked values, ``[B]``, 0 where there are none; values ``[B, R]`` are finite."""
    return (values * mask.to(values.dtype)).sum(1)


def masked_mean(values: Tensor, mask: Tensor, count: Tensor | None = None) -> Tensor:
    """Return the mean of each row's masked values, ``[B]``, 0 where there are none; ``count`` is ``mask.sum(1)``."""
    count = mask.sum(1) if count is None else count
    return masked_sum(values, mask) / count.clamp(min=1)


def masked_max(values: Tensor, mask: Tensor) -> Tensor:
    """Return the greatest masked value of each row, ``[B]``, minus infinity where there is none; values are finite."""
    if transformed():  # vmap takes no mask in place of the values
        return values.masked_fill(~mask, -torch.inf).amax(1)
    far = torch.finfo(values.dtype).max / 4
    greatest = mask.to(values.dtype).sub_(1).mul_(far).add_(values).amax(1)
    return greatest.masked_fill(greatest < -far / 2, -torch.inf)


def masked_min(values: Tensor, mask: Tensor) -> Tensor:
    """Return the least masked value of each row, ``[B]``, infinity where there is none; see :func:`masked_max`."""
    if transformed():
        return values.masked_fill(~mask, torch.inf).amin(1)
    far = torch.finfo(values.dtype).max / 4
    least = mask.to(values.dtype).sub_(1).mul_(-far).add_(values).amin(1)
    return least.masked_fill(least > far / 2, torch.inf)


def log_one_plus_sum_exp(
    matrix: Tensor, mask: Tensor, *, slope: float = 1.0, center: float = 0.0, log_scale: Tensor | float = 0.0
) -> Tensor:
    r"""Return :math:`\log(1 + \delta \sum_j \exp(k (s_{ij} - c)))` over each row's masked entries, stably.

    The gradient is written in the same pass. It can be differentiated again. Under torch.func and in forward mode it is
    written out, of any order.

    Args:
        matrix: :math:`s`, finite, ``[B, R]``; the exponents may be far beyond the range of ``exp``.
        mask: boolean, ``[B, R]``.
        slope: :math:`k`.
        center: :math:`c`.
        log_scale: :math:`\log \delta`, a number or ``[B]``, without gradient; minus infinity is allowed.

    Returns:
        ``[B]``, 0 for a row without entries.
    """
    if transformed():
        exponents = ((matrix - center) * slope).masked_fill(~mask, torch.finfo(matrix.dtype).min / 4)
        return torch.nn.functional.softplus(exponents.logsumexp(1) + log_scale, threshold=50)
    value: Tensor = _LogOnePlusSumExp.apply(matrix, mask, slope, center, log_scale)  # type: ignore[no-untyped-call]
    return value


class _LogOnePlusSumExp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, matrix: Tensor, mask: Tensor, slope: float, center: float, log_scale: Tensor | float
    ) -> Tensor:
        exponents = (matrix - center).mul_(slope)
        greatest = masked_max(exponents, mask)
        shift = greatest.masked_fill(greatest == -torch.inf, 0)
        # The first factor keeps exp from overflowing outside the mask, the second drops its 1; exp is slow where its
        # result is denormal.
        factor = mask.to(matrix.dtype)
        lowest = 0.9 * math.log(torch.finfo(matrix.dtype).tiny)
        terms = exponents.sub_(shift[:, None]).mul_(factor).clamp_(min=lowest).exp_().mul_(factor)
        scaled = greatest + log_scale
        top = scaled.clamp(min=0)
        scale = (scaled - top).exp()
        total = torch.expm1(-top) + scale * terms.sum(1)
        ctx.save_for_backward(matrix, mask, terms, slope * scale / (1 + total))
        ctx.settings = {"slope": slope, "center": center, "log_scale": log_scale}
        return top + torch.log1p(total)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:  # type: ignore[override]
        matrix, mask, terms, weight = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradient is to be differentiated: written out from the inputs
            value = log_one_plus_sum_exp(matrix, mask, **ctx.settings)
            factor, slope = mask.to(matrix.dtype), ctx.settings["slope"]
            exponents = (slope * (matrix - ctx.settings["center"])) * factor
            terms = (exponents + (ctx.settings["log_scale"] - value)[:, None]).exp() * factor
            weight = slope
        return terms * (grad * weight)[:, None], None, None, None, None


def exp_bounded(x: Tensor) -> Tensor:
    """Return ``exp(x)``, continued as a straight line with equal slope from 66 (float64: 532) on: finite."""
    limit = 0.75 * math.log(torch.finfo(x.dtype).max)
    return x.clamp(max=limit).exp() * (1 + (x - limit).clamp(min=0))
