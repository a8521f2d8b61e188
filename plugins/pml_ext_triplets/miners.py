"""Local positives for any loss, and in-triplet flips."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from pml_ext.plugin import (
    BaseDistance,
    BaseMiner,
    EmbeddingsAlreadyPackagedAsTriplets,
    EuclideanDistance,
    MinerSettings,
    TiledMiner,
    autocast_off,
    check_batch,
    check_number,
    pair_to_full_precision,
    require_distance,
)

from .functional import local_positives


class LocalPositiveMiner(TiledMiner):
    r"""Positive pairs that are near, as pairs for any loss, Sec. 5.3.

    A pair (a, p) is kept where

    .. math:: d_{ap} \le P_{60}\{d_{ap'} : p' \text{ a positive of } a\},

    so that a class may stretch along a manifold instead of shrinking to a ball. All negative pairs are kept.

    *Cost:* one product of ``B x D x R``; memory of a tile, and of the pairs that are returned: all negative ones too.

    Args:
        percentile: from 0 (the nearest positive alone) to 100 (all); 60 in the paper, interpolated linearly.
        tile_size: how many anchors a tile has; None chooses.
        kwargs: as in PML's miners: ``distance`` (one where smaller means nearer), ``collect_stats``.

    Raises:
        ValueError: the percentile is outside 0 to 100, or the distance is a similarity.

    *Source:* Shah, Clustering and Querying Images from Unknown Classes Using Metric Learning, Sec. 5.3.
    """

    def __init__(self, percentile: float = 60.0, tile_size: int | None = None, **kwargs: Unpack[MinerSettings]) -> None:
        check_number(self, "percentile", percentile, least=0, most=100)
        super().__init__(tile_size, **kwargs)
        require_distance(self, self.distance)
        self.percentile = percentile
        self.add_to_recordable_attributes(name="percentile", is_stat=False)

    def choose(self, matrix: Tensor, positives: Tensor, negatives: Tensor) -> tuple[Tensor, ...]:
        """The pairs."""
        if matrix.numel():
            positives = local_positives(matrix, positives, self.percentile)
        return (*torch.where(positives), *torch.where(negatives))


class AnchorSwapMiner(BaseMiner):  # type: ignore[misc]
    r"""Exchanges anchor and positive of a triplet where the positive is nearer to the negative, Sec. 5.1.

    .. math:: (a, p, n) \mapsto (p, a, n) \quad \text{where } d_{pn} < d_{an},

    which makes the loss larger ("in-triplet hard mining").

    Args:
        miner: finds the triplets; None where the batch is triplets already, an anchor, its positive, its negative, and
            so on, as :class:`pml_ext.HardNegativePoolSampler` draws them.
        kwargs: as in PML's miners: ``distance`` (one where smaller means nearer), ``collect_stats``.

    Raises:
        ValueError: the miner gives pairs, or the distance is a similarity.

    *Source:* Shah, Clustering and Querying Images from Unknown Classes Using Metric Learning, Sec. 5.1.
    """

    capabilities = frozenset({"labels"})

    def __init__(self, miner: torch.nn.Module | None = None, **kwargs: Unpack[MinerSettings]) -> None:
        super().__init__(**kwargs)
        require_distance(self, self.distance)
        self.miner = EmbeddingsAlreadyPackagedAsTriplets() if miner is None else miner

    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The triplets, anchors and positives exchanged where that makes them harder; there are no references."""
        if ref_emb is not None or ref_labels is not None:
            raise ValueError("AnchorSwapMiner makes positives anchors, so that it takes no references")
        check_batch(embeddings, labels)
        with torch.no_grad(), autocast_off(embeddings.device):
            x = pair_to_full_precision(embeddings, None)[0]
            mined = self.miner(x, labels.long())
            if len(mined) != 3:
                raise ValueError(
                    f"AnchorSwapMiner wants a miner that gives triplets; {type(self.miner).__name__} gives pairs"
                )
            a, p, n = (index.to(x.device) for index in mined)  # PML's of packaged triplets lie on the CPU
            points = self.distance.maybe_normalize(x)
            d_pn, d_an = (self.distance.pairwise_distance(points[one], points[n]) for one in (p, a))
            swap = d_pn < d_an
            return torch.where(swap, p, a), torch.where(swap, a, p), n

    def get_default_distance(self) -> BaseDistance:
        """Euclidean, of normalized embeddings."""
        return EuclideanDistance()
