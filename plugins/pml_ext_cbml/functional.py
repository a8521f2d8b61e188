r"""The equations of Kan et al. (2022), Sec. 3, on a similarity matrix ``[B, R]`` and boolean pair masks.

Pair sets: :math:`P_i` the positives of anchor i, :math:`N_i` its negatives, :math:`P_i^*, N_i^*` the hard ones among
them (Eq. 25, :func:`pml_ext.plugin.hard_pair_masks`). A row without pairs gives finite values and zero gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pml_ext.plugin import apply_or_plain, exp_bounded, masked_mean, masked_sum

# Eq. 24: g(1 + x) as a function of log(1 + x), so that no exponential overflows.
AVERAGINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "log": lambda log_value: log_value,
    "sqrt": lambda log_value: exp_bounded(log_value / 2),
    "const": exp_bounded,
}
REDUCTIONS = ("mean", "sum")


def log_ratio(z: Tensor, mean_pos: float, std_pos: float, mean_neg: float, std_neg: float) -> Tensor:
    r"""Return :math:`\log \Phi_N`, Eq. (20): the log-likelihood ratio of positive to negative pairs at a similarity.

    .. math::
        \log \frac{\sigma_N}{\sigma_P} + \zeta_1 z^2 + \zeta_2 z + \zeta_3, \quad
        \zeta_1 = \frac{1}{2 \sigma_N^2} - \frac{1}{2 \sigma_P^2}, \quad
        \zeta_2 = \frac{\mu_P}{\sigma_P^2} - \frac{\mu_N}{\sigma_N^2}, \quad
        \zeta_3 = \frac{\mu_N^2}{2 \sigma_N^2} - \frac{\mu_P^2}{2 \sigma_P^2}

    for similarities z of any shape, with means and standard deviations :math:`\mu_P, \sigma_P, \mu_N, \sigma_N`.
    """
    precision_pos = 1 / std_pos**2
    precision_neg = 1 / std_neg**2
    zeta_1 = (precision_neg - precision_pos) / 2
    zeta_2 = mean_pos * precision_pos - mean_neg * precision_neg
    zeta_3 = (mean_neg**2 * precision_neg - mean_pos**2 * precision_pos) / 2
    return math.log(std_neg / std_pos) + zeta_1 * z * z + zeta_2 * z + zeta_3


def metric_variance(
    similarity: Tensor,
    positives: Tensor,
    negatives: Tensor,
    *,
    gamma: float = 0.2,
    reduction: str = "mean",
    detach_target: bool = False,
    counts: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Return Eq. (28) and (29), :class:`MetricVarianceRegularizer`, per anchor, ``[B]``.

    Without positives or negatives, an anchor has 0. Similarity and masks are ``[B, R]``; settings are those of the
    class. ``counts``: the numbers of positives and of negatives per anchor, ``[B]`` each, in the similarity's dtype, if
    known.
    """
    if counts is None:
        num_positives = positives.sum(1, dtype=similarity.dtype)
        num_negatives = negatives.sum(1, dtype=similarity.dtype)
    else:
        num_positives, num_negatives = counts
    masks_and_counts = (positives, negatives, num_positives, num_negatives)
    settings = (gamma, reduction, detach_target)
    variance: Tensor = apply_or_plain(_MetricVariance, _variance_written_out, similarity, *masks_and_counts, *settings)
    return variance


def _variance_written_out(
    similarity: Tensor,
    positives: Tensor,
    negatives: Tensor,
    num_positives: Tensor,
    num_negatives: Tensor,
    gamma: float,
    reduction: str,
    detach_target: bool,
) -> Tensor:
    """Return :func:`metric_variance` by plain operations, which have derivatives of any order."""
    mean_pos = masked_mean(similarity, positives, num_positives)
    mean_neg = masked_mean(similarity, negatives, num_negatives)
    target = gamma * mean_pos + (1 - gamma) * mean_neg
    if detach_target:
        target = target.detach()
    variance = masked_sum((similarity - target[:, None]).square(), negatives)
    if reduction == "mean":
        variance = variance / num_negatives.clamp(min=1)
    return variance * num_positives.clamp(max=1)  # a product keeps NaN, a mask would hide it


class _MetricVariance(torch.autograd.Function):
    r"""The metric variance with its gradient written out, in a third of autograd's operations.

    With the factor :math:`f_i` of an anchor's sum, which is :math:`1 / |N_i|` or 1, and 0 without positives,

    .. math::
        \frac{\partial}{\partial s_{ij}} f_i \sum_{k \in N_i} (s_{ik} - \xi_i)^2 = 2 f_i \Big[
        [j \in N_i] (s_{ij} - \xi_i) + |N_i| (\xi_i - \mu^N_i) \frac{\partial \xi_i}{\partial s_{ij}} \Big]
    """

    @staticmethod
    def forward(
        ctx: Any,
        similarity: Tensor,
        positives: Tensor,
        negatives: Tensor,
        num_positives: Tensor,
        num_negatives: Tensor,
        gamma: float,
        reduction: str,
        detach_target: bool,
    ) -> Tensor:
        one_or_more_pos = num_positives.clamp(min=1)
        one_or_more_neg = num_negatives.clamp(min=1)
        mean_pos = torch.where(positives, similarity, 0).sum(1) / one_or_more_pos
        deviations = torch.where(negatives, similarity, 0)
        mean_neg = deviations.sum(1) / one_or_more_neg
        target = torch.lerp(mean_neg, mean_pos, gamma)
        deviations.addcmul_(negatives, target[:, None], value=-1)
        factor = num_positives.clamp(max=1)
        if reduction == "mean":
            factor = factor / one_or_more_neg
        variance: Tensor = torch.linalg.vector_norm(deviations, dim=1).square() * factor

        slopes = deviations  # the derivatives, divided by 2 and the factor
        if ctx.needs_input_grad[0] and not detach_target:
            gap = target - mean_neg  # the derivative by the target, divided by the number of negatives
            ratio = num_negatives / one_or_more_pos
            slopes.addcmul_(negatives, gap[:, None], value=1 - gamma)
            slopes.addcmul_(positives, (gap * ratio)[:, None], value=gamma)
        ctx.save_for_backward(similarity, positives, negatives, num_positives, num_negatives, slopes, factor)
        ctx.settings = (gamma, reduction, detach_target)
        return variance

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        similarity, *masks_and_counts, slopes, factor = ctx.saved_tensors
        none = (None,) * 7
        if torch.is_grad_enabled():  # double backward
            variance = _variance_written_out(similarity, *masks_and_counts, *ctx.settings)
            return (*torch.autograd.grad(variance, similarity, grad, create_graph=True), *none)
        scale = 2 * factor * grad
        return (slopes * scale[:, None], *none)
