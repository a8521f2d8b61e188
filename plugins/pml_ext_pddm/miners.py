"""Miner of the hardest quadruplets under the learned metric or any other distance."""

from typing import Unpack

from torch import Tensor

from pml_ext.plugin import BaseDistance, ModuleSettings, PairMiner, Relation, check_count, check_flag, matrix_of

from .functional import hard_quadruplets


class HardQuadrupletMiner(PairMiner):
    r"""Miner of the most dissimilar positive pair and the hardest negative of each end.

    .. math::
        (\hat i, \hat j) = \arg\min_{P} S_{ij}, \quad \hat k = \arg\max_{N} S_{\hat i k}, \quad
        \hat l = \arg\max_{N} S_{\hat j l}

    as in Sec. 3.1. The miner returns the triplets (i, j, k) and (j, i, l). The first of equal values is mined.

    *Cost:* the distance matrix, and a sort of the positive pairs.

    Args:
        distance: S, or its negative if smaller means nearer; Euclidean by default, the baseline of Fig. 4.
        num_quadruplets: number of unordered pairs to mine, at least 1; 1 in the paper.
        per_class: whether ``num_quadruplets`` is per class rather than per batch.
        relation: as in :class:`pml_ext.plugin.PairLoss`.
        kwargs: as in PML's miners: ``collect_stats``.

    Raises:
        ValueError: references in a call, because positives become anchors, or ``per_class`` with labels that are not
            classes.

    *Source:* Huang et al., 2016, https://arxiv.org/abs/1610.08904.
    """

    def __init__(
        self,
        distance: BaseDistance | None = None,
        num_quadruplets: int = 1,
        per_class: bool = False,
        relation: Relation | None = None,
        **kwargs: Unpack[ModuleSettings],
    ) -> None:
        check_count(self, "num_quadruplets", num_quadruplets)
        check_flag(self, "per_class", per_class)
        super().__init__(relation, distance=distance, **kwargs)
        self.num_quadruplets = num_quadruplets
        self.per_class = per_class
        self.add_to_recordable_attributes(name="num_quadruplets", is_stat=False)

    def mine(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor, ref_labels: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The triplets (i, j, k) and (j, i, l) of each quadruplet."""
        if ref_emb is not embeddings:
            raise ValueError("HardQuadrupletMiner turns positives into anchors, so it takes no references")
        matrix, _ = matrix_of(self.distance, embeddings, embeddings)
        scores = matrix if self.distance.is_inverted else -matrix
        positives, negatives = self.pairs_of(embeddings, labels, ref_emb, ref_labels).masks(scores)
        if self.per_class and not self.has_classes:
            raise ValueError("per_class of HardQuadrupletMiner needs classes; the labels are not classes")
        classes = labels if self.per_class else None
        return hard_quadruplets(scores, positives, negatives, self.num_quadruplets, classes)[0]
