"""Masked reductions over rows, with finite gradients for empty masks."""

import math
from typing import Any

import torch
from torch import Tensor

from .batch import apply_or_plain, constant
from .masks import (
    fill_outside,
    indicators,
    prefers_floats,
    weights_of_shares,
    without_tiny,
    zero_at_most,
    zero_outside,
)

_MANY = 1 << 17  # entries from which a CPU sums faster by a product of matrices
_EMPTY = -1e18  # above the logarithm of any empty sum
_LARGE = 50  # above it, float64 cannot tell log(1 + exp(x)) and x apart


def masked_sum(values: Tensor, mask: Tensor) -> Tensor:
    """Sum of each row's masked values, ``[B]``; 0 for an empty row."""
    return zero_outside(values, mask).sum(1)


def masked_sums(values: Tensor, masks: Tensor) -> Tensor:
    """Sums of each row's values inside each of S masks, ``[S, B]``."""
    if masks.dtype == torch.bool or values.numel() < _MANY:
        return zero_outside(values, masks).sum(2)
    return torch.bmm(values[:, None], masks.permute(1, 2, 0)).squeeze(1).T


def masked_mean(values: Tensor, mask: Tensor, count: Tensor | None = None) -> Tensor:
    """Mean of each row's masked values, ``[B]``; 0 for an empty row."""
    if count is None:
        count = mask.sum(1, dtype=values.dtype)
    return masked_sum(values, mask) / count.clamp(min=1)


def masked_max(values: Tensor, mask: Tensor) -> Tensor:
    """Maximum of each row's masked values, ``[B]``; minus infinity for an empty row."""
    return fill_outside(values, mask, -torch.inf).amax(1)


def masked_min(values: Tensor, mask: Tensor) -> Tensor:
    """Minimum of each row's masked values, ``[B]``; infinity for an empty row."""
    return fill_outside(values, mask, torch.inf).amin(1)


def log_sum_exp(matrix: Tensor, mask: Tensor, *, slope: float = 1.0, center: float = 0.0) -> Tensor:
    r""":math:`\log \sum_{j \in M_i} \exp(k (s_{ij} - c))` of each row, ``[B]``.

    An empty row gets a very low number without gradient.
    """
    arguments = (matrix, mask[None], (slope,), (center,), None, False, None)
    log_sums: Tensor = apply_or_plain(_LogSums, _written_out, *arguments)
    return log_sums.squeeze(0)


def log_one_plus_sums(
    matrix: Tensor,
    masks: Tensor,
    slopes: tuple[float, ...],
    centers: tuple[float, ...],
    log_factors: Tensor | float | None = None,
    weights: tuple[float, ...] | None = None,
) -> Tensor:
    r"""The logarithm of 1 + a sum of exponentials, for each row and S sums, ``[S, B]``.

    .. math:: \log(1 + f \sum_{j \in M_i} \exp(k (s_{ij} - c)))

    An empty row gets 0. The gradient can be differentiated again. *Cost:* four passes per sum forward, one backward.

    Args:
        matrix: :math:`s`, finite, ``[B, R]``; the exponents may be far beyond the range of ``exp``.
        masks: :math:`M` of each sum, boolean or :func:`indicators`, ``[S, B, R]``.
        slopes: :math:`k` of each sum, not 0.
        centers: :math:`c` of each sum.
        log_factors: :math:`\log f`, a number or ``[S, B]``, without gradient; None for factors of 1.
        weights: of each sum; the result is then the weighted total, ``[B]``.
    """
    arguments = (matrix, masks, slopes, centers, log_factors, True, weights)
    terms: Tensor = apply_or_plain(_LogSums, _written_out, *arguments)
    return terms


def with_log_weights(matrix: Tensor, mask: Tensor, weights: Tensor | None, slope: float) -> Tensor:
    """A matrix whose exponentials :math:`e^{k s_{ij}}` are multiplied by weights inside a mask.

    ``weights``, ``[B, R]``, are above 0 in the mask; None changes nothing.
    """
    if weights is None:
        return matrix
    return matrix + torch.where(mask > 0, weights, 1).log() / slope


def log_one_plus_exp(x: Tensor) -> Tensor:
    r""":math:`\log(1 + e^x)`, or x itself above 50, which is equal in float64."""
    return torch.nn.functional.softplus(x, threshold=_LARGE)


def _lowest(like: Tensor) -> float:
    return torch.finfo(like.dtype).min / 4


