"""Positive, negative and hard pairs as boolean matrices."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .reductions import masked_max, masked_min
from .relations import Related


class AllButItself(NamedTuple):
    """An ``indices_tuple`` for all pairs by label, except embedding i with its own copy, reference ``places[i]``."""

    places: Tensor


def pair_masks(
    matrix: Tensor,
    labels: Tensor | None,
    indices_tuple: tuple[Tensor, ...] | None = None,
    ref_labels: Tensor | None = None,
    *,
    references: bool = False,
    first: int = 0,
) -> tuple[Tensor, Tensor]:
    """Return the masks of positive and negative pairs, ``[B, R]`` each, from labels or from a miner's tuple.

    With an ``indices_tuple``, the masks have only its pairs, or the (a, p) and (a, n) of its triplets, each once.
    Without references the diagonal is left out: an embedding is no partner of itself. References leave nothing out.

    Args:
        matrix: any tensor of shape ``[B, R]`` on the device wanted; its values are not read.
        labels: of the rows, ``[B]``; not needed with an ``indices_tuple``.
        indices_tuple: three index tensors (anchors, positives, negatives) or four (anchors, positives, anchors,
            negatives), or None.
        ref_labels: of the columns, ``[R]``; needed without an ``indices_tuple``, unless the columns are the rows.
        references: whether the columns are references and not the batch itself.
        first: without references, the column of the first row, if the rows are a part of the batch.
    """
    if indices_tuple is not None:
        a1, p, a2, n = _as_pairs(indices_tuple, matrix.device)
        positives, negatives = _mask(matrix, a1, p), _mask(matrix, a2, n)
        if not references:
            negatives.diagonal(first).zero_()
    else:
        columns = labels if ref_labels is None and not references else ref_labels
        if labels is None or columns is None:
            missing = "labels" if labels is None else "ref_labels"
            raise ValueError(f"{missing} must be given where no indices_tuple is")
        positives, negatives = labels[:, None] == columns, labels[:, None] != columns
    if not references:
        positives.diagonal(first).zero_()
    return positives, negatives


def all_places(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return row and column of every entry of a matrix ``[B, R]``, ``[B * R]`` each, in row-major order."""
    places = torch.arange(matrix.shape[0] * matrix.shape[1], device=matrix.device)
    return places // matrix.shape[1], places % matrix.shape[1]


