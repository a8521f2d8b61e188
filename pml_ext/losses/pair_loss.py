"""The base of losses over pairs and triplets."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Unpack

import torch
from torch import Tensor

from ..distances import (
    EuclideanDistance,
    GramCosineSimilarity,
    TiledDistance,
    compare,
    matrix_of,
    require_distance,
    require_similarity,
)
from ..pairwise import (
    FullPrecisionForward,
    PairsOfRows,
    Related,
    Relation,
    apart,
    check_indices_tuple,
    in_tiles,
    related,
    rows_per_tile,
    tiles_of_rows,
)
from ..pml import BaseDistance, BaseMetricLossFunction, LossSettings
from ..reducers import has_uniform_weights, reduce_uniformly, require_sums
from ..settings import check_tile_size, number_settings, settings_repr
from .pairs import AllButItself, Pairs, Terms, reduced

_REQUIRED = {"larger": require_similarity, "smaller": require_distance}


class Given(NamedTuple):
    """The arguments of a call."""

    embeddings: Tensor
    labels: Tensor | None
    indices_tuple: tuple[Tensor, ...] | None
    ref_emb: Tensor
    ref_labels: Tensor | None
    own: Tensor | None  # the column of each embedding's own copy, [B]
    related: Related | None  # a relation and its labels, where these are not classes


class PairLossSettings(LossSettings, total=False):
    """Keyword arguments of pair losses."""

    tile_size: int | None
    relation: Relation | None


class PairLoss(FullPrecisionForward, BaseMetricLossFunction):  # type: ignore[misc]
    """Base of losses over the pairs or triplets of a batch. A subclass writes its settings and its equation.

    The base checks the batch, disables autocast, converts half precision to float32, computes the distance matrix and
    the masks of positive and negative pairs, and returns 0 for an empty batch. If ``tiles`` is set, it can also compute
    tiles of anchors with all columns: same value and gradient, memory linear in the batch.

    Class attributes:
        nearer: ``"larger"`` where the equation is written for similarities (the default distance is then the cosine
            similarity), ``"smaller"`` where it is written for distances (then the Euclidean distance of normalized
            embeddings), ``"either"`` where it takes both.
        recorded: names of the statistics that :meth:`record` sets with ``collect_stats``.
        tiles: ``"rows"`` if an anchor's value depends only on its own row; ``"classes"`` if it also depends on the rows
            of its class; None if the equation needs the whole matrix.
        graded: whether the equation uses ``pairs.weights``, the weights of positive pairs in a graded relation.
        sums_triplets: whether values are sums over each pair's triplets, unless triplets are listed. PML's reducers of
            single values are then refused.
        counts_repeats: whether the equation uses ``pairs.counts``, and so counts a pair as often as it is listed.

    Args:
        tile_size: number of anchors per tile; None chooses it.
        relation: replaces equality of labels: a :class:`pml_ext.SharedLabel`, :class:`pml_ext.Hierarchy`, ...; a call
            may override it.
        kwargs: PML's keyword arguments of losses.

    Raises:
        TypeError, ValueError: a distance that does not fit; a ``tile_size`` below 1, or for an equation without tiles;
            a graded relation for an equation without weights.
    """

    capabilities = frozenset({"labels", "indices_tuple", "references", "relation"})
    nearer: ClassVar[str] = "larger"
    recorded: ClassVar[tuple[str, ...]] = ()
    tiles: ClassVar[str | None] = None
    graded: ClassVar[bool] = False
    counts_repeats: ClassVar[bool] = False
    takes_all_pairs: ClassVar[bool] = True
    sums_triplets: ClassVar[bool] = False

    def __init__(
        self, tile_size: int | None = None, relation: Relation | None = None, **kwargs: Unpack[LossSettings]
    ) -> None:
        check_tile_size(self, tile_size)
        if tile_size is not None and self.tiles is None:
            name = type(self).__name__
            raise ValueError(f"{name} has no tiles: its equation needs all anchors at a time; leave out tile_size")
        super().__init__(**kwargs)
        if self.nearer in _REQUIRED:
            _REQUIRED[self.nearer](self, self.distance)
        self._check_relation(relation)
        self.tile_size, self.relation = tile_size, relation
        self._sums: dict[str, tuple[Tensor, Tensor]] = {}  # totals and counts of statistics in the current tile
        self.add_to_recordable_attributes(list_of_names=number_settings(type(self)), is_stat=False)
        self.add_to_recordable_attributes(list_of_names=list(self.recorded), is_stat=True)

    def equation(self, pairs: Pairs) -> Terms:
        """Return unreduced values, made by :func:`per_anchor`, :func:`per_pair` or :func:`per_triplet`."""
        raise NotImplementedError

    def takes_all_places(self, rows: int, alone: bool) -> bool | None:
        """Return how ``torch.compile`` treats the equation for a matrix with this number of rows.

        ``alone``: whether pairs follow only from the batch's labels. True: ``pairs.listed`` may be all matrix entries,
        so that no shape depends on the labels (for a reducer that weights all values equally). False: the loss runs
        outside the graph. None: no shape of the equation depends on the labels, and it is one graph.
        """
        return None

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: tuple[Tensor, ...] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
        relation: Relation | None = None,
    ) -> Any:
        """Return the reduced loss; arguments as in PML's losses; with a relation, labels are in its form."""
        self._check_relation(relation)
        indices_tuple = check_indices_tuple(indices_tuple)
        if (relation := self.relation if relation is None else relation) is not None:
            found = related(relation, embeddings, labels, indices_tuple, ref_emb, ref_labels)
            labels, indices_tuple, ref_labels = found
        given = embeddings, labels, indices_tuple, ref_emb, ref_labels
        if torch.compiler.is_compiling() and self._everywhere(embeddings, indices_tuple, ref_emb) is False:
            return apart(super().forward, *given)
        return super().forward(*given)

    def _check_relation(self, relation: Any) -> None:
        if relation is not None and not isinstance(relation, Relation):
            raise TypeError(f"relation must be an object such as SharedLabel() or Hierarchy(paths); got {relation!r}")
        if relation is not None and relation.graded and not self.graded:
            raise ValueError(
                f"{type(self).__name__} has no weights of pairs in its equation; take a relation with graded=False, or "
                "CBMLLoss, TiledMultiSimilarityLoss, TiledContrastiveLoss or TiledSupConLoss"
            )

    def _everywhere(self, embeddings: Tensor, indices_tuple: Any, ref_emb: Tensor | None) -> bool | None:
        """Return :meth:`takes_all_places`; False, not True, for listed triplets, statistics and per-value reducers."""
        alone = indices_tuple is None and (ref_emb is None or ref_emb is embeddings)
        takes = self.takes_all_places(len(embeddings), alone)
        listed = indices_tuple.indices_tuple if isinstance(indices_tuple, Related) else indices_tuple
        pairs = listed is not None and not isinstance(listed, AllButItself)
        lists = pairs and (len(listed) == 3 or self.counts_repeats)
        return False if takes and (lists or self.collect_stats or not has_uniform_weights(self.reducer)) else takes

    def compute_loss(
        self, embeddings: Tensor, labels: Tensor | None, indices_tuple: Any, ref_emb: Tensor, ref_labels: Tensor | None
    ) -> Terms:
        """Return PML's loss dictionary: the equation on the pairs of the batch."""
        if len(embeddings) == 0 or len(ref_emb) == 0:
            return self.zero_losses()  # type: ignore[no-any-return]
        related = indices_tuple if isinstance(indices_tuple, Related) else None
        indices_tuple = indices_tuple if related is None else related.indices_tuple
        own = indices_tuple.places if isinstance(indices_tuple, AllButItself) else None
        if own is not None:
            indices_tuple = None
        if self.sums_triplets and (indices_tuple is None or len(indices_tuple) != 3):
            require_sums(self, self.reducer)
        size = rows_per_tile(self.tile_size, len(embeddings), len(ref_emb), embeddings.device) if self.tiles else None
        given = Given(embeddings, labels, indices_tuple, ref_emb, ref_labels, own, related)
        terms = self._dense(given) if size is None else self._in_tiles(size, given)
        for name, info in terms.items():
            if info["losses"].ndim and not len(info["losses"]):
                terms[name] = reduced(0)["loss"]  # PML's reducers take no empty tensor
        return self.finished(terms, given)

    def finished(self, terms: Terms, given: Given) -> Terms:
        """Return the terms of a batch for the reducer; a subclass may change them."""
        return terms

    def _dense(self, given: Given) -> Terms:
        """Return the terms of the whole matrix."""
        embeddings, labels, indices_tuple, ref_emb, ref_labels, own, related = given
        matrix, references = matrix_of(self.distance, embeddings, ref_emb)
        asked = indices_tuple if related is None else related
        everywhere = bool(torch.compiler.is_compiling() and self._everywhere(embeddings, asked, ref_emb))
        rule = PairsOfRows(matrix.device, labels, indices_tuple, ref_labels, own, related, references=references)
        pairs = Pairs(
            matrix,
            *rule.weighted_masks(matrix),
            embeddings,
            ref_emb,
            self.distance,
            references,
            labels=None if references or indices_tuple is not None else labels,
            triplets=rule.triplets(),
            counts=rule.counts(matrix) if self.counts_repeats else None,
            whole_classes=not references,
            everywhere=everywhere,
        )
        self._sums = {}
        terms = self.equation(pairs)
        self._set_statistics(self._sums)
        if not everywhere:
            return terms
        return {
            name: reduced(reduce_uniformly(self.reducer, info["losses"], info["count"], info["divisor"]))["loss"]
            for name, info in terms.items()
        }

    def _in_tiles(self, size: int, given: Given) -> Terms:
        """Return the terms of :meth:`_dense`, computed ``size`` anchors at a time."""
        embeddings, labels, indices_tuple, ref_emb, ref_labels, own, related = given
        references, order, ends = ref_emb is not embeddings, None, None
        alone = not references and indices_tuple is None and related is None
        by_class = self.tiles == "classes" and alone
        if by_class and labels is not None:
            order = labels.argsort(stable=True)
            embeddings, labels = embeddings[order], labels[order]
            ends = torch.unique_consecutive(labels, return_counts=True)[1].cumsum(0).tolist()
            ref_emb = embeddings
        own_apart = own is not None and self.tiles == "rows" and ref_emb.requires_grad
        if own_apart:  # only own rows need a gradient; that of all rows would be as large as the memory
            ref_emb = ref_emb.detach()
        points = self.distance.maybe_normalize(embeddings)
        columns = self.distance.maybe_normalize(ref_emb) if references else points
        arguments = points.device, labels, indices_tuple, ref_labels, own, related
        rule = PairsOfRows(*arguments, references=references, rows=len(points))
        tile_matrix, joined = TiledDistance(self.distance, points, columns), _JoinedTerms(type(self).__name__, order)

        def part(rows: slice, anchors: tuple[Tensor, ...], whole: tuple[Tensor, ...]) -> list[Tensor]:
            self._sums = {}
            matrix = tile_matrix.of(anchors[0], whole[0])
            if own is not None and own_apart:
                matrix = matrix.index_copy(1, own, tile_matrix.of(anchors[0], whole[2]))
            pairs = Pairs(
                matrix,
                *rule.weighted_masks(matrix, rows),
                anchors[1],
                whole[1],
                self.distance,
                references,
                labels=labels[rows] if alone and labels is not None else None,
                triplets=rule.triplets(rows),
                counts=rule.counts(matrix, rows) if self.counts_repeats else None,
                first=rows.start,
                whole_classes=by_class,
                normalized=(anchors[0], whole[0]),
                compare=lambda x, y: compare(self.distance, x, y),
            )
            return [*joined.flat(self.equation(pairs), rows.start), *self._statistics(matrix)]

        values, whole = len(self._sub_loss_names()), (columns, ref_emb, *([points] if own_apart else []))
        results = in_tiles(
            part,
            (points, embeddings),
            whole,
            tiles_of_rows(len(points), size, ends),
            list(self.parameters()),
            values=values,
            at_once=has_uniform_weights(self.reducer, points.device),
        )
        tile_matrix.finish()
        if self.collect_stats:
            sums = [result.sum() for result in results[len(results) - 2 * len(self.recorded) :]]
            self._set_statistics(dict(zip(self.recorded, zip(sums[::2], sums[1::2], strict=True), strict=True)))
        return joined.terms(results)

    def record(self, **statistics: Tensor | tuple[Tensor, Tensor | float]) -> None:
        """Set statistics by name if ``collect_stats``: tensors, to be averaged, or pairs (total, divisor)."""
        if not self.collect_stats:
            return
        for name, value in statistics.items():
            total, count = value if isinstance(value, tuple) else (value.sum(), value.numel())
            self._sums[name] = total.detach(), torch.as_tensor(count, dtype=total.dtype, device=total.device)

    def _statistics(self, like: Tensor) -> list[Tensor]:
        """Return the current tile's totals and counts of statistics, one entry each."""
        if not self.collect_stats:
            return []
        none = like.new_zeros(()), like.new_zeros(())
        return [x.detach().reshape(1).to(like.dtype) for name in self.recorded for x in self._sums.get(name, none)]

    def _set_statistics(self, sums: dict[str, tuple[Tensor, Tensor]]) -> None:
        self._sums = {}
        for name, (total, count) in sums.items():
            setattr(self, name, total / count.clamp(min=1))

    def get_default_distance(self) -> BaseDistance:
        """Return cosine similarity, or the Euclidean distance of normalized embeddings."""
        return EuclideanDistance() if self.nearer == "smaller" else GramCosineSimilarity()

    def extra_repr(self) -> str:
        """Return the settings."""
        return settings_repr(self)


