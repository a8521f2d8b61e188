r"""The equations of Kan et al. (2022), Sec. 3, on a similarity matrix ``[B, R]`` and boolean pair masks.

Pair sets: :math:`P_i` the positives of anchor i, :math:`N_i` its negatives, :math:`P_i^*, N_i^*` the hard ones among
them (Eq. 25, :func:`pml_ext.plugin.hard_pair_masks`). A row without pairs gives finite values and zero gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

from pml_ext.plugin import exp_bounded, moments_of_pairs

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
    """Return Eq. (28) and (29), :class:`MetricVarianceRegularizer`, per anchor; 0 without positives or negatives.

    Settings are those of the class. ``counts``: precomputed numbers of positives and negatives per anchor, if known.
    """
    if counts is None:
        counts = positives.sum(1, dtype=similarity.dtype), negatives.sum(1, dtype=similarity.dtype)
    num_positives, num_negatives = counts
    mean_pos, mean_neg, squares = moments_of_pairs(similarity, positives, negatives, counts)
    target = gamma * mean_pos + (1 - gamma) * mean_neg
    if detach_target:
        target = target.detach()
    variance = squares + num_negatives * (mean_neg - target).square()  # the sum of (s - target)^2
    if reduction == "mean":
        variance = variance / num_negatives.clamp(min=1)
    return variance * (num_positives > 0).to(variance.dtype)  # a product keeps NaN, a mask would hide it
