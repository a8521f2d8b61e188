"""Base of losses over pairs and triplets."""

import dataclasses
import functools
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from ..distances import (
    EuclideanDistance,
    GramCosineSimilarity,
    TiledDistance,
    compare,
    normalized_sides,
    require_distance,
    require_similarity,
    sides_and_matrix,
)
from ..pairwise import (
    AllPairsExceptSelf,
    PairsOfRows,
    autocast_off,
    check_batch,
    check_indices_tuple,
    check_references,
    in_tiles,
    labels_to_int64,
    pair_to_full_precision,
    rows_per_tile,
    run_eagerly,
    tiles_of_rows,
    with_bad_input,
)
from ..pml import BaseDistance, BaseMetricLossFunction, LossSettings
from ..reducers import require_sums
from ..relations import Related, Relation, related
from ..settings import check_keywords, check_tile_size, number_settings, settings_repr
from .compilation import Compilation, CompiledLoss
from .joined_terms import JoinedTerms
from .pairs import Pairs, Terms, reduce, reduced
from .statistics import LossStatistics

_REQUIRED = {"similarities": require_similarity, "distances": require_distance}
_ALWAYS_DENSE = 1 << 18  # matrix entries up to which no device computes in tiles


@dataclasses.dataclass
class LossInputs:
    """The arguments of a call, checked and in full precision."""

    embeddings: Tensor  # the anchors, [B, D]
    labels: Tensor | None
    indices_tuple: tuple[Tensor, ...] | None
    ref_emb: Tensor  # the columns, [R, D]; the same object as the embeddings without references
    ref_labels: Tensor | None
    self_column: Tensor | None  # the column of each embedding's own copy, [B]
    related: Related | None  # a relation and its labels, where these are not classes
    has_references: bool  # whether the columns are references


class PairLossSettings(LossSettings, total=False):
    """Keyword arguments of pair losses."""

    tile_size: int | None
    relation: Relation | None


