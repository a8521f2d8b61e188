"""Which pairs there are, as boolean matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from .reductions import masked_max, masked_min


def pair_masks(
    matrix: Tensor,
    labels: Tensor | None,
    indices_tuple: tuple[Tensor, ...] | None = None,
    ref_labels: Tensor | None = None,
    *,
    references: bool = False,
    first: int = 0,
) -> tuple[Tensor, Tensor]:
    """Positive and negative pairs, each once.

    They follow from the labels, or from a miner's tuple, whose pairs (or the (a, p) and the (a, n) of whose triplets)
    are then all the pairs there are. Without references an embedding is no partner of itself, by index; with references
    nothing is left out, since they need not hold the batch: the tuple alone keeps an embedding from its own copy.

    Args:
        matrix: any tensor of shape ``[B, R]`` on the device wanted, such as the similarities; its values are not read.
        labels: of the rows, ``[B]``; not needed with an ``indices_tuple``.
        indices_tuple: three index tensors (anchors, positives, negatives) or four (anchors, positives, anchors,
            negatives), or None.
        ref_labels: of the columns, ``[R]``; needed without an ``indices_tuple``, but for rows that are the columns.
        references: whether the columns are references and not the batch itself.
        first: without references, the column that the first row is: the rows are a part of the batch.

    Returns:
        Two boolean matrices ``[B, R]``.

    Raises:
        ValueError: neither labels nor a tuple, or a tuple of another length.
    """
    if indices_tuple is not None:
        positives, negatives = _masks_from_indices(matrix, indices_tuple)
        if not references:
            negatives.diagonal(first).zero_()
    else:
        columns = labels if ref_labels is None and not references else ref_labels
        if labels is None or columns is None:
            missing = "labels" if labels is None else "ref_labels"
            raise ValueError(f"{missing} must be given where no indices_tuple is")
        positives = labels[:, None] == columns
        negatives = ~positives
    if not references:
        positives.diagonal(first).zero_()
    return positives, negatives


def all_places(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Row and column of every place of a matrix, ``[B * R]`` each, in row-major order.

    Args:
        matrix: any tensor ``[B, R]``.
    """
    places = torch.arange(matrix.shape[0] * matrix.shape[1], device=matrix.device)
    return places // matrix.shape[1], places % matrix.shape[1]


class PairsOfRows:
    """The pairs of any rows of a batch, as :func:`pair_masks` gives them for all rows; arguments as there.

    Args:
        rows: how many the batch has.
        device: where the masks are wanted.
        labels: ``[B]``, or None.
        indices_tuple: three or four index tensors, or None.
        ref_labels: ``[R]``, or None.
        references: whether the columns are references.
        own_columns: ``[B]``, the reference that each embedding is itself, and no partner of; None where it is none.
    """

    def __init__(
        self,
        rows: int,
        device: torch.device,
        labels: Tensor | None,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_labels: Tensor | None,
        *,
        references: bool,
        own_columns: Tensor | None = None,
    ) -> None:
        self._own = own_columns
        self._labels, self._ref_labels = labels, ref_labels if references else labels
        self._references, self._lists = references, None
        if indices_tuple is not None:
            a1, p, a2, n = _as_pairs(indices_tuple, device)
            self._lists = _ByRow((a1, p), rows), _ByRow((a2, n), rows)
            self._triplets = _ByRow((a1, p, n), rows) if len(indices_tuple) == 3 else None

    def masks(self, matrix: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        """Positive and negative pairs of some rows.

        Args:
            matrix: any tensor of their shape, ``[T, R]``.
            rows: the rows.
        """
        if self._lists is None:
            labels = None if self._labels is None else self._labels[rows]
            positives, negatives = pair_masks(
                matrix, labels, None, self._ref_labels, references=self._references, first=rows.start
            )
            if self._own is not None:
                positives.scatter_(1, self._own[rows, None], False)
            return positives, negatives
        both = tuple(index for pairs in self._lists for index in pairs.of(rows))
        return pair_masks(matrix, None, both, references=self._references, first=rows.start)

    def triplets(self, rows: slice) -> tuple[Tensor, Tensor, Tensor] | None:
        """The listed triplets of some rows, their anchors counted from the first of them; None where pairs are.

        Args:
            rows: the rows.
        """
        if self._lists is None or self._triplets is None:
            return None
        a, p, n = self._triplets.of(rows)
        return a, p, n


class _ByRow:
    """Index tensors in the order of the first of them."""

    def __init__(self, indices: tuple[Tensor, ...], rows: int) -> None:
        order = indices[0].argsort(stable=True)
        self._indices = [index[order] for index in indices]
        numbers = torch.arange(rows + 1, device=order.device)
        self._starts = torch.searchsorted(self._indices[0], numbers).tolist()

    def of(self, rows: slice) -> list[Tensor]:
        """The entries of some rows, counted from the first of them."""
        start, stop = self._starts[rows.start], self._starts[rows.stop]
        first, *others = (index[start:stop] for index in self._indices)
        return [first - rows.start, *others]


def _masks_from_indices(matrix: Tensor, indices_tuple: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    a1, p, a2, n = _as_pairs(indices_tuple, matrix.device)
    return _mask(matrix, a1, p), _mask(matrix, a2, n)


def _as_pairs(indices_tuple: tuple[Tensor, ...], device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if not isinstance(indices_tuple, (tuple, list)) or len(indices_tuple) not in (3, 4):
        length = f" of length {len(indices_tuple)}" if isinstance(indices_tuple, (tuple, list)) else ""
        raise ValueError(
            "indices_tuple must hold three index tensors (anchors, positives, negatives) or four "
            "(anchors, positives, anchors, negatives); "
            f"got a {type(indices_tuple).__name__}{length}"
        )
    indices = [index.to(device, torch.long) for index in indices_tuple]
    a1, p, a2, n = indices if len(indices) == 4 else (indices[0], indices[1], indices[0], indices[2])
    return a1, p, a2, n


def _mask(matrix: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    mask = torch.zeros(matrix.shape, dtype=torch.bool, device=matrix.device)
    return mask.index_put_((rows, columns), mask.new_ones(()))


@torch.no_grad()
def hard_pair_masks(
    similarity: Tensor, positives: Tensor, negatives: Tensor, epsilon: float = 0.1
) -> tuple[Tensor, Tensor]:
    r"""Pairs that violate a margin (MS mining; CBML, Eq. 25 and 26).

    .. math::
        P_i^* = \{j \in P_i : s_{ij} < \max_{N_i} s_{ik} + \epsilon\}, \qquad
        N_i^* = \{j \in N_i : s_{ij} > \min_{P_i} s_{ik} - \epsilon\}

    Args:
        similarity: ``[B, R]``, larger means nearer.
        positives: boolean, ``[B, R]``.
        negatives: boolean, ``[B, R]``.
        epsilon: the margin, in units of the similarity.

    Returns:
        Two boolean matrices ``[B, R]``: subsets of the masks given, empty for an anchor without positives or negatives.
        Every pair of a row with NaN counts as hard, so that no NaN is left out.
    """
    nearest_negative = masked_max(similarity, negatives)
    farthest_positive = masked_min(similarity, positives)
    # ``mask > easy`` is "in the mask and not easy"; no pair of a row with NaN is easy
    return (
        positives > (similarity >= nearest_negative[:, None] + epsilon),
        negatives > (similarity <= farthest_positive[:, None] - epsilon),
    )
