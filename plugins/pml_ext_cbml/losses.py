"""The loss of contrastive Bayesian metric learning."""

from __future__ import annotations

import dataclasses
import logging
import math
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import Tensor

from pml_ext.plugin import (
    BaseDistance,
    DotProductSimilarity,
    Float64Buffers,
    PairLoss,
    PairLossSettings,
    Pairs,
    Relation,
    RunView,
    Terms,
    TrainingWarning,
    check_choice,
    check_flag,
    check_number,
    hard_pair_masks,
    indicators,
    log_one_plus_sums,
    per_anchor,
    run_eagerly,
    with_log_weights,
)

from . import functional as F
from .statistics import PairStatistics, likelihood_ratio_figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CENTERS_AND_WIDTHS = (0.5, 0.5, 1.0, 0.01)  # defaults of alpha_pos, beta_pos, alpha_neg, beta_neg
ESTIMATED = ("auto", "auto-quadratic")  # statistics of the first batch, for linear or quadratic exponents
NO_ESTIMATES = (
    "statistics={!r} of CBMLLoss cannot be estimated on this batch: its classes hardly differ, or one kind of pair is "
    "missing. The default centers and widths are used until a batch gives estimates"
)
WHITENED = "whitened start"
SECTION = "Sec. 4.4 F"
REASONS = {
    WHITENED: "negative pairs are centered",
    SECTION: "negative pairs are not centered",
}
LARGEST_EXPONENT = 10.0  # of a negative pair of similarity 1, with estimated centers and widths


def _gives_cosines(distance: BaseDistance) -> bool:
    is_product = isinstance(distance, DotProductSimilarity) and distance.normalize_embeddings
    return is_product and distance.p == 2 and distance.power == 1


def _fit_again(loss: CBMLLoss, _: Any) -> None:
    loss.wants_before_call = True  # the next call takes the loaded estimates


