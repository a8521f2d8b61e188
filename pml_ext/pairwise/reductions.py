"""Masked reductions over the rows of a matrix; an empty mask gives a defined value and finite gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .batch import apply_or_plain
from .fill import constant, fill_outside, zero_at_most


def masked_sum(values: Tensor, mask: Tensor) -> Tensor:
    """Return the sum of each row's masked values, ``[B]``, 0 where there are none; values are ``[B, R]``."""
    return fill_outside(values, mask, 0).sum(1)


def masked_mean(values: Tensor, mask: Tensor, count: Tensor | None = None) -> Tensor:
    """Return the mean of each row's masked values, ``[B]``, 0 where there are none; ``count`` is ``mask.sum(1)``."""
    if count is None:
        count = mask.sum(1, dtype=values.dtype)
    return masked_sum(values, mask) / count.clamp(min=1)


def masked_max(values: Tensor, mask: Tensor, keepdim: bool = False) -> Tensor:
    """Return the greatest masked value of each row, ``[B]``, minus infinity where there is none.

    ``keepdim``: whether the result is a column, ``[B, 1]``.
    """
    return fill_outside(values, mask, -torch.inf).amax(1, keepdim=keepdim)


def masked_min(values: Tensor, mask: Tensor, keepdim: bool = False) -> Tensor:
    """Return the least masked value of each row, ``[B]``, infinity where there is none; see :func:`masked_max`."""
    return fill_outside(values, mask, torch.inf).amin(1, keepdim=keepdim)


def log_sum_exp(matrix: Tensor, mask: Tensor, *, slope: float = 1.0, center: float = 0.0) -> Tensor:
    r"""Return :math:`\log \sum_j \exp(k (s_{ij} - c))` over each row's masked entries; see :func:`log_sums_exp`."""
    return log_sums_exp(matrix, (mask, slope, center))


def log_sums_exp(matrix: Tensor, *sums: tuple[Tensor, float, float]) -> Tensor:
    r"""Return :math:`\log \sum_{j \in M_i} \exp(k (s_{ij} - c))` of each row, for several sums over one matrix.

    The backward pass writes one matrix for all sums, from each term's share of its sum, which the forward pass saved,
    and can be differentiated again. Under torch.func and in forward mode, plain operations give all derivatives.
    *Cost:* four passes for each sum forward, one or two backward.

    Args:
        matrix: :math:`s`, finite, ``[B, R]``; the exponents may be far beyond the range of ``exp``.
        sums: for each, the mask :math:`M`, boolean, ``[B, R]``, the slope :math:`k`, not 0, and the center :math:`c`.

    Returns:
        ``[S, B]``, a row for each of the S sums, or ``[B]`` for one sum; a row of the matrix without entries has a
        very low number, without gradient.
    """
    masks, slopes, centers = zip(*sums, strict=True)
    results: Tensor = apply_or_plain(_LogSumsExp, _written_out, matrix, slopes, centers, *masks)
    return results


def with_log_weights(matrix: Tensor, mask: Tensor, weights: Tensor | None, slope: float) -> Tensor:
    r"""Return a matrix with its exponentials :math:`e^{k s_{ij}}` multiplied by weights inside a mask.

    Without weights, return the matrix itself; ``weights``, ``[B, R]``, are above 0 in the mask.
    """
    if weights is None:
        return matrix
    return matrix + torch.where(mask, weights, 1).log() / slope


def log_one_plus_exp(x: Tensor) -> Tensor:
    r"""Return :math:`\log(1 + e^x)`, or x itself above 50, where float64 cannot tell the two apart."""
    return torch.nn.functional.softplus(x, threshold=50)


def _lowest(like: Tensor) -> float:
    """Return the finite value used as the logarithm of an empty sum."""
    return torch.finfo(like.dtype).min / 4


def _exponents(matrix: Tensor, slope: float, center: float) -> Tensor:
    """Return the exponents :math:`k (s_{ij} - c)`."""
    if slope == 1 and center == 0:
        return matrix
    return torch.rsub(matrix, -slope * center, alpha=-slope)  # one pass for k s - k c


def _exponents_inside(matrix: Tensor, mask: Tensor, slope: float, center: float) -> Tensor:
    """Return the exponents inside a mask, and a very low number outside."""
    return fill_outside(_exponents(matrix, slope, center), mask, _lowest(matrix))


def _written_out(matrix: Tensor, slopes: Sequence[float], centers: Sequence[float], *masks: Tensor) -> Tensor:
    results = []
    for mask, slope, center in zip(masks, slopes, centers, strict=True):
        exponents = _exponents_inside(matrix, mask, slope, center)
        results.append(torch.where(mask.any(1), exponents.logsumexp(1), _lowest(matrix)))
    if len(results) == 1:
        return results[0]
    return torch.stack(results)


class _LogSumsExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrix: Tensor, slopes: Sequence[float], centers: Sequence[float], *masks: Tensor) -> Tensor:
        lowest = constant(_lowest(matrix), matrix)
        exponents = matrix.new_empty(len(masks), *matrix.shape)
        for mask, slope, center, out in zip(masks, slopes, centers, exponents.unbind(), strict=True):
            torch.where(mask, _exponents(matrix, slope, center), lowest, out=out)
        greatest = exponents.amax(2)
        shares = torch.softmax(exponents, 2)
        # The greatest exponential is this share of the sum.
        log_sums = greatest - shares.amax(2).log()
        if len(masks) == 1:
            log_sums = log_sums[0]
        ctx.save_for_backward(matrix, log_sums, *masks, shares)
        ctx.slopes = slopes
        ctx.centers = centers
        return log_sums

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        matrix, log_sums, *masks, saved = ctx.saved_tensors
        if torch.is_grad_enabled():  # double backward: recompute from the matrix
            sums = zip(masks, ctx.slopes, ctx.centers, strict=True)
            shares = tuple(torch.softmax(_exponents_inside(matrix, *each), 1) for each in sums)
        else:
            shares = saved.unbind()
        # The logarithm of a number of columns, added to the lowest number, leaves it as it is.
        columns = zero_at_most(grad, log_sums, _lowest(matrix)).reshape(len(masks), -1, 1).unbind()
        gradient = shares[0] * (columns[0] * ctx.slopes[0])
        for share, column, slope in zip(shares[1:], columns[1:], ctx.slopes[1:], strict=True):
            gradient.addcmul_(share, column, value=slope)
        return (gradient, *[None] * (2 + len(masks)))


def exp_bounded(x: Tensor) -> Tensor:
    """Return ``exp(x)``, continued linearly with equal slope above 66 (float64: 532), so that it stays finite."""
    limit = 0.75 * math.log(torch.finfo(x.dtype).max)
    return x.clamp(max=limit).exp() * (1 + (x - limit).clamp(min=0))
