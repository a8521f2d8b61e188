"""Masks of positive, negative and hard pairs, and operators with them."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .batch import constant, outlives_the_call, transformed

_SMALL = 1 << 12
_KEPT_UP_TO = 1 << 20  # entries of a matrix
_LAST_MASKS: dict[torch.dtype, tuple[tuple[int, ...], Tensor, int]] = {}  # classes, masks, and their version
_FLOATS_ON = frozenset({"cpu"})  # types of devices where masks are faster as floats


def indicators(masks: Tensor, like: Tensor) -> Tensor:
    """Masks in their fastest form: 1 and 0 in the dtype of ``like``, or booleans.

    Floats are faster for large matrices on a CPU.
    """
    if masks.dtype == torch.bool and prefers_floats(like):
        return masks.view(torch.uint8).to(like.dtype)
    return masks


def prefers_floats(values: Tensor) -> bool:
    """Whether masks of a matrix are faster as floats."""
    return values.numel() > _SMALL and on_floats(values)


def on_floats(values: Tensor) -> bool:
    """Whether the device's arithmetic of floats is faster than that of masks."""
    return values.device.type in _FLOATS_ON and not torch.compiler.is_compiling()


def fill_outside(values: Tensor, mask: Tensor, number: float | tuple[float, ...]) -> Tensor:
    """Values inside a mask, else a number, finite unless the mask is boolean."""
    if mask.dtype == torch.bool:
        return torch.where(mask, values, constant(number, values))
    return torch.lerp(constant(number, values), values, mask)


def zero_outside(values: Tensor, mask: Tensor) -> Tensor:
    """Values inside a mask, else 0; the arguments broadcast."""
    if mask.dtype == torch.bool:
        return torch.where(mask, values, constant(0, values))
    return values * mask


def without_tiny(shares: Tensor) -> Tensor:
    """Zero shares below the squared precision, on a CPU in place, where denormals are slow."""
    if prefers_floats(shares):
        return torch.threshold_(shares, torch.finfo(shares.dtype).eps ** 2, 0)
    return shares


def weights_of_shares(weights: Tensor, shares: Tensor) -> Tensor:
    """Zero weights whose product with a share could be denormal."""
    if not prefers_floats(shares):
        return weights
    precision = torch.finfo(weights.dtype)
    return torch.nn.functional.hardshrink(weights, precision.tiny / precision.eps**2)


def zero_at_most(values: Tensor, others: Tensor, limit: float) -> Tensor:
    """Values, with 0 where ``others`` is at most a limit; NaN there keeps the value."""
    kept: Tensor = torch.ops.aten.threshold_backward(values, others, limit)
    return kept


class AllPairsExceptSelf(NamedTuple):
    """An ``indices_tuple`` for all pairs except embedding i with reference ``columns[i]``."""

    columns: Tensor


class RelationWeights(NamedTuple):
    """The weights of a relation between rows and columns."""

    of_rows: Callable[[slice], Tensor]  # a slice of the rows to weights, [T, R]: 0 is negative, NaN neither
    graded: bool  # whether positive pairs have weights other than 1


def pair_masks(
    matrix: Tensor,
    labels: Tensor | None,
    indices_tuple: tuple[Tensor, ...] | None = None,
    ref_labels: Tensor | None = None,
    *,
    has_references: bool = False,
    first: int = 0,
) -> Tensor:
    """Masks of positive and negative pairs, ``[2, B, R]``, from labels or from a miner's tuple.

    An ``indices_tuple`` gives only its pairs, or the (a, p) and (a, n) of its triplets, each once. Without references,
    the diagonal is left out.

    Args:
        matrix: any tensor of shape ``[B, R]`` on the right device.
        labels: of the rows, ``[B]``; unused with an ``indices_tuple``.
        indices_tuple: three index tensors (triplets), four (positive and negative pairs), or None.
        ref_labels: of the columns, ``[R]``; unused with an ``indices_tuple``.
        has_references: whether the columns are references.
        first: without references, the column of the first row.
    """
    masks = torch.empty(2, *matrix.shape, dtype=torch.bool, device=matrix.device)
    positives, negatives = masks.unbind()
    if indices_tuple is not None:
        a1, p, a2, n = _as_pairs(indices_tuple, matrix.device)
        masks.zero_()
        listed = masks.new_ones(())
        positives.index_put_((a1, p), listed)
        negatives.index_put_((a2, n), listed)
        if not has_references:
            negatives.diagonal(first).zero_()
    else:
        columns = ref_labels
        if columns is None and not has_references:
            columns = labels
        if labels is None or columns is None:
            missing = "labels" if labels is None else "ref_labels"
            raise ValueError(f"{missing} must be given where no indices_tuple is")
        rows = labels[:, None]
        torch.eq(rows, columns, out=positives)
        torch.bitwise_not(positives, out=negatives)
    if not has_references:
        positives.diagonal(first).zero_()
    return masks


