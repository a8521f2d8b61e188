"""Base of miners in tiles of anchors, and a miner of semi-hard triplets."""

from typing import Any, NamedTuple, Unpack

import torch
from torch import Tensor

from .distances import EuclideanDistance, TiledDistance, matrix_of, normalized_sides
from .losses.calling import shift_indices
from .pairwise import (
    AllPairsExceptSelf,
    PairsOfRows,
    autocast_off,
    check_batch,
    check_indices_tuple,
    check_references,
    labels_to_int64,
    pair_to_full_precision,
    rows_per_tile,
    run_eagerly,
    tiles_of_rows,
)
from .pml import BaseDistance, BaseMiner, MinerSettings
from .relations import Related, Relation, related
from .settings import check_choice, check_keywords, check_number, check_tile_size, settings_repr

_ENTRIES = 1 << 21  # matrix entries of gathered rows in memory at a time


class PairMinerSettings(MinerSettings, total=False):
    """Keyword arguments of miners with an optional relation."""

    relation: Relation | None


class FullPrecisionMining:
    """Mixin before PML's miner base: mines in float32 or float64."""

    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Any:
        """Indices of pairs or triplets, in row-major order."""
        check_batch(embeddings, labels)
        check_references(embeddings, ref_emb, ref_labels)
        if labels is None or (ref_emb is not None and ref_labels is None):
            missing = "labels" if labels is None else "ref_labels"
            raise ValueError(f"{missing} must be given: {type(self).__name__} compares them to mine")
        with autocast_off(embeddings.device):
            embeddings, ref_emb = pair_to_full_precision(embeddings, ref_emb)
            labels = labels.long()
            ref_labels = labels_to_int64(ref_labels)
            return run_eagerly(super().forward, embeddings, labels, ref_emb, ref_labels)  # type: ignore[misc]


class _Call(NamedTuple):
    """Arguments of a call that PML's ``mine`` does not accept."""

    indices_tuple: Any = None
    related: Related | None = None
    has_classes: bool = True


class PairMiner(FullPrecisionMining, BaseMiner):  # type: ignore[misc]
    """Base of miners that choose among positive and negative pairs; define ``mine``.

    ``mine`` gets the pairs from :meth:`pairs_of`. An ``indices_tuple`` restricts them; labels may then be None.

    Args:
        relation: replaces equality of labels, as in :class:`pml_ext.plugin.PairLoss`.
        kwargs: PML's ``distance``, ``collect_stats``.
    """

    capabilities = frozenset({"labels", "relation"})
    takes_all_pairs = True  # an AllPairsExceptSelf is a valid indices_tuple

    def __init__(self, relation: Relation | None = None, **kwargs: Unpack[MinerSettings]) -> None:
        check_keywords(self, kwargs)
        super().__init__(**kwargs)
        self.relation = relation
        self._call = _Call()

    def forward(
        self,
        embeddings: Tensor,
        labels: Any,
        ref_emb: Tensor | None = None,
        ref_labels: Any = None,
        indices_tuple: tuple[Tensor, ...] | None = None,
        relation: Relation | None = None,
    ) -> Any:
        """Indices of pairs or triplets in row-major order, among ``indices_tuple`` if given."""
        indices_tuple = check_indices_tuple(indices_tuple)
        relation = self.relation if relation is None else relation
        related_labels = None
        if relation is not None:
            labels, found, ref_labels = related(relation, embeddings, labels, indices_tuple, ref_emb, ref_labels)
            if isinstance(found, Related):  # PML's base class requires one integer per row
                related_labels = found
                labels = None
        has_classes = labels is not None
        listed = indices_tuple is not None and not isinstance(indices_tuple, AllPairsExceptSelf)
        if not has_classes and (listed or related_labels is not None):
            labels = torch.arange(len(embeddings), device=embeddings.device)
            ref_labels = None if ref_emb is None else torch.arange(len(ref_emb), device=ref_emb.device)
        self._call = _Call(indices_tuple, related_labels, has_classes)
        try:
            return super().forward(embeddings, labels, ref_emb, ref_labels)
        finally:
            self._call = _Call()

    @property
    def has_classes(self) -> bool:
        """Whether the current call's labels are classes."""
        return self._call.has_classes

    def pairs_of(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor, ref_labels: Tensor, rows: int | None = None
    ) -> PairsOfRows:
        """The pairs of the current call, given the arguments of ``mine``.

        ``rows``: the number of all rows if slices will be requested.
        """
        indices_tuple = self._call.indices_tuple
        self_column = None
        if isinstance(indices_tuple, AllPairsExceptSelf):
            self_column = indices_tuple.columns
            indices_tuple = None
        weights = None if self._call.related is None else self._call.related.weights()
        return PairsOfRows(
            embeddings.device,
            labels,
            indices_tuple,
            ref_labels,
            self_column,
            weights,
            has_references=ref_emb is not embeddings,
            rows=rows,
        )

    def get_default_distance(self) -> BaseDistance:
        """The Euclidean distance of normalized embeddings."""
        return EuclideanDistance()

    def extra_repr(self) -> str:
        """The settings."""
        return settings_repr(self)


