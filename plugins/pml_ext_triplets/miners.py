"""Miners of local positive pairs, and of triplets with anchor and positive swapped."""

from typing import Any, Unpack

import torch
from torch import Tensor

from pml_ext.plugin import (
    BaseDistance,
    BaseMiner,
    EmbeddingsAlreadyPackagedAsTriplets,
    EuclideanDistance,
    MinerSettings,
    PairMinerSettings,
    TiledMiner,
    autocast_off,
    check_batch,
    check_number,
    pair_to_full_precision,
    require_distance,
)

from .functional import local_positives


class LocalPositiveMiner(TiledMiner):
    r"""Miner of near positive pairs and all negative pairs, for any loss, Sec. 5.3.

    A positive pair (a, p) is kept where

    .. math:: d_{ap} \le P_{60}\{d_{ap'} : p' \text{ a positive of } a\},

    so that a class may extend along a manifold instead of shrinking to a ball.

    *Cost:* one product of ``B x D x R``; memory for a tile and for the result, which includes all negative pairs.

    Args:
        percentile: from 0 (only the nearest positive) to 100 (all); 60 in the paper, interpolated linearly.
        tile_size: anchors per tile; automatic by default.
        kwargs: as in PML's miners; for ``distance``, smaller must mean nearer.

    Raises:
        ValueError: a wrong percentile or distance.

    *Source:* Shah, Clustering and Querying Images, Sec. 5.3; see :class:`BatchAllTripletLoss`.
    """

    def __init__(
        self, percentile: float = 60.0, tile_size: int | None = None, **kwargs: Unpack[PairMinerSettings]
    ) -> None:
        check_number(self, "percentile", percentile, least=0, most=100)
        super().__init__(tile_size, **kwargs)
        require_distance(self, self.distance)
        self.percentile = percentile
        self.add_to_recordable_attributes(name="percentile", is_stat=False)

    def choose(self, matrix: Tensor, positives: Tensor, negatives: Tensor) -> tuple[Tensor, ...]:
        """The pairs of a tile: rows and columns of the positives, then of the negatives."""
        if matrix.numel():
            positives = local_positives(matrix, positives, self.percentile)
        return (*torch.where(positives), *torch.where(negatives))


class AnchorSwapMiner(BaseMiner):  # type: ignore[misc]
    r"""Miner that swaps anchor and positive if the positive is nearer to the negative, Sec. 5.1.

    .. math:: (a, p, n) \mapsto (p, a, n) \quad \text{where } d_{pn} < d_{an},

    which makes the loss larger ("in-triplet hard mining").

    Args:
        miner: finds the triplets; None if the batch lists them, as from :class:`pml_ext.HardNegativePoolSampler`.
        kwargs: as in PML's miners; for ``distance``, smaller must mean nearer.

    Raises:
        ValueError: a miner of pairs, a wrong distance; in a call, references.

    *Source:* Shah, Clustering and Querying Images, Sec. 5.1; see :class:`BatchAllTripletLoss`.
    """

    capabilities = frozenset({"labels"})

    @property
    def relation(self) -> Any:
        """The relation of the miner that finds the triplets."""
        return getattr(self.miner, "relation", None)

    @property
    def expected_failed_checks(self) -> dict[str, str]:
        """Conformance checks that need other batches, or distinct triplets."""
        if not isinstance(self.miner, EmbeddingsAlreadyPackagedAsTriplets):
            twice = "a triplet and the one with its anchor and positive swapped may become the same"
            return {"check_mined_indices": twice, "check_degenerate_batches": twice}
        names = "mined_indices calls_are_independent order_does_not_matter sizes degenerate_batches devices"
        return {f"check_{name}": "the batch comes as triplets, in their order" for name in names.split()}

    def __init__(self, miner: torch.nn.Module | None = None, **kwargs: Unpack[MinerSettings]) -> None:
        super().__init__(**kwargs)
        require_distance(self, self.distance)
        if miner is None:
            self.miner = EmbeddingsAlreadyPackagedAsTriplets()
        else:
            self.miner = miner

    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The triplets (anchors, positives, negatives), ``[T]`` each.

        Embeddings are ``[B, D]``, labels ``[B]``, or as the relation accepts them.
        """
        if ref_emb is not None or ref_labels is not None:
            raise ValueError("AnchorSwapMiner turns positives into anchors, so it takes no references")
        self.reset_stats()
        if self.relation is None:
            if labels is None:
                raise TypeError("AnchorSwapMiner mines by labels; got None")
            check_batch(embeddings, labels)
            labels = labels.long()
        else:
            check_batch(embeddings, None)
        with torch.no_grad(), autocast_off(embeddings.device):
            x, _ = pair_to_full_precision(embeddings, None)
            mined = self.miner(x, labels)
            if len(mined) != 3:
                raise ValueError(
                    f"AnchorSwapMiner needs a miner that gives triplets; {type(self.miner).__name__} gives pairs"
                )
            a, p, n = (index.to(x.device) for index in mined)  # PML creates the indices of packaged triplets on the CPU
            points = self.distance.maybe_normalize(x)
            d_pn = self.distance.pairwise_distance(points[p], points[n])
            d_an = self.distance.pairwise_distance(points[a], points[n])
            swap = d_pn < d_an
            triplets = torch.where(swap, p, a), torch.where(swap, a, p), n
        self.output_assertion(triplets)
        return triplets

    def get_default_distance(self) -> BaseDistance:
        """The Euclidean distance of normalized embeddings."""
        return EuclideanDistance()
