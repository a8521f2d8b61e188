"""Equations of Kan et al. (2022), Sec. 3, on similarities ``[B, R]`` and masks of pairs.

:math:`P_i, N_i` are the positives and negatives of anchor i, :math:`P_i^*, N_i^*` the hard ones (Eq. 25). A row without
pairs gives finite values and zero gradients.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pml_ext.plugin import (
    apply_or_plain,
    constant,
    exp_bounded,
    hard_pair_masks,
    indicators,
    log_one_plus_exp,
    log_one_plus_sums,
    masked_mean,
    masked_sum,
    masked_sums,
    pairs_and_limits,
    weights_of_shares,
    without_tiny,
)

# Eq. 24: g(1 + x) as a function of log(1 + x), so that no exponential overflows.
AVERAGINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "log": lambda log_value: log_value,
    "sqrt": lambda log_value: exp_bounded(log_value / 2),
    "const": exp_bounded,
}
REDUCTIONS = ("mean", "sum")


def log_ratio(z: Tensor, mean_pos: float, std_pos: float, mean_neg: float, std_neg: float) -> Tensor:
    r""":math:`\log \Phi_N`, Eq. (20): the log-likelihood ratio of positive to negative pairs.

    .. math::
        \log \frac{\sigma_N}{\sigma_P} + \zeta_1 z^2 + \zeta_2 z + \zeta_3, \quad
        \zeta_1 = \frac{1}{2 \sigma_N^2} - \frac{1}{2 \sigma_P^2}, \quad
        \zeta_2 = \frac{\mu_P}{\sigma_P^2} - \frac{\mu_N}{\sigma_N^2}, \quad
        \zeta_3 = \frac{\mu_N^2}{2 \sigma_N^2} - \frac{\mu_P^2}{2 \sigma_P^2}

    for similarities z of any shape.
    """
    precision_pos = 1 / std_pos**2
    precision_neg = 1 / std_neg**2
    zeta_1 = (precision_neg - precision_pos) / 2
    zeta_2 = mean_pos * precision_pos - mean_neg * precision_neg
    zeta_3 = (mean_neg**2 * precision_neg - mean_pos**2 * precision_pos) / 2
    return math.log(std_neg / std_pos) + zeta_1 * z * z + zeta_2 * z + zeta_3


def metric_variance(
    similarity: Tensor,
    masks: Tensor,
    *,
    gamma: float = 0.2,
    reduction: str = "mean",
    detach_target: bool = False,
) -> Tensor:
    """Eq. (28) and (29) per anchor, ``[B]``.

    An anchor without positives or without negatives gets 0. Similarity is ``[B, R]``, masks are ``[2, B, R]``.
    """
    masks = indicators(masks, similarity)
    counts = masks.sum(2, dtype=similarity.dtype)
    variance: Tensor = variance_around_target(
        similarity, masks, counts, gamma=gamma, reduction=reduction, detach_target=detach_target
    )
    variance *= counts.all(0)  # a product keeps NaN, a mask would hide it
    return variance


def variance_around_target(
    similarity: Tensor, masks: Tensor, counts: Tensor, *, gamma: float, reduction: str, detach_target: bool
) -> Tensor:
    """:func:`metric_variance`, with any finite number for anchors that lack pairs of a kind.

    ``counts``: each anchor's numbers of positives and of negatives, ``[2, B]``.
    """
    settings = (gamma, reduction, detach_target)
    variance: Tensor = apply_or_plain(
        _VarianceAroundTarget, _variance_written_out, similarity, masks, counts, *settings
    )
    return variance


def _variance_written_out(
    similarity: Tensor, masks: Tensor, counts: Tensor, gamma: float, reduction: str, detach_target: bool
) -> Tensor:
    positives, negatives = masks
    num_positives, num_negatives = counts
    mean_pos = masked_mean(similarity, positives, num_positives)
    mean_neg = masked_mean(similarity, negatives, num_negatives)
    target = gamma * mean_pos + (1 - gamma) * mean_neg
    if detach_target:
        target = target.detach()
    variance = masked_sum((similarity - target[:, None]).square(), negatives)
    if reduction == "mean":
        variance = variance / num_negatives.clamp(min=1)
    return variance


def _variance_and_slopes(
    similarity: Tensor, masks: Tensor, counts: Tensor, gamma: float, reduction: str, detach_target: bool
) -> tuple[Tensor, Tensor, Tensor]:
    r"""The variance, ``[B]``, and its derivatives: ``[B, R]`` times a weight of each row, ``[B]``.

    With :math:`d_i = \mu^P_i - \mu^N_i` and :math:`\tau_i = \mu^N_i + \theta d_i` for :math:`\theta = \gamma^2`
    (:math:`\gamma` if the target is detached),

    .. math::
        \sum_{k \in N_i} (s_{ik} - \xi_i)^2
            &= \sum_{k \in N_i} (s_{ik} - \tau_i)^2 + |N_i| (\gamma^2 - \theta^2) \, d_i^2 \\
        \frac{\partial}{\partial s_{ij}} \sum_{k \in N_i} (s_{ik} - \xi_i)^2
            &= 2 \Big[ [j \in N_i] (s_{ij} - \tau_i) + [j \in P_i] \, \gamma^2 \frac{|N_i|}{|P_i|} \, d_i \Big],

    without the positives' term if the target is detached.
    """
    positives, negatives = masks.unbind()
    theta = gamma if detach_target else gamma**2
    one_or_more = counts.clamp(min=1)
    one_or_more_pos, one_or_more_neg = one_or_more.unbind()
    means = masked_sums(similarity, masks) / one_or_more
    mean_pos, mean_neg = means.unbind()
    difference = mean_pos - mean_neg
    center = torch.add(mean_neg, difference, alpha=theta)
    slopes = (similarity - center[:, None]).mul_(negatives)
    weighted = difference * one_or_more_neg
    variance: Tensor = torch.linalg.vector_norm(slopes, dim=1).square()
    variance.addcmul_(difference, weighted, value=gamma**2 - theta**2)
    if not detach_target:
        slopes.addcmul_(positives, (weighted / one_or_more_pos)[:, None], value=gamma**2)
    if reduction == "sum":
        return variance, slopes, torch.full_like(variance, 2)
    return variance.div_(one_or_more_neg), slopes, 2 / one_or_more_neg


class _VarianceAroundTarget(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        similarity: Tensor,
        masks: Tensor,
        counts: Tensor,
        gamma: float,
        reduction: str,
        detach_target: bool,
    ) -> Tensor:
        variance, slopes, weights = _variance_and_slopes(similarity, masks, counts, gamma, reduction, detach_target)
        ctx.save_for_backward(similarity, masks, counts, slopes, weights)
        ctx.settings = (gamma, reduction, detach_target)
        return variance

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        similarity, masks, counts, slopes, weights = ctx.saved_tensors
        none = (None,) * 5
        if torch.is_grad_enabled():  # double backward
            variance = _variance_written_out(similarity, masks, counts, *ctx.settings)
            return (*torch.autograd.grad(variance, similarity, grad, create_graph=True), *none)
        return (slopes * (grad * weights)[:, None], *none)


class HardSums(NamedTuple):
    """The sums of positives and of negatives in Eq. (27), over the hard pairs of Eq. (25) and (26)."""

    slopes: tuple[float, float]  # of the exponents: below 0, above 0
    centers: tuple[float, float]
    log_factors: Tensor | float | None  # logarithms of both delta, a number or [2, B]
    epsilon: float  # the margin of hard pairs


class Variance(NamedTuple):
    """The variance term of Eq. (30)."""

    weight: float
    gamma: float
    reduction: str
    detach_target: bool


def losses_of_anchors(similarity: Tensor, masks: Tensor, counts: Tensor, sums: HardSums, variance: Variance) -> Tensor:
    """Eq. (30) with g = log and hard pairs, ``[B]``, computed together with its gradient.

    An anchor without positives or without negatives gets 0.
    """
    losses: Tensor = apply_or_plain(_LossesOfAnchors, _losses_written_out, similarity, masks, counts, sums, variance)
    return losses


def _losses_written_out(
    similarity: Tensor, masks: Tensor, counts: Tensor, sums: HardSums, variance: Variance
) -> Tensor:
    hard = hard_pair_masks(similarity, masks, sums.epsilon)
    terms = log_one_plus_sums(similarity, hard, sums.slopes, sums.centers, sums.log_factors)
    variances = _variance_written_out(
        similarity, masks, counts, variance.gamma, variance.reduction, variance.detach_target
    )
    return (terms.sum(0) + variance.weight * variances) * counts.all(0)


class _LossesOfAnchors(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, similarity: Tensor, masks: Tensor, counts: Tensor, sums: HardSums, variance: Variance
    ) -> Tensor:
        counted = counts.amin(0).clamp_(max=1)  # 1 for anchors with positives and negatives, else 0
        log_sums, shares = _log_sums_and_shares(similarity, masks, sums)
        variances, slopes, weights = _variance_and_slopes(
            similarity, masks, counts, variance.gamma, variance.reduction, variance.detach_target
        )
        losses = log_one_plus_exp(log_sums).sum(0).add_(variances, alpha=variance.weight).mul_(counted)
        first_share, other_share = shares.unbind()
        by_sums = weights_of_shares(log_sums.sigmoid(), shares)[:, :, None]
        first, other = (by_sums * constant(sums.slopes, similarity)).unbind()
        gradient = first_share * first
        gradient.addcmul_(other_share, other).addcmul_(slopes, (weights * counted)[:, None], value=variance.weight)
        ctx.save_for_backward(similarity, masks, counts, gradient)
        ctx.settings = (sums, variance)
        return losses

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        similarity, masks, counts, gradient = ctx.saved_tensors
        none = (None,) * 4
        if torch.is_grad_enabled():  # double backward
            losses = _losses_written_out(similarity, masks, counts, *ctx.settings)
            return (*torch.autograd.grad(losses, similarity, grad, create_graph=True), *none)
        return (gradient * grad[:, None], *none)


def _log_sums_and_shares(similarity: Tensor, masks: Tensor, sums: HardSums) -> tuple[Tensor, Tensor]:
    """The logarithm of each sum, ``[2, B]``, and the share of each pair in it, ``[2, B, R]``."""
    (slope_of_positives, slope_of_negatives), (center_of_positives, center_of_negatives), log_factors, epsilon = sums
    steepness = (-slope_of_positives, slope_of_negatives)
    lowest = torch.finfo(similarity.dtype).min / 4 / max(1, *steepness)
    violations, limits = pairs_and_limits(similarity, masks, epsilon, far=-lowest / 4)
    positives, negatives = violations.unbind()
    limit_of_positives, limit_of_negatives = limits.unbind()
    torch.sub(limit_of_positives, positives, out=positives)
    negatives.sub_(limit_of_negatives)
    torch.threshold_(violations, 0, lowest)  # easy pairs do not exceed the limit
    exponents = violations.mul_(constant(steepness, similarity))
    shares = torch.softmax(exponents, 2)
    # Exponents begin at the limits, not at the centers.
    at_limits = (-slope_of_positives * center_of_positives, -slope_of_negatives * center_of_negatives)
    offsets = torch.addcmul(constant(at_limits, similarity), limits, constant(sums.slopes, similarity))
    log_sums = exponents.amax(2) - shares.amax(2).log()
    log_sums += offsets.squeeze(2)
    if log_factors is not None:
        log_sums = log_sums + log_factors
    return log_sums, without_tiny(shares)