class PairLoss(CompiledLoss, LossStatistics, BaseMetricLossFunction):  # type: ignore[misc]
    """Base of losses over pairs or triplets; a subclass defines settings and equation.

    The base checks the batch, computes in float32 or float64, and prepares the distance matrix and the masks of pairs.
    An empty batch gives 0. With ``tiles``, memory is linear in the batch.

    Class attributes:
        compares: ``"similarities"`` (default: cosine similarity), ``"distances"`` (default: Euclidean distance of
            normalized embeddings) or ``"either"``.
        statistic_names: names of the statistics that :meth:`record` sets with ``collect_stats``.
        tiles: ``"rows"`` if an anchor's value depends only on its own row, ``"classes"`` if also on the rows of its
            class, None if the equation needs the whole matrix.
        graded: whether the equation uses ``pairs.weights`` of a graded relation.
        sums_triplets: whether values are sums over each pair's triplets, which PML's reducers of single values cannot
            reduce.
        counts_repeats: whether the equation uses ``pairs.counts``, so that a pair counts as often as it is listed.
        wants_before_call: whether the next call begins with :meth:`before_call`.
        float_masks_up_to: entries of a matrix up to which ``pairs.masks`` may be floats, 1 and 0.
        takes_all_pairs: whether ``indices_tuple`` may be an :class:`AllPairsExceptSelf`.

    Args:
        tile_size: anchors per tile; automatic by default.
        relation: replaces equality of labels, such as :class:`pml_ext.SharedLabel`. A call may override it.
        kwargs: keyword arguments of PML's losses.

    Raises:
        TypeError, ValueError: a distance, ``tile_size`` or graded relation that the equation does not support.
    """

    capabilities = frozenset({"labels", "indices_tuple", "references", "relation"})
    compares: ClassVar[str] = "similarities"
    statistic_names: ClassVar[tuple[str, ...]] = ()
    tiles: ClassVar[str | None] = None
    graded: ClassVar[bool] = False
    counts_repeats: ClassVar[bool] = False
    takes_all_pairs: ClassVar[bool] = True
    sums_triplets: ClassVar[bool] = False
    float_masks_up_to: ClassVar[float] = 0
    wants_before_call: bool = False

    def __init__(
        self, tile_size: int | None = None, relation: Relation | None = None, **kwargs: Unpack[LossSettings]
    ) -> None:
        check_keywords(self, kwargs)
        check_tile_size(self, tile_size)
        if tile_size is not None and self.tiles is None:
            name = type(self).__name__
            raise ValueError(f"{name} has no tiles: its equation needs all anchors at a time; leave out tile_size")
        super().__init__(**kwargs)
        if self.compares in _REQUIRED:
            _REQUIRED[self.compares](self, self.distance)
        self._check_relation(relation)
        self.tile_size = tile_size
        self.relation = relation
        self._sums = {}
        self.add_to_recordable_attributes(list_of_names=list(number_settings(type(self))), is_stat=False)  # type: ignore[arg-type]
        self.add_to_recordable_attributes(list_of_names=list(self.statistic_names), is_stat=True)

    def equation(self, pairs: Pairs) -> Terms:
        """Unreduced values, made by :func:`per_anchor`, :func:`per_pair` or :func:`per_triplet`."""
        raise NotImplementedError

    # A call

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: tuple[Tensor, ...] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
        relation: Relation | None = None,
    ) -> Any:
        """The reduced loss of embeddings ``[B, D]`` of any floating point dtype.

        Labels ``[B]`` may be None with an ``indices_tuple`` of triplets (three index tensors) or pairs (four).
        References ``[R, D]`` with labels ``[R]`` replace the batch as partners. Wrong types or shapes raise TypeError
        or ValueError; NaN or infinity gives NaN.
        """
        if relation is None:
            relation = self.relation
        else:
            self._check_relation(relation)
        if self.wants_before_call:
            self.before_call(embeddings, labels, ref_emb, ref_labels, relation)
        if indices_tuple is not None:
            indices_tuple = check_indices_tuple(indices_tuple)
        given_labels = labels
        given_ref_labels = ref_labels
        tuple_or_related: Any = indices_tuple
        if relation is not None:
            labels, tuple_or_related, ref_labels = related(
                relation, embeddings, labels, indices_tuple, ref_emb, ref_labels
            )
        if torch.compiler.is_compiling():
            compilation = self._compilation_of_call(embeddings, tuple_or_related, ref_emb)
            if compilation is Compilation.EAGER:
                return run_eagerly(
                    self.forward, embeddings, given_labels, indices_tuple, ref_emb, given_ref_labels, relation
                )

        check_batch(embeddings, labels)
        if ref_emb is not None or ref_labels is not None:
            check_references(embeddings, ref_emb, ref_labels)
        with autocast_off(embeddings.device):
            has_references = ref_emb is not None and ref_emb is not embeddings
            embeddings, ref_emb = pair_to_full_precision(embeddings, ref_emb, self.distance.normalize_embeddings)
            labels = labels_to_int64(labels, embeddings.device)
            if ref_emb is None:
                ref_emb = embeddings
                ref_labels = labels
            else:
                ref_labels = labels_to_int64(ref_labels, ref_emb.device)

            if self.collect_stats:
                self.reset_stats()
            terms = self.compute_loss(embeddings, labels, tuple_or_related, ref_emb, ref_labels)
            if any("count" in info for info in terms.values()):
                terms = self._reduced_uniformly(terms)
            self.add_embedding_regularization_to_loss_dict(terms, embeddings)
            value = reduce(self.reducer, terms, embeddings, labels)
            return with_bad_input(value, embeddings, ref_emb if has_references else None)

    def before_call(
        self,
        embeddings: Tensor,
        labels: Tensor | None,
        ref_emb: Tensor | None,
        ref_labels: Tensor | None,
        relation: Relation | None,
    ) -> None:
        """Prepare for a call, given its raw arguments."""

    def _check_relation(self, relation: Any) -> None:
        if relation is None:
            return
        if not isinstance(relation, Relation):
            raise TypeError(f"relation must be an object such as SharedLabel() or Hierarchy(paths); got {relation!r}")
        if relation.graded and not self.graded:
            raise ValueError(
                f"{type(self).__name__} has no weights of pairs in its equation; take a relation with graded=False, or "
                "CBMLLoss, TiledMultiSimilarityLoss, TiledContrastiveLoss or TiledSupConLoss"
            )

    def compute_loss(
        self, embeddings: Tensor, labels: Tensor | None, indices_tuple: Any, ref_emb: Tensor, ref_labels: Tensor | None
    ) -> Terms:
        """PML's loss dictionary.

        ``indices_tuple`` may also be a :class:`Related` or an :class:`AllPairsExceptSelf`. If a term has a ``"count"``,
        its values are sums of so many pairs; :meth:`forward` divides by it where the reducer is a mean.
        """
        num_rows = embeddings.shape[0]
        num_columns = ref_emb.shape[0]
        if num_rows == 0 or num_columns == 0:
            return self.zero_losses()  # type: ignore[no-any-return]
        relation = None
        if isinstance(indices_tuple, Related):
            relation = indices_tuple
            indices_tuple = relation.indices_tuple
        self_column = None
        if isinstance(indices_tuple, AllPairsExceptSelf):
            self_column = indices_tuple.columns
            indices_tuple = None
        if self.sums_triplets and (indices_tuple is None or len(indices_tuple) != 3):
            require_sums(self, self.reducer)
        inputs = LossInputs(
            embeddings=embeddings,
            labels=labels,
            indices_tuple=indices_tuple,
            ref_emb=ref_emb,
            ref_labels=ref_labels,
            self_column=self_column,
            related=relation,
            has_references=ref_emb is not embeddings,
        )

        size = None
        if self.tiles is not None and (self.tile_size is not None or num_rows * num_columns > _ALWAYS_DENSE):
            size = rows_per_tile(self.tile_size, num_rows, num_columns, embeddings.device)
        if size is None:
            terms = self._whole(inputs)
        else:
            terms = self._in_tiles(inputs, size)

        for name, info in terms.items():
            if info["losses"].numel() == 0:
                terms[name] = reduced(0)["loss"]  # PML's reducers take no empty tensor
        return self.finalize_terms(terms, inputs)

    def finalize_terms(self, terms: Terms, inputs: LossInputs) -> Terms:
        """The terms of a batch for the reducer."""
        return terms

    # The pairs of a batch: all of its rows, or a tile of them

    def _pairs(
        self, inputs: LossInputs, of_rows: PairsOfRows, rows: slice | None, matrix: Tensor, **others: Any
    ) -> Pairs:
        first_row = 0
        if rows is not None:
            first_row = rows.start
        masks, weights = of_rows.weighted_masks(matrix, rows, matrix.numel() <= self.float_masks_up_to)
        triplets = None
        if inputs.indices_tuple is not None:
            triplets = of_rows.triplets(rows)
        counts = None
        if self.counts_repeats:
            counts = of_rows.counts(matrix, rows)
        labels = None
        if inputs.labels is not None and not inputs.has_references and inputs.indices_tuple is None:
            if rows is None:
                labels = inputs.labels
            else:
                labels = inputs.labels[rows]
        return Pairs(
            matrix,
            masks,
            weights,
            compare=functools.partial(compare, self.distance),
            has_references=inputs.has_references,
            labels=labels,
            triplets=triplets,
            first=first_row,
            counts=counts,
            **others,
        )

    def _masks(self, inputs: LossInputs, rows: int | None = None) -> PairsOfRows:
        weights = None
        if inputs.related is not None:
            weights = inputs.related.weights()
        return PairsOfRows(
            inputs.embeddings.device,
            inputs.labels,
            inputs.indices_tuple,
            inputs.ref_labels,
            inputs.self_column,
            weights,
            has_references=inputs.has_references,
            rows=rows,
        )

    def _whole(self, inputs: LossInputs) -> Terms:
        embeddings = inputs.embeddings
        ref_emb = inputs.ref_emb
        points, columns, matrix = sides_and_matrix(self.distance, embeddings, ref_emb)
        lists_all = False
        if torch.compiler.is_compiling():
            tuple_or_related: Any = inputs.related
            if tuple_or_related is None:
                tuple_or_related = inputs.indices_tuple
            compilation = self._compilation_of_call(embeddings, tuple_or_related, ref_emb)
            lists_all = compilation is Compilation.ALL_ENTRIES
        pairs = self._pairs(
            inputs,
            self._masks(inputs),
            None,
            matrix,
            embeddings=embeddings,
            ref_emb=ref_emb,
            points=points,
            columns=columns,
            whole_classes=not inputs.has_references,
            lists_all=lists_all,
        )
        if self.collect_stats:
            self._sums = {}
        terms = self.equation(pairs)
        if self.collect_stats:
            self._set_statistics(self._sums)
        return terms

    def _in_tiles(self, inputs: LossInputs, size: int) -> Terms:
        order = None
        ends = None
        by_labels = not inputs.has_references and inputs.indices_tuple is None and inputs.related is None
        by_class = self.tiles == "classes" and by_labels
        if by_class and inputs.labels is not None:
            inputs, order, ends = _sorted_by_class(inputs, inputs.labels)

        embeddings = inputs.embeddings
        ref_emb = inputs.ref_emb
        # The columns are a memory, which has a copy of each embedding. Of its gradient only these copies' rows are
        # used, and the gradient of all rows would be as large as the memory. So the columns are detached, and each
        # tile computes the columns of the copies anew, from the embeddings.
        has_copies = inputs.has_references and inputs.self_column is not None
        only_copies_need_gradient = has_copies and self.tiles == "rows" and ref_emb.requires_grad
        if only_copies_need_gradient:
            ref_emb = ref_emb.detach()
        points, columns = normalized_sides(self.distance, embeddings, ref_emb)
        masks = self._masks(inputs, rows=len(points))
        matrices = TiledDistance(self.distance, points, columns)
        joined = JoinedTerms(type(self).__name__, order)
        whole_tensors = [columns, ref_emb]
        if only_copies_need_gradient:
            whole_tensors.append(points)

        def terms_of_tile(rows: slice, anchors: tuple[Tensor, ...], whole: tuple[Tensor, ...]) -> list[Tensor]:
            self._sums = {}
            tile_points, tile_embeddings = anchors
            all_columns, all_references, *copies = whole
            matrix = matrices.of(tile_points, all_columns)
            if copies:
                assert inputs.self_column is not None
                matrix = matrix.index_copy(1, inputs.self_column, matrices.of(tile_points, copies[0]))
            pairs = self._pairs(
                inputs,
                masks,
                rows,
                matrix,
                embeddings=tile_embeddings,
                ref_emb=all_references,
                points=tile_points,
                columns=all_columns,
                whole_classes=by_class,
            )
            terms = self.equation(pairs)
            return [*joined.flat(terms, rows.start), *self._statistics(matrix)]

        results = in_tiles(
            terms_of_tile,
            (points, embeddings),
            whole_tensors,
            tiles_of_rows(len(points), size, ends),
            list(self.parameters()),
            values=len(self._sub_loss_names()),
            at_once=self.weighs_equally(points.device),
        )
        matrices.finish()
        if self.collect_stats:
            first_statistic = len(results) - 2 * len(self.statistic_names)
            self._add_statistics(results[first_statistic:])
        return joined.terms(results)

    def get_default_distance(self) -> BaseDistance:
        """The default distance of ``compares``."""
        if self.compares == "distances":
            return EuclideanDistance()
        return GramCosineSimilarity()

    def extra_repr(self) -> str:
        """The settings."""
        return settings_repr(self)


def _sorted_by_class(inputs: LossInputs, labels: Tensor) -> tuple[LossInputs, Tensor, list[int]]:
    order = labels.argsort(stable=True)
    embeddings = inputs.embeddings[order]
    labels = labels[order]
    ends: list[int] = torch.unique_consecutive(labels, return_counts=True)[1].cumsum(0).tolist()
    ordered = dataclasses.replace(inputs, embeddings=embeddings, labels=labels, ref_emb=embeddings, ref_labels=labels)
    return ordered, order, ends
