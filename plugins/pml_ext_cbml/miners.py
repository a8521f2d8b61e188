"""The pair miner of contrastive Bayesian metric learning."""

from typing import Unpack

import torch
from torch import Tensor

from pml_ext.plugin import (
    BaseDistance,
    GramCosineSimilarity,
    PairMinerSettings,
    TiledMiner,
    check_number,
    hard_pair_masks,
)


class HardPairMiner(TiledMiner):
    r"""Hard positive and negative pairs, Eq. (25) and (26).

    .. math::
        P_i^* = \{j \in P_i : s_{ij} < \max_{N_i} s_{ik} + \epsilon\}, \qquad
        N_i^* = \{j \in N_i : s_{ij} > \min_{P_i} s_{ik} - \epsilon\}

    PML's ``MultiSimilarityMiner`` finds the same pairs. ``CBMLLoss`` includes this mining.

    *Cost:* one product of ``B x D x R``; memory for a tile and for the returned pairs.

    Args:
        epsilon: the margin, in units of the similarity; 0.1 in the authors' code, not given in the paper.
        tile_size: anchors per tile; automatic by default.
        kwargs: as in PML's miners; ``distance`` is negated if smaller means nearer.

    *Source:* Kan et al., 2022; see :class:`CBMLLoss`.
    """

    def __init__(self, epsilon: float = 0.1, tile_size: int | None = None, **kwargs: Unpack[PairMinerSettings]) -> None:
        check_number(self, "epsilon", epsilon)
        super().__init__(tile_size, **kwargs)
        self.epsilon = epsilon
        self.add_to_recordable_attributes(name="epsilon", is_stat=False)

    def choose(self, matrix: Tensor, positives: Tensor, negatives: Tensor) -> tuple[Tensor, ...]:
        """The pairs of Eq. (25)."""
        if matrix.numel():
            if self.distance.is_inverted:
                similarity = matrix
            else:
                similarity = -matrix
            masks = torch.stack((positives, negatives))
            positives, negatives = hard_pair_masks(similarity, masks, self.epsilon)
        return (*torch.where(positives), *torch.where(negatives))

    def get_default_distance(self) -> BaseDistance:
        """Cosine similarity."""
        return GramCosineSimilarity()
