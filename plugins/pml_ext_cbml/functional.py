r"""The equations of Kan et al. (2022), Sec. 3, on a similarity matrix ``[B, R]`` and boolean pair masks.

Pair sets: :math:`P_i` the positives of anchor i, :math:`N_i` its negatives, :math:`P_i^*, N_i^*` the hard ones among
them (Eq. 25, :func:`pml_ext.plugin.hard_pair_masks`). A row without pairs gives finite values and zero gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor

from pml_ext.plugin import exp_bounded, log_one_plus_sum_exp, masked_mean, masked_sum

# Eq. 24: g(1 + x) as a function of log(1 + x), so that no exponential overflows.
AVERAGINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "log": lambda log_value: log_value,
    "sqrt": lambda log_value: exp_bounded(log_value / 2),
    "const": exp_bounded,
}
REDUCTIONS = ("mean", "sum")


def contrastive_bayesian_terms(
    similarity: Tensor,
    positives: Tensor,
    negatives: Tensor,
    *,
    alpha_pos: float = 0.5,
    beta_pos: float = 0.5,
    alpha_neg: float = 1.0,
    beta_neg: float = 0.01,
    log_delta: tuple[Tensor | float, Tensor | float] = (0.0, 0.0),
    averaging: str = "log",
    statistics: Sequence[float] | None = None,
) -> tuple[Tensor, Tensor]:
    r"""The two terms of every anchor in Eq. (27), or Eq. (22) if all pairs are passed.

    .. math::
        g\Big\{1 + \delta^P \sum_{j \in P_i^*} \exp\frac{\alpha^P - s_{ij}}{\beta^P}\Big\}, \qquad
        g\Big\{1 + \delta^N \sum_{j \in N_i^*} \exp\frac{s_{ij} - \alpha^N}{\beta^N}\Big\}

    Args:
        similarity: :math:`s`, ``[B, R]``.
        positives: mask of the pairs summed in the first term, ``[B, R]``.
        negatives: mask of the pairs summed in the second, ``[B, R]``.
        alpha_pos: center of the positives' exponential, in units of the similarity.
        beta_pos: its width, above 0.
        alpha_neg: center of the negatives' exponential.
        beta_neg: its width, above 0.
        log_delta: logarithms of :math:`\delta^P` and :math:`\delta^N`, numbers or ``[B]``.
        averaging: g: ``"log"``, ``"sqrt"`` or ``"const"`` (the identity).
        statistics: :math:`\mu_P, \sigma_P, \mu_N, \sigma_N`, for the exponents of Eq. (20), :func:`log_ratio` and minus
            it, in the place of centers and widths.

    Returns:
        Two tensors ``[B]``.
    """
    g = AVERAGINGS[averaging]
    log_delta_pos, log_delta_neg = log_delta
    if statistics is not None:
        ratio = log_ratio(similarity, *statistics)
        return (
            g(log_one_plus_sum_exp(ratio, positives, slope=-1.0, center=0.0, log_scale=log_delta_pos)),
            g(log_one_plus_sum_exp(ratio, negatives, slope=1.0, center=0.0, log_scale=log_delta_neg)),
        )
    return (
        g(log_one_plus_sum_exp(similarity, positives, slope=-1 / beta_pos, center=alpha_pos, log_scale=log_delta_pos)),
        g(log_one_plus_sum_exp(similarity, negatives, slope=1 / beta_neg, center=alpha_neg, log_scale=log_delta_neg)),
    )


def log_ratio(z: Tensor, mean_pos: float, std_pos: float, mean_neg: float, std_neg: float) -> Tensor:
    r"""The logarithm of :math:`\Phi_N`, Eq. (20): how much likelier a similarity is of a positive than a negative pair.

    .. math::
        \log \frac{\sigma_N}{\sigma_P} + \zeta_1 z^2 + \zeta_2 z + \zeta_3, \quad
        \zeta_1 = \frac{1}{2 \sigma_N^2} - \frac{1}{2 \sigma_P^2}, \quad
        \zeta_2 = \frac{\mu_P}{\sigma_P^2} - \frac{\mu_N}{\sigma_N^2}, \quad
        \zeta_3 = \frac{\mu_N^2}{2 \sigma_N^2} - \frac{\mu_P^2}{2 \sigma_P^2}

    Args:
        z: similarities, of any shape.
        mean_pos: :math:`\mu_P`.
        std_pos: :math:`\sigma_P`, above 0.
        mean_neg: :math:`\mu_N`.
        std_neg: :math:`\sigma_N`, above 0.
    """
    precision_pos, precision_neg = 1 / std_pos**2, 1 / std_neg**2
    zeta_1, zeta_2 = (precision_neg - precision_pos) / 2, mean_pos * precision_pos - mean_neg * precision_neg
    zeta_3 = (mean_neg**2 * precision_neg - mean_pos**2 * precision_pos) / 2
    return math.log(std_neg / std_pos) + zeta_1 * z * z + zeta_2 * z + zeta_3


def log_ratio_delta(num_positives: Tensor, num_negatives: Tensor) -> tuple[Tensor, Tensor]:
    r"""Logarithms of :math:`\delta^P = |N_i| / |P_i|^2` and :math:`\delta^N = |P_i| / |N_i|^2`, Eq. (23).

    Args:
        num_positives: :math:`|P_i|`, ``[B]``, floating point; 0 counts as 1.
        num_negatives: :math:`|N_i|`, likewise.

    Returns:
        Two tensors ``[B]``.
    """
    log_p, log_n = num_positives.clamp(min=1).log(), num_negatives.clamp(min=1).log()
    return log_n - 2 * log_p, log_p - 2 * log_n


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
    r"""The metric variance of every anchor's negatives about a target, Eq. (28) and (29).

    .. math::
        \xi_i = \gamma \operatorname{mean}_{P_i} s_{ij} + (1 - \gamma) \operatorname{mean}_{N_i} s_{ij}, \qquad
        \frac{1}{|N_i|} \sum_{j \in N_i} (s_{ij} - \xi_i)^2

    Args:
        similarity: :math:`s`, ``[B, R]``.
        positives: mask of :math:`P_i`, ``[B, R]``.
        negatives: mask of :math:`N_i`, ``[B, R]``.
        gamma: weight of the positives in the target, in [0, 1].
        reduction: ``"mean"`` over the negatives, or their ``"sum"``.
        detach_target: whether no gradient flows through the target.
        counts: :math:`|P_i|` and :math:`|N_i|`, if the caller has them already.

    Returns:
        ``[B]``, 0 for an anchor without positives or without negatives.
    """
    num_positives, num_negatives = counts or (positives.sum(1), negatives.sum(1))
    target = gamma * masked_mean(similarity, positives, num_positives)
    target = target + (1 - gamma) * masked_mean(similarity, negatives, num_negatives)
    if detach_target:
        target = target.detach()
    deviation = similarity - target[:, None]
    variance = masked_sum(deviation * deviation, negatives)
    if reduction == "mean":
        variance = variance / num_negatives.clamp(min=1)
    return variance * (num_positives > 0).to(variance.dtype)  # as a factor, which NaN survives
