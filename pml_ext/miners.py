"""Base of miners that work in tiles of anchors, and a miner of semi-hard triplets."""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import Tensor

from .distances import EuclideanDistance, TiledDistance, matrix_of
from .pairwise import (
    AllButItself,
    FullPrecisionMining,
    PairsOfRows,
    Related,
    Relation,
    check_indices_tuple,
    related,
    rows_per_tile,
    tiles_of_rows,
)
from .pml import BaseDistance, BaseMiner, MinerSettings
from .settings import check_choice, check_number, check_tile_size, settings_repr

_ENTRIES = 1 << 21  # matrix entries of gathered rows in memory at a time


class PairMinerSettings(MinerSettings, total=False):
    """Keyword arguments of miners that may have a relation."""

    relation: Relation | None


class PairMiner(FullPrecisionMining, BaseMiner):  # type: ignore[misc]
    """Base of miners that choose among positive and negative pairs; subclasses define ``mine`` by :meth:`pairs_of`.

    A ``relation``, as in :class:`pml_ext.PairLoss`, defines the pairs for labels of any shape. An ``indices_tuple`` in
    a call restricts them; labels may then be None. Other settings: PML's ``distance``, ``collect_stats``.
    """

    capabilities = frozenset({"labels", "relation"})
    takes_all_pairs = True  # an AllButItself is a valid indices_tuple

    def __init__(self, relation: Relation | None = None, **kwargs: Unpack[MinerSettings]) -> None:
        super().__init__(**kwargs)
        self.relation = relation
        self._asked: tuple[Any, Related | None] = (None, None)  # indices_tuple and relation of the current call
        self._without_classes = False

    def forward(
        self,
        embeddings: Tensor,
        labels: Any,
        ref_emb: Tensor | None = None,
        ref_labels: Any = None,
        indices_tuple: tuple[Tensor, ...] | None = None,
        relation: Relation | None = None,
    ) -> Any:
        """Return indices of pairs or triplets in row-major order, restricted to ``indices_tuple`` if it is given."""
        indices_tuple = check_indices_tuple(indices_tuple)
        asked = None
        if (relation := self.relation if relation is None else relation) is not None:
            labels, found, ref_labels = related(relation, embeddings, labels, indices_tuple, ref_emb, ref_labels)
            if isinstance(found, Related):  # PML's base class requires one integer per row
                asked, labels = found, None
        listed = indices_tuple is not None and not isinstance(indices_tuple, AllButItself)
        self._without_classes = labels is None
        if labels is None and (listed or asked is not None):
            labels = torch.arange(len(embeddings), device=embeddings.device)
            ref_labels = None if ref_emb is None else torch.arange(len(ref_emb), device=ref_emb.device)
        self._asked = indices_tuple, asked
        try:
            return super().forward(embeddings, labels, ref_emb, ref_labels)
        finally:
            self._asked = None, None
            self._without_classes = False

    @property
    def related(self) -> bool:
        """Whether the current call has no classes: a relation with other labels, or no labels."""
        return self._without_classes

    def pairs_of(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor, ref_labels: Tensor, rows: int | None = None
    ) -> PairsOfRows:
        """Return the pairs of the current call, given the arguments of ``mine``; ``rows``: rows per slice."""
        pairs, asked = self._asked
        own = pairs.places if isinstance(pairs, AllButItself) else None
        references = ref_emb is not embeddings
        arguments = embeddings.device, labels, pairs if own is None else None, ref_labels, own, asked
        return PairsOfRows(*arguments, references=references, rows=rows)

    def get_default_distance(self) -> BaseDistance:
        """Return the Euclidean distance of normalized embeddings."""
        return EuclideanDistance()

    def extra_repr(self) -> str:
        """Return the settings."""
        return settings_repr(self)