class CBMLLoss(Float64Buffers, PairLoss):
    r"""Contrastive Bayesian loss with a metric variance constraint, Eq. (27) to (30).

    .. math::
        \mathcal{L} = \operatorname{mean}_i \Big[
        g\Big(1 + \delta^P \sum_{j \in P_i^*} \exp\frac{\alpha^P - s_{ij}}{\beta^P}\Big)
        + g\Big(1 + \delta^N \sum_{j \in N_i^*} \exp\frac{s_{ij} - \alpha^N}{\beta^N}\Big)
        + \lambda \, \frac{1}{|N_i|} \sum_{j \in N_i} (s_{ij} - \xi_i)^2 \Big] \quad (27, 29, 30)

    :class:`HardPairMiner` defines the hard pairs :math:`P_i^*, N_i^*`, and :class:`MetricVarianceRegularizer` the
    target :math:`\xi_i`.

    The reducer gets one value per anchor (``"element"``); an anchor without positives or without negatives gives 0. An
    ``indices_tuple`` restricts pairs before mining. A graded relation weights the positive exponentials only.
    ``collect_stats`` records ``positive_loss``, ``negative_loss`` and ``variance_loss`` (without its weight).

    *Deviations:* the authors' code has ``mvc_reduction="sum"``, ``skip_unmined=True``, ``delta=0.25`` with ``"const"``,
    and no positives with similarity above 1 - 1e-5.

    ``statistics="auto"`` has two rules; the attribute ``rule`` and the logger ``pml_ext`` report the choice:

    - ``"whitened start"``, if :math:`|\mu_N| < \sigma_N`: :meth:`PairStatistics.trained_exponents`.
    - ``"Sec. 4.4 F"`` otherwise, as for a random start: :meth:`PairStatistics.exponents`, with ``beta_neg`` at least
      ``(1 - alpha_neg) / 10``.

    *Cost:* one product of ``B x D x R`` forward and one backward (two with references); memory of 6 to 8 ``B x R``.

    *Pair with:* a sampler of several images per class, such as PML's ``MPerClassSampler``; no miner.

    Args:
        alpha_pos: center of the positives' exponential. Defaults are the paper's for CUB and Cars; in brackets, Online
            Products and In-Shop.
        beta_pos: width of the positives' exponential, above 0 (0.25).
        alpha_neg: center of the negatives' exponential (0.5).
        beta_neg: width of the negatives' exponential, above 0 (0.05).
        mvc_weight: :math:`\lambda`, 0 or more (0.001).
        mvc_gamma: :math:`\gamma`, in [0, 1].
        mvc_reduction: ``"mean"`` or ``"sum"`` over an anchor's negatives.
        detach_target: whether :math:`\xi_i` has no gradient.
        skip_unmined: whether an anchor without hard pairs gives 0, not g(1) + g(1) and its variance.
        delta: :math:`\delta^P = \delta^N`, 0 or more, or ``"ratio"`` for Eq. (23).
        averaging: g, Eq. (24): ``"log"``, ``"sqrt"`` or ``"const"`` (the identity).
        epsilon: the margin of Eq. (25); 0.1 in the authors' code, not given in the paper.
        mining: False sums over all pairs, Eq. (22).
        statistics: means and deviations :math:`\mu_P, \sigma_P, \mu_N, \sigma_N` of similarities, for Eq. (20) instead
            of centers and widths. ``"auto"`` sets centers and widths from the first training batch;
            ``"auto-quadratic"`` uses Eq. (20) with ``delta="ratio"``. The state dict keeps the estimates
            (``estimates``). A batch whose classes hardly differ gives a warning and the default constants; the next one
            is tried.
        kwargs: as in PML's losses; ``distance`` must be a similarity.

    Raises:
        ValueError, TypeError: an unknown setting, or a wrong value or type.

    Example:
        >>> import torch
        >>> loss = CBMLLoss(mvc_weight=0.001)
        >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).shape
        torch.Size([])

    *Source:* Kan et al., Contrastive Bayesian Analysis for Deep Metric Learning, 2022,
    https://arxiv.org/abs/2210.04402; authors' code: https://github.com/kanshichao/CBML.
    """

    statistic_names = ("positive_loss", "negative_loss", "variance_loss")
    tiles = "rows"
    graded = True
    float_masks_up_to = math.inf
    estimates: Tensor

    def __init__(
        self,
        alpha_pos: float = 0.5,
        beta_pos: float = 0.5,
        alpha_neg: float = 1.0,
        beta_neg: float = 0.01,
        mvc_weight: float = 1.0,
        mvc_gamma: float = 0.2,
        mvc_reduction: str = "mean",
        detach_target: bool = False,
        skip_unmined: bool = False,
        delta: float | str = 1.0,
        averaging: str = "log",
        epsilon: float = 0.1,
        mining: bool = True,
        statistics: Sequence[float] | str | None = None,
        **kwargs: Unpack[PairLossSettings],
    ) -> None:
        for name, value in (("alpha_pos", alpha_pos), ("alpha_neg", alpha_neg), ("epsilon", epsilon)):
            check_number(self, name, value)
        for name, value in (("beta_pos", beta_pos), ("beta_neg", beta_neg)):
            check_number(self, name, value, above=0)
        check_number(self, "mvc_weight", mvc_weight, least=0)
        check_number(self, "mvc_gamma", mvc_gamma, least=0, most=1)
        check_choice(self, "mvc_reduction", mvc_reduction, F.REDUCTIONS)
        check_choice(self, "averaging", averaging, F.AVERAGINGS)
        for name, value in (("detach_target", detach_target), ("skip_unmined", skip_unmined), ("mining", mining)):
            check_flag(self, name, value)
        if delta != "ratio":
            check_number(self, "delta", delta, least=0, or_else="'ratio'")
        if isinstance(statistics, str):
            check_choice(self, "statistics", statistics, ESTIMATED)
            if delta != 1.0:
                raise ValueError(f"statistics={statistics!r} has delta of Eq. 23; leave delta out")
        elif statistics is not None:
            if not isinstance(statistics, Iterable) or len(statistics) != 4:
                raise ValueError(f"statistics of CBMLLoss must be four numbers, or 'auto'; got {statistics!r}")
            PairStatistics(*statistics)  # checks them
        if statistics is not None and (alpha_pos, beta_pos, alpha_neg, beta_neg) != CENTERS_AND_WIDTHS:
            raise ValueError("statistics stand for alpha_pos, beta_pos, alpha_neg and beta_neg; leave those out")
        super().__init__(**kwargs)
        self.estimated: str | None = None
        self.rule = ""  # of "auto", once it is estimated
        self.statistics: tuple[float, ...] | None = None
        if isinstance(statistics, str):
            self.estimated = statistics
        elif statistics is not None:
            self.statistics = tuple(map(float, statistics))
        if self.estimated:
            if not _gives_cosines(self.distance):
                raise ValueError(f"statistics={statistics!r} are of cosine similarities; give four numbers")
            self.register_buffer("estimates", torch.full((6,), torch.nan, dtype=torch.float64))
            self.register_load_state_dict_post_hook(_fit_again)
        self.wants_before_call = self.estimated is not None  # until they are estimated
        self.alpha_pos = alpha_pos
        self.beta_pos = beta_pos
        self.alpha_neg = alpha_neg
        self.beta_neg = beta_neg
        self.mvc_weight = mvc_weight
        self.mvc_gamma = mvc_gamma
        self.mvc_reduction = mvc_reduction
        self.detach_target = detach_target
        self.skip_unmined = skip_unmined
        self.delta = delta
        self.averaging = averaging
        self.epsilon = epsilon
        self.mining = mining

    @classmethod
    def from_statistics(cls, statistics: PairStatistics, exponent: str = "linear", **settings: Any) -> CBMLLoss:
        """A loss whose exponentials fit the similarities of some embeddings.

        Args:
            statistics: for example ``PairStatistics.of(embeddings, labels)``.
            exponent: ``"linear"`` for Sec. 4.4 F, ``"quadratic"`` for Eq. (20), by default with ``delta="ratio"``.
            settings: other arguments of the class.
        """
        if exponent not in ("linear", "quadratic"):
            raise ValueError(f"exponent must be 'linear' or 'quadratic'; got {exponent!r}")
        if exponent == "quadratic":
            known = statistics.mean_pos, statistics.std_pos, statistics.mean_neg, statistics.std_neg
            return cls(**{"delta": "ratio", "statistics": known, **settings})
        if "delta" in settings:
            raise ValueError("Sec. 4.4 F has delta in the exponents; leave it out")
        return cls(**(statistics.exponents() | settings))

    def before_call(
        self,
        embeddings: Tensor,
        labels: Tensor | None,
        ref_emb: Tensor | None,
        ref_labels: Tensor | None,
        relation: Relation | None,
    ) -> None:
        """Estimate ``"auto"`` statistics in the first training call."""
        if relation is not None:
            raise ValueError(f"statistics={self.estimated!r} of CBMLLoss needs classes; give four numbers")
        if ref_emb is None:
            run_eagerly(self._fit, embeddings, labels)
        else:
            run_eagerly(self._fit, ref_emb, ref_labels)

    def _fit(self, embeddings: Tensor, labels: Tensor | None) -> None:
        if self.estimates.isfinite().all():
            self._use(PairStatistics(*self.estimates.tolist()))
            self.wants_before_call = False
            return
        if labels is None:
            raise ValueError(f"statistics={self.estimated!r} of CBMLLoss needs labels in the first call")
        try:
            known = PairStatistics.of(embeddings, labels)
            self._use(known)
        except ValueError:
            warnings.warn(NO_ESTIMATES.format(self.estimated), TrainingWarning, stacklevel=2)
            self._use_constants()
            return
        if self.training and torch.is_grad_enabled():
            self.estimates.copy_(torch.tensor(dataclasses.astuple(known), dtype=torch.float64))
            self._use(PairStatistics(*self.estimates.tolist()))  # the digits that a resumed run has
            self.wants_before_call = False
            self._log_rule()

    def _use(self, known: PairStatistics) -> None:
        if self.estimated == "auto":
            self._use_centers_and_widths(known)
        else:
            self.statistics = dataclasses.astuple(known)[:4]
            self.delta = "ratio"

    def _use_centers_and_widths(self, known: PairStatistics) -> None:
        if known.is_centered:
            self.rule = WHITENED
            exponents = known.trained_exponents()
        else:
            self.rule = SECTION
            exponents = known.exponents()
            exponents["beta_neg"] = max(exponents["beta_neg"], (1 - exponents["alpha_neg"]) / LARGEST_EXPONENT)
        for name, value in exponents.items():
            setattr(self, name, value)

    def _log_rule(self) -> None:
        if not self.rule:
            return
        centers = f"centers {self.alpha_pos:.3g} and {self.alpha_neg:.3g}"
        widths = f"widths {self.beta_pos:.3g} and {self.beta_neg:.3g}"
        text = "CBML, statistics='auto': %s, because %s; %s, %s (positive, negative pairs)"
        logging.getLogger("pml_ext").info(text, self.rule, REASONS[self.rule], centers, widths)

    def _use_constants(self) -> None:
        self.alpha_pos, self.beta_pos, self.alpha_neg, self.beta_neg = CENTERS_AND_WIDTHS
        self.statistics = None
        self.rule = ""
        self.delta = 1.0

    def figures(self, run: RunView) -> dict[str, Figure]:
        """Fig. 3 of the paper."""
        return likelihood_ratio_figures(run)

    def equation(self, pairs: Pairs) -> Terms:
        """One value per anchor, Eq. (30)."""
        similarity = pairs.matrix
        masks = indicators(pairs.masks, similarity)
        counts = masks.sum(2, dtype=similarity.dtype)  # of positives and of negatives, [2, T]
        if self._needs_totals_alone(pairs):
            sums = F.HardSums(*self._slopes_and_centers(), self._log_delta(counts), self.epsilon)
            variance = F.Variance(self.mvc_weight, self.mvc_gamma, self.mvc_reduction, self.detach_target)
            return per_anchor(F.losses_of_anchors(similarity, masks, counts, sums, variance))

        terms = self._pair_terms(similarity, masks, counts, pairs.weights)
        variance_term = F.variance_around_target(
            similarity,
            masks,
            counts,
            gamma=self.mvc_gamma,
            reduction=self.mvc_reduction,
            detach_target=self.detach_target,
        )
        counted = counts.all(0)  # anchors with positives and negatives
        if self.skip_unmined:
            counted = counted & (hard_pair_masks(similarity, masks, self.epsilon) > 0).any(2).any(0)
        if self.collect_stats:
            positive, negative = terms * counted
            self.record(positive_loss=positive, negative_loss=negative, variance_loss=variance_term * counted)
        total = torch.add(terms.sum(0), variance_term, alpha=self.mvc_weight)
        return per_anchor(total * counted)  # a product keeps NaN, a mask would hide it

    def _needs_totals_alone(self, pairs: Pairs) -> bool:
        """Whether Eq. (30) can be computed with its gradient: hard pairs, g = log, and no term is recorded."""
        mines = self.mining and self.averaging == "log" and self.statistics is None and not self.skip_unmined
        return mines and pairs.weights is None and not self.collect_stats

    def _slopes_and_centers(self) -> tuple[tuple[float, float], tuple[float, float]]:
        return (-1 / self.beta_pos, 1 / self.beta_neg), (self.alpha_pos, self.alpha_neg)

    def _pair_terms(
        self,
        similarity: Tensor,
        masks: Tensor,
        counts: Tensor,
        weights: Tensor | None,
    ) -> Tensor:
        slopes, centers = self._slopes_and_centers()
        if self.mining:
            masks = hard_pair_masks(similarity, masks, self.epsilon)
        if self.statistics is not None:
            similarity = F.log_ratio(similarity, *self.statistics)
            centers = (0.0, 0.0)
            slopes = (-1.0, 1.0)
        if weights is not None:
            similarity = with_log_weights(similarity, masks[0], weights, slopes[0])
        sums = log_one_plus_sums(similarity, masks, slopes, centers, self._log_delta(counts))
        return F.AVERAGINGS[self.averaging](sums)

    def _log_delta(self, counts: Tensor) -> Tensor | float | None:
        if self.delta == 1:
            return None
        if isinstance(self.delta, str):
            log_pos, log_neg = counts.clamp(min=1).log()
            return torch.stack((log_neg - 2 * log_pos, log_pos - 2 * log_neg))
        if self.delta:
            return math.log(self.delta)
        return -math.inf
