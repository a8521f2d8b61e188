"""Pairs of items to verify: listed by their rows, or drawn from classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..pairwise.batch import describe

if TYPE_CHECKING:
    from .retrieval import Sides

MOST_PAIRS = 1 << 27  # pairs that are listed unless a sample is asked for


@dataclass(frozen=True)
class VerificationPairs:
    """Pairs of items by their rows, and whether each is the same."""

    first: Tensor  # rows of the embeddings, [P], int64
    second: Tensor  # rows of the references, or of the embeddings, [P], int64
    same: Tensor  # [P], booleans

    def __len__(self) -> int:
        return len(self.same)

    def where(self, chosen: Tensor) -> VerificationPairs:
        """Select pairs by a mask ``[P]``."""
        return VerificationPairs(self.first[chosen], self.second[chosen], self.same[chosen])


def listed_pairs(first: Any, second: Any, same: Any, rows: int, reference_rows: int | None = None) -> VerificationPairs:
    """Check pairs given by indices, and return them.

    Args:
        first: rows of the embeddings, integers ``[P]``.
        second: rows of the references, or of the embeddings, integers ``[P]``.
        same: whether each pair is the same, booleans or 0 and 1, ``[P]``.
        rows: the number of embeddings.
        reference_rows: the number of references; None if both items are embeddings.

    TypeError or ValueError for invalid pairs.
    """
    columns = {"first": _indices("first", first), "second": _indices("second", second), "same": answers(same)}
    lengths = {name: tuple(column.shape) for name, column in columns.items()}
    if len(set(lengths.values())) > 1 or columns["first"].ndim != 1:
        raise ValueError(f"first, second and same must have one value for each pair; got shapes {lengths}")
    most = {"first": rows, "second": rows if reference_rows is None else reference_rows}
    for name, count in most.items():
        outside = (columns[name] < 0) | (columns[name] >= count)
        if outside.any():
            place = int(outside.nonzero()[0])
            raise ValueError(
                f"pair {place} names row {int(columns[name][place])} as its {name} item; rows are from 0 to {count - 1}"
            )
    if reference_rows is None:
        with_itself = (columns["first"] == columns["second"]).nonzero()
        if len(with_itself):
            place = int(with_itself[0])
            row = int(columns["first"][place])
            raise ValueError(f"pair {place} is row {row} with itself; wanted pairs of two items")
    return VerificationPairs(columns["first"], columns["second"], columns["same"])


def pairs_of_classes(
    labels: Any, reference_labels: Any = None, most: int | None = None, seed: int = 0
) -> VerificationPairs:
    """Pairs of items, which are the same if their classes are equal.

    Args:
        labels: classes of the embeddings, integers ``[N]``.
        reference_labels: classes of the second items, ``[R]``; None for pairs of two embeddings.
        most: number of pairs of each kind, drawn without replacement; None for all pairs.
        seed: of the draw.

    Raises:
        TypeError, ValueError: labels other than integers ``[N]``, or over 134 million pairs without ``most``.
    """
    rows = _indices("labels", labels).numpy()
    within = reference_labels is None
    columns = rows if within else _indices("reference_labels", reference_labels).numpy()
    total = len(rows) * (len(rows) - 1) // 2 if within else len(rows) * len(columns)
    if most is None:
        if total > MOST_PAIRS:
            raise ValueError(f"{len(rows)} items have {total:,} pairs; type most=1_000_000 for a sample")
        return _all_pairs(rows, columns, within)
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise ValueError(f"most must be a whole number of at least 1, the pairs of each kind, or None; got {most!r}")

    generator = np.random.default_rng(seed)
    same = _PairsByNumber(rows, columns, within, same=True).sample(most, generator)
    other = _PairsByNumber(rows, columns, within, same=False).sample(most, generator)
    pairs = np.concatenate([same, other])
    if within:
        pairs = np.sort(pairs, axis=1)
    return VerificationPairs(
        first=torch.from_numpy(pairs[:, 0]),
        second=torch.from_numpy(pairs[:, 1]),
        same=torch.arange(len(pairs)) < len(same),
    )


def pairs_of_sides(sides: Sides, most: int | None = None) -> VerificationPairs:
    """Pairs of a query and a gallery item, or of two queries; never within a group."""
    reference_labels = None
    if sides.reference is not sides.query:
        if sides.ref_includes_query:
            raise ValueError(
                "verification needs pairs of different items, but ref_includes_query puts the queries into the "
                "gallery too; leave out the verification metrics, or the gallery"
            )
        reference_labels = sides.reference_labels
    pairs = pairs_of_classes(sides.query_labels, reference_labels, most)
    if sides.groups is None:
        return pairs
    first = sides.groups.query[pairs.first].cpu()
    return pairs.where((first < 0) | (first != sides.groups.reference[pairs.second].cpu()))


def answers(same: Any) -> Tensor:
    """Answers as booleans; ValueError unless values are 0 and 1."""
    tensor = _numbers("same", same)
    known = (tensor == 0) | (tensor == 1)
    if not known.all():
        found = tensor[~known][0].item()
        raise ValueError(f"same must be 1 or 0 for each pair (or True and False); got {found}")
    return tensor.bool()


def _numbers(name: str, values: Any) -> Tensor:
    try:
        tensor: Tensor = torch.as_tensor(values).cpu()
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{name} must be numbers, a tensor, an array or a list; got {describe(values)}") from None
    return tensor


def _indices(name: str, values: Any) -> Tensor:
    tensor = _numbers(name, values)
    if tensor.dtype == torch.bool or tensor.is_floating_point() or tensor.is_complex() or tensor.ndim != 1:
        raise TypeError(f"{name} must be integers of one dimension; got {describe(tensor)}")
    numbers: Tensor = tensor.long()
    return numbers


def _all_pairs(rows: NDArray[np.int64], columns: NDArray[np.int64], within: bool) -> VerificationPairs:
    if within:
        first, second = torch.triu_indices(len(rows), len(rows), offset=1)
    else:
        first = torch.arange(len(rows)).repeat_interleave(len(columns))
        second = torch.arange(len(columns)).repeat(len(rows))
    same = torch.from_numpy(rows)[first] == torch.from_numpy(columns)[second]
    return VerificationPairs(first, second, same)


class _PairsByNumber:
    """All pairs of one kind, numbered without listing them."""

    def __init__(self, rows: NDArray[np.int64], columns: NDArray[np.int64], within: bool, same: bool) -> None:
        self._order = np.argsort(columns, kind="stable")
        ordered = columns[self._order]
        starts = np.searchsorted(ordered, rows, side="left")
        ends = np.searchsorted(ordered, rows, side="right")
        place = np.empty(len(columns), dtype=np.int64)
        place[self._order] = np.arange(len(columns))
        last = np.full(len(rows), len(columns))
        if same:  # one run: the row's class, or what comes later in it
            self._first_end = np.zeros(len(rows), dtype=np.int64)
            self._second_start = place + 1 if within else starts
            second_end = ends
        else:  # what comes before the row's class, and what comes after it
            self._first_end = np.zeros(len(rows), dtype=np.int64) if within else starts
            self._second_start = ends
            second_end = last
        self._sums = np.cumsum(self._first_end + second_end - self._second_start)

    @property
    def count(self) -> int:
        return int(self._sums[-1]) if len(self._sums) else 0

    def at(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Pairs ``[n, 2]`` by their numbers."""
        first = np.searchsorted(self._sums, numbers, side="right")
        number_in_row = numbers - np.insert(self._sums, 0, 0)[first]
        first_end = self._first_end[first]
        in_second_run = self._second_start[first] + number_in_row - first_end
        place = np.where(number_in_row < first_end, number_in_row, in_second_run)
        return np.stack([first, self._order[place]], axis=1)

    def sample(self, most: int, generator: np.random.Generator) -> NDArray[np.int64]:
        """At most ``most`` pairs without repetition."""
        if self.count <= most:
            return self.at(np.arange(self.count))
        return self.at(np.sort(generator.choice(self.count, most, replace=False)))
