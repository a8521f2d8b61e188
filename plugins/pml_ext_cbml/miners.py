"""The mining of contrastive Bayesian metric learning, on its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pml_ext.plugin import (
    BaseDistance,
    BaseMiner,
    FullPrecisionMining,
    GramCosineSimilarity,
    check_number,
    hard_pair_masks,
    matrix_of,
    pair_masks,
)


class HardPairMiner(FullPrecisionMining, BaseMiner):  # type: ignore[misc]
    r"""Hard positive and negative pairs, Eq. (25) and (26).

    .. math::
        P_i^* = \{j \in P_i : s_{ij} < \max_{N_i} s_{ik} + \epsilon\}, \qquad
        N_i^* = \{j \in N_i : s_{ij} > \min_{P_i} s_{ik} - \epsilon\}

    It finds the pairs of PML's ``MultiSimilarityMiner``, without its two sorts. ``CBMLLoss`` mines so by itself; before
    ``CBMLLoss(mining=False)`` it gives the same loss where ``mvc_weight=0`` (else the variance runs over mined pairs
    only).

    *Cost:* one product of ``B x D x R``, memory of a few ``B x R``.

    Args:
        epsilon: the margin, in units of the similarity; the paper gives none, the authors' program has 0.1.
        kwargs: as in PML's miners: ``distance`` (any; one where smaller means nearer is negated), ``collect_stats``.

    Raises:
        TypeError: epsilon is not a number.
        ValueError: it is not finite.

    *Source:* Kan et al., Contrastive Bayesian Analysis for Deep Metric Learning, 2022, https://arxiv.org/abs/2210.04402.
    """

    capabilities = frozenset({"labels", "references"})

    def __init__(self, epsilon: float = 0.1, **kwargs: Any) -> None:
        check_number(self, "epsilon", epsilon)
        super().__init__(**kwargs)
        self.epsilon = epsilon
        self.add_to_recordable_attributes(name="epsilon", is_stat=False)

    def mine(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor, ref_labels: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The pairs of Eq. (25)."""
        if len(embeddings) == 0 or len(ref_emb) == 0:
            none = torch.zeros(0, dtype=torch.long, device=embeddings.device)
            return none, none, none, none
        matrix, references = matrix_of(self.distance, embeddings, ref_emb)
        similarity = matrix if self.distance.is_inverted else -matrix
        positives, negatives = pair_masks(similarity, labels, None, ref_labels, references=references)
        hard_positives, hard_negatives = hard_pair_masks(similarity, positives, negatives, self.epsilon)
        a1, p = torch.where(hard_positives)
        a2, n = torch.where(hard_negatives)
        return a1, p, a2, n

    def get_default_distance(self) -> BaseDistance:
        """Cosine similarity."""
        return GramCosineSimilarity()

    def extra_repr(self) -> str:
        """The margin."""
        return f"epsilon={self.epsilon!r}"