class TiledMiner(PairMiner):
    """Base of miners that choose an anchor's tuples from its row alone; define :meth:`choose`.

    Memory is linear in the batch, apart from the result.

    Args:
        tile_size: anchors per tile; automatic by default.
    """

    capabilities = frozenset({"labels", "references", "relation"})

    def __init__(self, tile_size: int | None = None, **kwargs: Unpack[PairMinerSettings]) -> None:
        check_tile_size(self, tile_size)
        super().__init__(**kwargs)
        self.tile_size = tile_size

    def choose(self, matrix: Tensor, positives: Tensor, negatives: Tensor) -> tuple[Tensor, ...]:
        """Indices of the triplets or pairs mined in a tile; anchors are rows of the tile.

        ``matrix`` has the distances, ``[T, R]``; ``positives`` and ``negatives`` are masks of its pairs.
        """
        raise NotImplementedError

    def mine(self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor, ref_labels: Tensor) -> tuple[Tensor, ...]:
        """Indices mined in all tiles, in the order of the tiles."""
        size = rows_per_tile(self.tile_size, len(embeddings), len(ref_emb), embeddings.device)
        if size is None:
            matrix, _ = matrix_of(self.distance, embeddings, ref_emb)
            return self.choose(matrix, *self.pairs_of(embeddings, labels, ref_emb, ref_labels).masks(matrix))
        points, columns = normalized_sides(self.distance, embeddings, ref_emb)
        by_rows = self.pairs_of(embeddings, labels, ref_emb, ref_labels, len(points))
        matrices = TiledDistance(self.distance, points, columns)
        mined = []
        for rows in tiles_of_rows(len(points), size):
            matrix = matrices.of(points[rows], columns)
            chosen = self.choose(matrix, *by_rows.masks(matrix, rows))
            mined.append(shift_indices(chosen, first=rows.start))
        matrices.finish()
        return tuple(torch.cat(each) for each in zip(*mined, strict=True))


class SemiHardTripletMiner(TiledMiner):
    r"""Miner of FaceNet's semi-hard triplets: the negative is farther, by at most a margin.

    .. math:: \{(a, p, n) : 0 < d_{an} - d_{ap} \le m\}

    With ``negatives="nearest"``, each positive pair gets its nearest qualifying negative, if any. ``"all"`` gives the
    triplets of PML's ``TripletMarginMiner(type_of_triplets="semihard")``. For a similarity the signs are reversed.

    *Cost:* one product of ``B x D x R``, and a pass over R for each positive pair; memory for a tile and the result.

    Args:
        margin: m, above 0, in units of the distance; 0.2.
        negatives: ``"nearest"`` or ``"all"``.
        tile_size: anchors per tile; automatic by default.
        kwargs: as in PML's miners; ``distance`` is Euclidean by default.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8]])
        >>> SemiHardTripletMiner(margin=0.5)(x, torch.tensor([0, 0, 1]))
        (tensor([0]), tensor([1]), tensor([2]))

    *Source:* Schroff et al., FaceNet: A Unified Embedding for Face Recognition and Clustering, 2015,
    https://arxiv.org/abs/1503.03832.
    """

    def __init__(
        self,
        margin: float = 0.2,
        negatives: str = "nearest",
        tile_size: int | None = None,
        **kwargs: Unpack[PairMinerSettings],
    ) -> None:
        check_number(self, "margin", margin, above=0)
        check_choice(self, "negatives", negatives, ("nearest", "all"))
        super().__init__(tile_size, **kwargs)
        self.margin = margin
        self.negatives = negatives
        self.add_to_recordable_attributes(name="margin", is_stat=False)

    def choose(self, matrix: Tensor, positives: Tensor, negatives: Tensor) -> tuple[Tensor, ...]:
        """The triplets of a tile."""
        distances = -matrix if self.distance.is_inverted else matrix
        step = max(1, _ENTRIES // max(1, matrix.shape[1]))
        all_anchors, all_partners = torch.where(positives)
        chosen = []
        for anchors, partners in zip(torch.split(all_anchors, step), torch.split(all_partners, step), strict=True):
            chosen.append(self._of_pairs(distances, negatives, anchors, partners))
        return tuple(torch.cat(each) for each in zip(*chosen, strict=True))

    def _of_pairs(
        self, distances: Tensor, negatives: Tensor, anchors: Tensor, partners: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        excess = distances[anchors] - distances[anchors, partners][:, None]
        too_near = excess <= 0
        too_far = excess > self.margin
        inside = negatives[anchors] & ~too_near & ~too_far  # keeps NaN, so that it is noticed
        if self.negatives == "all" or distances.shape[1] == 0:
            pairs, others = torch.where(inside)
        else:
            nearest = excess.masked_fill(~inside, torch.inf).argmin(1)
            pairs = torch.where(inside.any(1))[0]
            others = nearest[pairs]
        return anchors[pairs], partners[pairs], others
