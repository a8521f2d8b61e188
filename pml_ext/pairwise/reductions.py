"""Masked reductions over the rows of a matrix; an empty mask gives a defined value and finite gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .batch import transformed


def masked_sum(values: Tensor, mask: Tensor) -> Tensor:
    """Return the sum of each row's masked values, ``[B]``, 0 where there are none; values are ``[B, R]``."""
    return torch.where(mask, values, 0).sum(1)


def masked_mean(values: Tensor, mask: Tensor, count: Tensor | None = None) -> Tensor:
    """Return the mean of each row's masked values, ``[B]``, 0 where there are none; ``count`` is ``mask.sum(1)``."""
    if count is None:
        count = mask.sum(1, dtype=values.dtype)
    return masked_sum(values, mask) / count.clamp(min=1)


def moments_of_pairs(
    matrix: Tensor, positives: Tensor, negatives: Tensor, counts: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Return means of each row's positives and negatives, and the negatives' sum of squared deviations, ``[B]`` each.

    .. math::
        \mu^P_i = \frac{1}{|P_i|} \sum_{j \in P_i} s_{ij}, \qquad
        \mu^N_i = \frac{1}{|N_i|} \sum_{j \in N_i} s_{ij}, \qquad
        v_i = \sum_{j \in N_i} (s_{ij} - \mu^N_i)^2

    ``matrix`` and the masks are ``[B, R]``; ``counts`` are the masks' sums, floating point, ``[B]``. Without pairs
    the results are 0. The backward pass writes one matrix, from the deviations that the forward pass saved, and can be
    differentiated again. Under torch.func and in forward mode, plain operations give derivatives of any order.
    """
    if transformed(matrix):
        mean_pos = masked_mean(matrix, positives, counts[0])
        mean_neg = masked_mean(matrix, negatives, counts[1])
        squares = masked_sum((matrix - mean_neg[:, None]).square(), negatives)
        return mean_pos, mean_neg, squares
    counts = counts[0].clamp(min=1), counts[1].clamp(min=1)
    results: tuple[Tensor, Tensor, Tensor] = _MomentsOfPairs.apply(matrix, positives, negatives, *counts)  # type: ignore[no-untyped-call]
    return results


class _MomentsOfPairs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, matrix: Tensor, positives: Tensor, negatives: Tensor, num_pos: Tensor, num_neg: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        deviations = torch.where(negatives, matrix, 0)
        mean = deviations.sum(1) / num_neg
        deviations.addcmul_(negatives, mean[:, None], value=-1)
        ctx.save_for_backward(matrix, positives, negatives, num_pos, num_neg, deviations)
        squares = torch.linalg.vector_norm(deviations, dim=1).square()
        return masked_mean(matrix, positives, num_pos), mean, squares

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        matrix, positives, negatives, num_pos, num_neg, deviations = ctx.saved_tensors
        if torch.is_grad_enabled():  # double backward: recompute from the matrix
            deviations = torch.where(negatives, matrix - masked_mean(matrix, negatives, num_neg)[:, None], 0)
        gradient = deviations * (2 * grads[2])[:, None]
        gradient.addcmul_(positives, (grads[0] / num_pos)[:, None])
        return gradient.addcmul_(negatives, (grads[1] / num_neg)[:, None]), None, None, None, None


def masked_max(values: Tensor, mask: Tensor) -> Tensor:
    """Return the greatest masked value of each row, ``[B]``, minus infinity where there is none."""
    return torch.where(mask, values, -torch.inf).amax(1)


def masked_min(values: Tensor, mask: Tensor) -> Tensor:
    """Return the least masked value of each row, ``[B]``, infinity where there is none."""
    return torch.where(mask, values, torch.inf).amin(1)


def log_sum_exp(matrix: Tensor, mask: Tensor, *, slope: float = 1.0, center: float = 0.0) -> Tensor:
    r"""Return :math:`\log \sum_j \exp(k (s_{ij} - c))` over each row's masked entries; see :func:`log_sums_exp`."""
    return log_sums_exp(matrix, (mask, slope, center))[0]


def log_sums_exp(matrix: Tensor, *sums: tuple[Tensor, float, float]) -> tuple[Tensor, ...]:
    r"""Return :math:`\log \sum_{j \in M_i} \exp(k (s_{ij} - c))` of each row, for several sums over one matrix.

    The backward pass writes one matrix for all sums, from each term's share of its sum, which the forward pass saved,
    and can be differentiated again. Under torch.func and in forward mode, plain operations give all derivatives.
    *Cost:* four passes for each sum forward, one or two backward.

    Args:
        matrix: :math:`s`, finite, ``[B, R]``; the exponents may be far beyond the range of ``exp``.
        sums: for each, the mask :math:`M`, boolean, ``[B, R]``, the slope :math:`k`, not 0, and the center :math:`c`.

    Returns:
        ``[B]`` for each sum; a row without entries has a very low number, without gradient.
    """
    if transformed(matrix):
        return tuple(_written_out(matrix, *each) for each in sums)
    masks, slopes, centers = zip(*sums, strict=True)
    results: tuple[Tensor, ...] = _LogSumsExp.apply(matrix, slopes, centers, *masks)  # type: ignore[no-untyped-call]
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


def _outside(like: Tensor, slope: float) -> float:
    """Return the fill value outside a mask: its exponent is very low but finite."""
    return math.copysign(_lowest(like) / max(1.0, abs(slope)), -slope)


def _written_out(matrix: Tensor, mask: Tensor, slope: float, center: float) -> Tensor:
    exponents = slope * torch.where(mask, matrix - center, _outside(matrix, slope))
    return torch.where(mask.any(1), exponents.logsumexp(1), _lowest(matrix))


class _LogSumsExp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, matrix: Tensor, slopes: Sequence[float], centers: Sequence[float], *masks: Tensor
    ) -> tuple[Tensor, ...]:
        results = []
        shares = []
        weights = []
        for mask, slope, center in zip(masks, slopes, centers, strict=True):
            outside = _outside(matrix, slope)
            masked = torch.where(mask, matrix, outside)
            greatest = masked.amax(1) if slope > 0 else masked.amin(1)
            shares.append(torch.softmax(masked if slope == 1 else masked.mul_(slope), 1))
            there = greatest != outside
            value = slope * (greatest - center) - shares[-1].amax(1).log()
            results.append(torch.where(there, value, _lowest(matrix)))
            weights.append(slope * there)
        ctx.save_for_backward(matrix, *masks, *shares, *weights)
        ctx.slopes = slopes
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        matrix, *saved = ctx.saved_tensors
        count = len(grads)
        masks = saved[:count]
        shares = saved[count : 2 * count]
        weights = saved[2 * count :]
        if torch.is_grad_enabled():  # double backward: recompute from the matrix
            kept = zip(masks, ctx.slopes, strict=True)
            shares = [torch.softmax(k * torch.where(mask, matrix, _outside(matrix, k)), 1) for mask, k in kept]
        scales = [(grad * weight)[:, None] for grad, weight in zip(grads, weights, strict=True)]
        gradient = shares[0] * scales[0]
        for share, scale in zip(shares[1:], scales[1:], strict=True):
            gradient.addcmul_(share, scale)
        return (gradient, *[None] * (2 + count))


def exp_bounded(x: Tensor) -> Tensor:
    """Return ``exp(x)``, continued linearly with equal slope above 66 (float64: 532), so that it stays finite."""
    limit = 0.75 * math.log(torch.finfo(x.dtype).max)
    return x.clamp(max=limit).exp() * (1 + (x - limit).clamp(min=0))