def _masks_of_classes(matrix: Tensor, labels: Tensor) -> Tensor:
    """The masks of :func:`pair_masks` as floats.

    A sampler often groups every batch alike, so the masks of the last one are kept.
    """
    if not outlives_the_call(labels):  # its values may not be read either
        return pair_masks(matrix, labels).to(matrix.dtype)
    numbers: dict[int, int] = {}
    classes = tuple([numbers.setdefault(label, len(numbers)) for label in labels.tolist()])
    known, masks, version = _LAST_MASKS.get(matrix.dtype, ((), matrix, 0))
    if known == classes and masks._version == version:  # and nobody has written into them
        return masks
    rows = torch.tensor(classes, dtype=matrix.dtype, device=matrix.device)  # floats are compared faster than integers
    masks = torch.empty(2, *matrix.shape, dtype=matrix.dtype, device=matrix.device)
    positives, negatives = masks.unbind()
    torch.eq(rows.unsqueeze(1), rows, out=positives)
    torch.sub(constant(1, matrix), positives, out=negatives)
    positives.fill_diagonal_(0)
    if matrix.numel() <= _KEPT_UP_TO and not masks.is_inference():
        _LAST_MASKS[matrix.dtype] = (classes, masks, masks._version)
    return masks


def places_in(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Row and column of every True of a mask ``[B, R]``, in row-major order."""
    if prefers_floats(mask) and not transformed():  # NumPy is four times as fast for 128 x 128
        rows, columns = map(torch.from_numpy, np.divmod(np.flatnonzero(mask.numpy() != 0), mask.shape[1]))
    else:
        rows, columns = torch.where(mask)
    return rows, columns


def all_entries(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Row and column of every entry, ``[B * R]`` each, in row-major order."""
    places = torch.arange(matrix.shape[0] * matrix.shape[1], device=matrix.device)
    return places // matrix.shape[1], places % matrix.shape[1]


class PairsOfRows:
    """Pair masks of any slice of the rows of a batch; see :func:`pair_masks`.

    ``self_column``, ``[B]``: the column of each embedding's own copy, which is excluded. ``rows``: B if slices will be
    requested.
    """

    def __init__(
        self,
        device: torch.device,
        labels: Tensor | None,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_labels: Tensor | None,
        self_column: Tensor | None = None,
        relation: RelationWeights | None = None,
        *,
        has_references: bool,
        rows: int | None = None,
    ) -> None:
        self._labels = labels
        self._ref_labels = ref_labels if has_references else labels
        self._self_column = self_column
        self._relation = relation
        self._has_references = has_references
        self._lists: list[tuple[Tensor, ...]] | None = None
        if indices_tuple is not None:
            self._lists = _lists_of(indices_tuple, device)
            if rows is not None:
                self._sort_lists(rows)

    def _sort_lists(self, rows: int) -> None:
        assert self._lists is not None
        sorted_lists = []
        self._starts: list[list[int]] = []
        for pairs in self._lists:
            anchors = pairs[0]
            order = anchors.argsort(stable=True)
            numbers = torch.arange(rows + 1, device=anchors.device)
            starts = torch.searchsorted(anchors[order], numbers).tolist()
            if starts[0] > 0 or starts[-1] < len(anchors):
                raise IndexError(
                    f"indices_tuple has anchors {int(anchors.min())} to {int(anchors.max())}, and the batch has rows 0 "
                    f"to {rows - 1}; give the indices that a miner returns for this batch"
                )
            self._starts.append(starts)
            sorted_lists.append(tuple(index[order] for index in pairs))
        self._lists = sorted_lists

    def _listed(self, number: int, rows: slice | None) -> tuple[Tensor, ...]:
        assert self._lists is not None
        if rows is None:
            return self._lists[number]
        starts = self._starts[number]
        listed = slice(starts[rows.start], starts[rows.stop])
        anchors, *others = self._lists[number]
        return (anchors[listed] - rows.start, *(index[listed] for index in others))

    def masks(self, matrix: Tensor, rows: slice | None = None) -> Tensor:
        """Masks of positive and negative pairs of a slice of rows, ``[2, T, R]``."""
        masks, _ = self.weighted_masks(matrix, rows)
        return masks

    def weighted_masks(
        self, matrix: Tensor, rows: slice | None = None, as_floats: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """The masks, and the weights ``[T, R]`` of a graded relation or None.

        ``as_floats``: masks of a whole batch by its labels may be :func:`indicators`.
        """
        first = 0 if rows is None else rows.start
        if self._relation is not None:
            return self._related_masks(self._relation, matrix, rows, first)
        if self._lists is not None:
            return self._listed_masks(matrix, rows, first), None
        labels = self._labels
        as_floats = as_floats and rows is None and not self._has_references
        if as_floats and labels is not None and on_floats(matrix):
            return _masks_of_classes(matrix, labels), None
        if labels is not None and rows is not None:
            labels = labels[rows]
        masks = pair_masks(matrix, labels, None, self._ref_labels, has_references=self._has_references, first=first)
        if self._self_column is not None:
            self._leave_out_self(masks[0], rows)
        return masks, None

    def _listed_masks(self, matrix: Tensor, rows: slice | None, first: int) -> Tensor:
        pairs = (*self._listed(0, rows), *self._listed(1, rows))
        return pair_masks(matrix, None, pairs, has_references=self._has_references, first=first)

    def _related_masks(
        self, relation: RelationWeights, matrix: Tensor, rows: slice | None, first: int
    ) -> tuple[Tensor, Tensor | None]:
        weights = None
        if self._lists is None or relation.graded:
            weights = relation.of_rows(slice(None) if rows is None else rows)
        if self._lists is not None:
            masks = self._listed_masks(matrix, rows, first)
            if weights is not None:
                masks[0].logical_and_(weights > 0)  # NaN: listed, and neither positive nor negative in the relation
        else:
            assert weights is not None
            masks = torch.stack((weights > 0, weights == 0))
            for mask in masks:
                if not self._has_references:
                    mask.diagonal(first).zero_()
                if self._self_column is not None:
                    self._leave_out_self(mask, rows)
        if weights is None or not relation.graded:
            return masks, None
        return masks, weights.to(matrix.dtype)

    def _leave_out_self(self, mask: Tensor, rows: slice | None) -> None:
        assert self._self_column is not None
        if rows is None:
            columns = self._self_column
        else:
            columns = self._self_column[rows]
        mask.scatter_(1, columns[:, None], False)

    def counts(self, matrix: Tensor, rows: slice | None = None) -> tuple[Tensor, Tensor] | None:
        """How often each pair is listed, ``[T, R]`` for each kind; None without an indices_tuple."""
        if self._lists is None:
            return None
        one = torch.ones((), dtype=matrix.dtype, device=matrix.device)
        positives = torch.zeros_like(matrix).index_put_(self._listed(0, rows), one, accumulate=True)
        negatives = torch.zeros_like(matrix).index_put_(self._listed(1, rows), one, accumulate=True)
        return positives, negatives

    def triplets(self, rows: slice | None = None) -> tuple[Tensor, Tensor, Tensor] | None:
        """The listed triplets of a slice, with anchors relative to it; None for pairs."""
        if self._lists is None or len(self._lists) < 3:
            return None
        a, p, n = self._listed(2, rows)
        return a, p, n


def _lists_of(indices_tuple: tuple[Tensor, ...], device: torch.device) -> list[tuple[Tensor, ...]]:
    a1, p, a2, n = _as_pairs(indices_tuple, device)
    lists: list[tuple[Tensor, ...]] = [(a1, p), (a2, n)]
    if len(indices_tuple) == 3:
        lists.append((a1, p, n))
    return lists


def _as_pairs(indices_tuple: tuple[Tensor, ...], device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if len(indices_tuple) not in (3, 4):
        raise ValueError(
            "indices_tuple must hold three index tensors (anchors, positives, negatives) or four "
            f"(anchors, positives, anchors, negatives); got {len(indices_tuple)}"
        )
    indices = [torch.as_tensor(index).to(device, torch.long) for index in indices_tuple]
    if len(indices) == 3:
        anchors, positives, negatives = indices
        return anchors, positives, anchors, negatives
    a1, p, a2, n = indices
    return a1, p, a2, n


def hard_pair_masks(similarity: Tensor, masks: Tensor, epsilon: float = 0.1) -> Tensor:
    r"""Masks of the pairs that violate a margin (MS mining; CBML, Eq. 25 and 26).

    .. math::
        P_i^* = \{j \in P_i : s_{ij} < \max_{N_i} s_{ik} + \epsilon\}, \qquad
        N_i^* = \{j \in N_i : s_{ij} > \min_{P_i} s_{ik} - \epsilon\}

    Similarities are ``[B, R]``; masks, boolean or :func:`indicators`, and result are ``[2, B, R]``. An anchor without
    positives or without negatives has no hard pairs. All pairs of a row with NaN are hard.
    """
    similarity = similarity.detach()
    of_pairs, limits = pairs_and_limits(similarity, masks, epsilon, torch.finfo(similarity.dtype).max / 4)
    limit_of_positives, limit_of_negatives = limits.unbind()
    easy = of_pairs if masks.is_floating_point() else torch.empty_like(masks)
    easy_positives, easy_negatives = easy.unbind()
    torch.ge(similarity, limit_of_positives, out=easy_positives)
    torch.le(similarity, limit_of_negatives, out=easy_negatives)
    return torch.gt(masks, easy, out=easy)  # in the mask and not easy; no pair of a row with NaN is easy


def pairs_and_limits(similarity: Tensor, masks: Tensor, epsilon: float, far: float) -> tuple[Tensor, Tensor]:
    """Similarities of pairs, ``[2, B, R]``, and the limits of hard ones, ``[2, B, 1]``.

    Outside the masks, the similarity is ``far`` for positives and ``-far`` for negatives.
    """
    of_pairs = fill_outside(similarity, masks, (far, -far))
    positives, negatives = of_pairs.unbind()
    limits = similarity.new_empty(2, similarity.shape[0], 1)
    limit_of_positives, limit_of_negatives = limits.unbind()
    torch.amax(negatives, 1, keepdim=True, out=limit_of_positives)  # the nearest negative
    torch.amin(positives, 1, keepdim=True, out=limit_of_negatives)  # the farthest positive
    limits += constant((epsilon, -epsilon), similarity)
    return of_pairs, limits