def _exponents(matrix: Tensor, masks: Tensor, slopes: tuple[float, ...], centers: tuple[float, ...]) -> Tensor:
    """:math:`k (s_{ij} - c)` inside masks and a very low number outside, ``[S, B, R]``."""
    exponents = matrix
    if any(slope != 1 for slope in slopes) or any(centers):
        exponents = torch.addcmul(constant(_offsets(slopes, centers), matrix), matrix, constant(slopes, matrix))
    return fill_outside(exponents, masks, _lowest(matrix))


def _offsets(slopes: tuple[float, ...], centers: tuple[float, ...]) -> tuple[float, ...]:
    return tuple([-slope * center for slope, center in zip(slopes, centers, strict=True)])


def _written_out(
    matrix: Tensor,
    masks: Tensor,
    slopes: tuple[float, ...],
    centers: tuple[float, ...],
    log_factors: Tensor | float | None,
    adds_one: bool,
    weights: tuple[float, ...] | None,
) -> Tensor:
    """The sums by plain operations; without the one unless ``adds_one``."""
    log_sums = _exponents(matrix, masks, slopes, centers).logsumexp(2)
    log_sums = torch.where(masks.any(2), log_sums, _lowest(matrix))
    if log_factors is not None:
        log_sums = log_sums + log_factors
    if adds_one:
        return _weighted(log_one_plus_exp(log_sums), weights)
    return log_sums


def _weighted(terms: Tensor, weights: tuple[float, ...] | None) -> Tensor:
    if weights is None:
        return terms
    return (terms * constant(weights, terms).squeeze(2)).sum(0)


class _LogSums(torch.autograd.Function):
    """The same with a backward pass that writes one matrix for all sums."""

    @staticmethod
    def forward(
        ctx: Any,
        matrix: Tensor,
        masks: Tensor,
        slopes: tuple[float, ...],
        centers: tuple[float, ...],
        log_factors: Tensor | float | None,
        adds_one: bool,
        weights: tuple[float, ...] | None,
    ) -> Tensor:
        if prefers_floats(matrix):  # in fewer passes, centers are left to the sums
            lowest = _lowest(matrix)
            outside = torch.add(constant(lowest, matrix), indicators(masks, matrix), alpha=-lowest)
            exponents = outside.addcmul_(matrix, constant(slopes, matrix))
            offsets = constant(_offsets(slopes, centers), matrix).squeeze(2)
        else:
            exponents = _exponents(matrix, masks, slopes, centers)
            offsets = None
        shares = torch.softmax(exponents, 2)
        # The greatest exponential is this share of the sum.
        log_sums = exponents.amax(2) - shares.amax(2).log()
        if offsets is not None:
            log_sums += offsets
        if log_factors is not None:
            log_sums = log_sums + log_factors
        ctx.save_for_backward(matrix, log_sums, without_tiny(shares))
        ctx.settings = (slopes, centers, log_factors, adds_one, weights)
        if adds_one:
            return _weighted(log_one_plus_exp(log_sums), weights)
        return log_sums

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        matrix, log_sums, shares = ctx.saved_tensors
        slopes, _, _, adds_one, weights = ctx.settings
        none = (None,) * 6
        if torch.is_grad_enabled():  # double backward, where there are shares; a row without entries has equal ones
            masks = (shares > 0) & (log_sums > _EMPTY)[:, :, None]
            results = _written_out(matrix, masks, *ctx.settings)
            return (*torch.autograd.grad(results, matrix, grad, create_graph=True), *none)
        if adds_one:
            grad = grad.expand_as(log_sums)
            columns = torch.ops.aten.softplus_backward(grad, log_sums, 1, _LARGE)  # 0 in a row without entries
        else:  # the logarithm of a number of columns, added to the lowest number, leaves it unchanged
            columns = zero_at_most(grad, log_sums, _lowest(matrix))
        if weights is not None:
            slopes = tuple([slope * weight for slope, weight in zip(slopes, weights, strict=True)])
        first_share, *other_shares = shares.unbind()
        first_column, *other_columns = weights_of_shares(columns, shares)[:, :, None].unbind()
        gradient = first_share * (slopes[0] * first_column)
        for share, column, slope in zip(other_shares, other_columns, slopes[1:], strict=True):
            gradient.addcmul_(share, column, value=slope)
        return (gradient, *none)


def exp_bounded(x: Tensor) -> Tensor:
    """``exp(x)``, continued linearly above 66 (float64: 532) to stay finite."""
    limit = 0.75 * math.log(torch.finfo(x.dtype).max)
    return x.clamp(max=limit).exp() * (1 + (x - limit).clamp(min=0))