class TiledMiner(PairMiner):
    """Base of miners that choose an anchor's pairs or triplets from its row of the matrix alone.

    Subclasses define :meth:`choose`. The miner compares ``tile_size`` anchors (None: automatic) with all columns at a
    time. Memory is linear in the batch, apart from the result. Other settings are those of :class:`PairMiner`.
    """

    capabilities = frozenset({"labels", "references", "relation"})

    def __init__(self, tile_size: int | None = None, **kwargs: Unpack[PairMinerSettings]) -> None:
        check_tile_size(self, tile_size)
        super().__init__(**kwargs)
        self.tile_size = tile_size

    def choose(self, matrix: Tensor, positives: Tensor, negatives: Tensor) -> tuple[Tensor, ...]:
        """Return the indices of the triplets or pairs mined in a tile; anchors are rows of the tile.

        ``matrix`` has the miner's distances, ``[T, R]``; ``positives`` and ``negatives`` are masks of its pairs.
        """
        raise NotImplementedError

    def mine(self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor, ref_labels: Tensor) -> tuple[Tensor, ...]:
        """Return the indices mined in all tiles, in the order of the tiles."""
        references = ref_emb is not embeddings
        size = rows_per_tile(self.tile_size, len(embeddings), len(ref_emb), embeddings.device)
        if size is None:
            matrix, _ = matrix_of(self.distance, embeddings, ref_emb)
            return self.choose(matrix, *self.pairs_of(embeddings, labels, ref_emb, ref_labels).masks(matrix))
        points = self.distance.maybe_normalize(embeddings)
        columns = self.distance.maybe_normalize(ref_emb) if references else points
        by_rows = self.pairs_of(embeddings, labels, ref_emb, ref_labels, len(points))
        tile_matrix, mined = TiledDistance(self.distance, points, columns), []
        for rows in tiles_of_rows(len(points), size):
            matrix = tile_matrix.of(points[rows], columns)
            chosen = self.choose(matrix, *by_rows.masks(matrix, rows))
            anchors = {0} if len(chosen) == 3 else {0, 2}  # the other indices are columns and need no offset
            mined.append([index + rows.start * (number in anchors) for number, index in enumerate(chosen)])
        tile_matrix.finish()
        return tuple(torch.cat(each) for each in zip(*mined, strict=True))


class SemiHardTripletMiner(TiledMiner):
    r"""Miner of FaceNet's semi-hard triplets: the negative is farther than the positive, by at most a margin.

    .. math:: \{(a, p, n) : 0 < d_{an} - d_{ap} \le m\}

    With ``negatives="nearest"`` each positive pair gets the nearest of its negatives that qualify, if any does. With
    ``"all"`` these are the triplets of PML's ``TripletMarginMiner(type_of_triplets="semihard")``, which lists all
    triplets of the batch before it chooses. For a similarity the signs are reversed.

    *Cost:* one product of ``B x D x R``, and a pass over R for each positive pair; memory for a tile and the result.

    Args:
        margin: m, above 0, in units of the distance; 0.2.
        negatives: ``"nearest"`` or ``"all"``.
        tile_size: number of anchors per tile; None chooses it automatically.
        kwargs: as in PML's miners: ``distance`` (any; Euclidean, of normalized embeddings, by default),
            ``collect_stats``.

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
        self.margin, self.negatives = margin, negatives
        self.add_to_recordable_attributes(name="margin", is_stat=False)

    def choose(self, matrix: Tensor, positives: Tensor, negatives: Tensor) -> tuple[Tensor, ...]:
        """Return the triplets of a tile."""
        distances = -matrix if self.distance.is_inverted else matrix
        step = max(1, _ENTRIES // max(1, matrix.shape[1]))
        parts = zip(*(torch.split(each, step) for each in torch.where(positives)), strict=True)
        chosen = [self._of_pairs(distances, negatives, anchors, partners) for anchors, partners in parts]
        return tuple(torch.cat(each) for each in zip(*chosen, strict=True))

    def _of_pairs(
        self, distances: Tensor, negatives: Tensor, anchors: Tensor, partners: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        excess = distances[anchors] - distances[anchors, partners][:, None]
        inside = negatives[anchors] & ~(excess <= 0) & ~(excess > self.margin)  # keep NaN, so that it is noticed
        if self.negatives == "all" or distances.shape[1] == 0:
            pairs, others = torch.where(inside)
        else:
            nearest = excess.masked_fill(~inside, torch.inf).argmin(1)
            pairs = torch.where(inside.any(1))[0]
            others = nearest[pairs]
        return anchors[pairs], partners[pairs], others