class _JoinedTerms:
    """Conversion of tiles' terms to tensors to concatenate, and back; ``order``, ``[B]``: batch row of each row."""

    def __init__(self, owner: str, order: Tensor | None) -> None:
        self._owner, self._order = owner, order
        self._kinds: dict[str, tuple[str, bool]] = {}  # by name: reduction type, and whether the divisor is the count

    def flat(self, terms: Terms, start: int) -> list[Tensor]:
        """Return the values of a tile whose first row is ``start``, followed by their indices and divisors."""
        values, rest = [], []
        for name, info in terms.items():
            losses, indices, divisor = info["losses"], info["indices"], info.get("divisor")
            if info["reduction_type"] == "already_reduced":
                raise TypeError(
                    f"{self._owner} gives one value for the whole batch, which tiles of it do not have; return "
                    "values per anchor, pair or triplet, or leave out the class's tiles"
                )
            elements = divisor is None or (isinstance(divisor, int) and divisor == len(losses))
            self._kinds[name] = info["reduction_type"], elements
            anchors, *partners = (indices,) if isinstance(indices, Tensor) else indices
            values.append(losses)
            rest += [anchors + start, *partners]
            divisor = len(losses) if divisor is None else divisor
            rest.append(torch.as_tensor(divisor, device=losses.device).detach().reshape(1).to(losses.dtype))
        return [*values, *rest]

    def terms(self, results: tuple[Tensor, ...]) -> Terms:
        """Return the terms of the whole batch, pairs in row-major order, from the joined results of :meth:`flat`."""
        terms, left = {}, iter(results[len(self._kinds) :])
        for losses, (name, (kind, elements)) in zip(results, self._kinds.items(), strict=False):
            indices = [next(left) for _ in range({"element": 1, "triplet": 3}.get(kind, 2))]
            divisor = next(left)
            total: Tensor | int = len(losses) if elements else divisor.sum()
            if self._order is not None:
                indices = [self._order[index] for index in indices]
                places = indices[0] if len(indices) == 1 else indices[0] * len(self._order) + indices[1]
                by_row = places.argsort(stable=True)
                losses, indices = losses[by_row], [index[by_row] for index in indices]
            kept: Any = indices[0] if len(indices) == 1 else tuple(indices)
            terms[name] = {"losses": losses, "indices": kept, "reduction_type": kind, "divisor": total}
        return terms