class PairsOfRows:
    """Pair masks of any slice of the rows of a batch; arguments as of :func:`pair_masks`.

    ``own_columns``, ``[B]``: the column of each embedding's own copy, excluded as its partner; None without copies.
    ``rows``: B if slices of the rows will be requested, else None. ``related``: a relation with its labels, instead
    of labels.
    """

    def __init__(
        self,
        device: torch.device,
        labels: Tensor | None,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_labels: Tensor | None,
        own_columns: Tensor | None = None,
        related: Related | None = None,
        *,
        references: bool,
        rows: int | None = None,
    ) -> None:
        self._own, self._references, self._related = own_columns, references, related
        self._graded = related is not None and related.relation.graded
        self._labels, self._ref_labels = labels, ref_labels if references else labels
        self._lists: list[tuple[Tensor, ...]] | None = None
        if indices_tuple is not None:
            a1, p, a2, n = _as_pairs(indices_tuple, device)
            self._lists = [(a1, p), (a2, n), *([(a1, p, n)] if len(indices_tuple) == 3 else [])]
            if rows is not None:
                self._lists = [tuple(index[pairs[0].argsort(stable=True)] for index in pairs) for pairs in self._lists]
                numbers = torch.arange(rows + 1, device=device)
                self._starts = [torch.searchsorted(pairs[0], numbers).tolist() for pairs in self._lists]

    def _listed(self, number: int, rows: slice | None) -> tuple[Tensor, ...]:
        """Return the listed pairs or triplets of a slice of rows, anchors counted from the slice's start."""
        assert self._lists is not None
        if rows is None:
            return self._lists[number]
        start, stop = self._starts[number][rows.start], self._starts[number][rows.stop]
        first, *others = (index[start:stop] for index in self._lists[number])
        return (first - rows.start, *others)

    def masks(self, matrix: Tensor, rows: slice | None = None) -> tuple[Tensor, Tensor]:
        """Return the masks of positive and negative pairs of a slice of rows; of all rows by default."""
        return self.weighted_masks(matrix, rows)[:2]

    def weighted_masks(self, matrix: Tensor, rows: slice | None = None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the masks, and the weights of a graded relation, ``[T, R]``, or None without one."""
        chosen, first = slice(None) if rows is None else rows, 0 if rows is None else rows.start
        weights = None
        if self._related is not None and (self._lists is None or self._graded):
            weights = self._related.relation.matrix(self._related.labels[chosen], self._related.ref_labels)
        if self._lists is not None:
            both = (*self._listed(0, rows), *self._listed(1, rows))
            masks = pair_masks(matrix, None, both, references=self._references, first=first)
        elif weights is None:
            labels = None if self._labels is None else self._labels[chosen]
            masks = pair_masks(matrix, labels, None, self._ref_labels, references=self._references, first=first)
        else:
            masks = weights > 0, weights == 0
            for mask in masks if not self._references else ():
                mask.diagonal(first).zero_()
        if self._own is not None and self._lists is None:
            for mask in masks if weights is not None else masks[:1]:
                mask.scatter_(1, self._own[chosen, None], False)
        return *masks, weights.to(matrix.dtype) if weights is not None and self._graded else None

    def counts(self, matrix: Tensor, rows: slice | None = None) -> tuple[Tensor, Tensor] | None:
        """Return how often each positive and negative pair is listed, ``[T, R]``; None without an indices_tuple."""
        if self._lists is None:
            return None
        one = torch.ones((), dtype=matrix.dtype, device=matrix.device)
        positives, negatives = (
            torch.zeros_like(matrix).index_put_(self._listed(number, rows), one, accumulate=True) for number in (0, 1)
        )
        return positives, negatives

    def triplets(self, rows: slice | None = None) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return the listed triplets of a slice of rows, anchors counted from the slice's start; None for pairs."""
        if self._lists is None or len(self._lists) < 3:
            return None
        a, p, n = self._listed(2, rows)
        return a, p, n


def _as_pairs(indices_tuple: tuple[Tensor, ...], device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if len(indices_tuple) not in (3, 4):
        raise ValueError(
            "indices_tuple must hold three index tensors (anchors, positives, negatives) or four "
            f"(anchors, positives, anchors, negatives); got {len(indices_tuple)}"
        )
    indices = [torch.as_tensor(index).to(device, torch.long) for index in indices_tuple]
    a1, p, a2, n = indices if len(indices) == 4 else (indices[0], indices[1], indices[0], indices[2])
    return a1, p, a2, n


def _mask(matrix: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    mask = torch.zeros(matrix.shape, dtype=torch.bool, device=matrix.device)
    return mask.index_put_((rows, columns), mask.new_ones(()))


@torch.no_grad()
def hard_pair_masks(
    similarity: Tensor, positives: Tensor, negatives: Tensor, epsilon: float = 0.1
) -> tuple[Tensor, Tensor]:
    r"""Return the pairs that violate a margin (MS mining; CBML, Eq. 25 and 26).

    .. math::
        P_i^* = \{j \in P_i : s_{ij} < \max_{N_i} s_{ik} + \epsilon\}, \qquad
        N_i^* = \{j \in N_i : s_{ij} > \min_{P_i} s_{ik} - \epsilon\}

    All matrices are ``[B, R]``; larger similarities mean nearer. The two results are empty for an anchor without
    positives or negatives. Every pair of a row with NaN counts as hard, so that no NaN is left out.
    """
    nearest_negative = masked_max(similarity, negatives)
    farthest_positive = masked_min(similarity, positives)
    # ``mask > easy`` is "in the mask and not easy"; no pair of a row with NaN is easy
    return (
        positives > (similarity >= nearest_negative[:, None] + epsilon),
        negatives > (similarity <= farthest_positive[:, None] - epsilon),
    )
