"""The metric variance constraint as a regularizer for any loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import Tensor

from pml_ext.plugin import (
    BaseDistance,
    GramCosineSimilarity,
    LabeledRegularizer,
    RegularizerSettings,
    RunView,
    check_choice,
    check_flag,
    check_number,
    check_tile_size,
    per_anchor,
    reduced,
    require_similarity,
)

from .functional import REDUCTIONS, metric_variance
from .statistics import likelihood_ratio_figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class MetricVarianceRegularizer(LabeledRegularizer):
    r"""Metric variance constraint (MVC), Eq. (28) and (29): a penalty on an anchor's negatives.

    .. math::
        \operatorname{mean}_i \frac{1}{|N_i|} \sum_{j \in N_i} (s_{ij} - \xi_i)^2, \qquad
        \xi_i = \gamma \operatorname{mean}_{P_i} s_{ij} + (1 - \gamma) \operatorname{mean}_{N_i} s_{ij}

    ``RegularizedLoss(MultiSimilarityLoss(), MetricVarianceRegularizer(), weight=1)`` is the paper's "MS + MVC". The
    reducer gets one value per anchor, 0 without positives or without negatives.

    *Cost:* two products of ``B x D x B``, and a few ``B x B`` matrices; for large batches up to four, with memory
    linear in B.

    Args:
        gamma: weight of the positives in the target, in [0, 1].
        reduction: ``"mean"`` over an anchor's negatives, or ``"sum"``, as in the authors' code.
        detach_target: whether the target has no gradient.
        tile_size: anchors per tile; automatic by default.
        kwargs: as in PML's regularizers; ``distance`` must be a similarity.

    Raises:
        ValueError: a wrong setting or distance.

    *Source:* Kan et al., 2022; see :class:`CBMLLoss`.
    """

    def __init__(
        self,
        gamma: float = 0.2,
        reduction: str = "mean",
        detach_target: bool = False,
        tile_size: int | None = None,
        **kwargs: Unpack[RegularizerSettings],
    ) -> None:
        check_number(self, "gamma", gamma, least=0, most=1)
        check_choice(self, "reduction", reduction, REDUCTIONS)
        check_flag(self, "detach_target", detach_target)
        check_tile_size(self, tile_size)
        super().__init__(**kwargs)
        require_similarity(self, self.distance)
        self.gamma = gamma
        self.reduction = reduction
        self.detach_target = detach_target
        self.tile_size = tile_size
        self.add_to_recordable_attributes(name="gamma", is_stat=False)

    def compute_loss(self, embeddings: Tensor, labels: Tensor) -> dict[str, dict[str, Any]]:
        """One value per anchor, Eq. (29)."""
        if len(embeddings) == 0:
            return reduced(embeddings.sum())
        settings: Any = {"gamma": self.gamma, "reduction": self.reduction, "detach_target": self.detach_target}

        def equation(similarity: Tensor, positives: Tensor, negatives: Tensor) -> tuple[Tensor]:
            masks = torch.stack((positives, negatives))
            return (metric_variance(similarity, masks, **settings),)

        return per_anchor(*self.over_pairs(equation, embeddings, labels, tile_size=self.tile_size))

    def figures(self, run: RunView) -> dict[str, Figure]:
        """Fig. 3 of the paper."""
        return likelihood_ratio_figures(run)

    def get_default_distance(self) -> BaseDistance:
        """Cosine similarity."""
        return GramCosineSimilarity()
