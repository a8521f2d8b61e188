"""Groups of items, such as bursts of images: a query's own group leaves its gallery."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .metrics import relevant_counts

_MARGIN = 16  # neighbors beyond those wanted that the first search asks for, at most

Find = Callable[[Tensor, int], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Groups:
    """Groups of queries and of gallery items, numbered from 0; -1 means no group."""

    query: Tensor  # [Q], int64
    reference: Tensor  # [R], int64

    def sizes(self) -> Tensor:
        """Number of gallery items in each query's own group, ``[Q]``."""
        return relevant_counts(self.query, self.reference) * (self.query >= 0)


def groups_of(query: Any, reference: Any, queries: int, references: int | None, device: torch.device) -> Groups:
    """Check groups and number them.

    Groups are integers or texts; negative integers, "", None and NaN mean no group. ``reference`` and ``references``,
    the size of the gallery, are None if the queries are their own gallery.

    TypeError or ValueError for other values, a wrong number, or groups of one side alone.
    """
    if (reference is None) != (references is None):
        given, missing = (
            ("query_groups", "reference_groups") if reference is None else ("reference_groups", "reference")
        )
        raise ValueError(
            f"{given} are given without {missing}; both the queries and the gallery have groups, or neither"
        )
    sides = [_keys("query_groups", query, queries)]
    if references is not None:
        sides.append(_keys("reference_groups", reference, references))
    if len({side.dtype.kind for side in sides}) > 1:
        raise TypeError(
            "query_groups and reference_groups must be of one kind, integers or texts, since no integer equals a text; "
            f"got {sides[0].dtype} and {sides[1].dtype}"
        )
    keys = np.concatenate(sides)
    has_group = keys >= 0 if keys.dtype.kind == "i" else keys != ""
    if len(keys) and not has_group.any():
        raise ValueError("no item has a group: all are negative or empty; leave the groups out")
    numbers = np.full(len(keys), -1, dtype=np.int64)
    numbers[has_group] = np.unique(keys[has_group], return_inverse=True)[1]
    found = torch.from_numpy(numbers).to(device)
    if references is None:
        return Groups(found, found)
    return Groups(found[:queries], found[queries:])


def _keys(name: str, groups: Any, count: int) -> Any:
    if isinstance(groups, Tensor):
        groups = groups.cpu().numpy()
    if not isinstance(groups, list):
        groups = np.asarray(groups)
        if groups.dtype.kind == "O":
            groups = groups.tolist()
    if isinstance(groups, list):
        groups = ["" if _is_missing(group) else group for group in groups]
    keys = np.asarray(groups)
    if keys.shape != (count,):
        raise ValueError(f"{name} must have one group for each of {count} items; got shape {keys.shape}")
    if keys.dtype.kind in "iu":
        return keys.astype(np.int64)
    if keys.dtype.kind in "UO" and all(isinstance(key, str) for key in keys.tolist()):
        return keys.astype(str)
    raise TypeError(f"{name} must be integers or texts; got values of type {keys.dtype}")


def _is_missing(group: Any) -> bool:
    return group is None or (isinstance(group, float) and group != group)


def neighbors_outside(
    find: Find, groups: Groups | None, rows: Tensor, itself: bool, columns: int, total: int
) -> tuple[Tensor, Tensor]:
    """Distances and indices of the nearest items outside each query's group, ``[n, columns]``.

    Missing items have index -1 and infinite distance.

    ``find(rows, k)`` returns the k nearest of the queries ``rows``, ``[n]``. ``itself``: whether gallery item i is
    query i, which is left out too. ``total``: size of the gallery.
    """
    own = torch.full_like(rows, int(itself))
    if groups is not None:
        own = torch.where(groups.query[rows] >= 0, groups.sizes()[rows], own)
    wanted = (total - own).clamp(max=columns)

    indices = torch.full((len(rows), columns), -1, dtype=torch.int64, device=rows.device)
    distances = torch.full((len(rows), columns), torch.inf, device=rows.device)
    left = torch.arange(len(rows), device=rows.device)  # of the queries, those to be searched
    asked = min(total, columns + min(int(own.max()), _MARGIN)) if len(rows) else 0
    while len(left):
        near, places = find(rows[left], asked)
        places = places.to(rows.device)
        queries = rows[left]
        keep = places >= 0
        if groups is not None:
            query_groups = groups.query[queries][:, None]
            keep &= (groups.reference[places] != query_groups) | (query_groups < 0)
        if itself:
            keep &= places != queries[:, None]
        distances[left] = _compacted(near.to(distances), keep, columns, torch.inf)
        indices[left] = _compacted(places, keep, columns, -1)
        found = keep.sum(1)
        if places.shape[1] < asked or asked == total:  # the search has no more
            break
        left = left[found < wanted[left]]
        asked = min(total, 2 * asked)
    return distances, indices


def _compacted(values: Tensor, keep: Tensor, columns: int, missing: float) -> Tensor:
    rank = keep.cumsum(1) - 1
    target = torch.where(keep & (rank < columns), rank, columns)
    result = torch.full((len(values), columns + 1), missing, dtype=values.dtype, device=values.device)
    return result.scatter_(1, target, values)[:, :columns]


def right_in_own_group(
    groups: Groups,
    query_labels: Tensor,
    reference_labels: Tensor,
    compare: Callable[[Tensor, Tensor], Tensor],
    by_equality: bool,
    itself: bool,
) -> Tensor:
    """The number of right items in each query's own group, without itself, ``[Q]``."""
    if by_equality:
        labels = torch.cat([query_labels, reference_labels])
        classes = torch.unique(labels, return_inverse=True)[1]
        numbers = torch.cat([groups.query, groups.reference])
        codes = classes * (int(numbers.max()) + 2) + numbers + 1
        right = relevant_counts(codes[: len(query_labels)], codes[len(query_labels) :]) - int(itself)
        return right * (groups.query >= 0)
    right = torch.zeros(len(query_labels), dtype=torch.int64, device=query_labels.device)
    for group in torch.unique(groups.query[groups.query >= 0]):
        rows = (groups.query == group).nonzero().flatten()
        members = (groups.reference == group).nonzero().flatten()
        matches = compare(query_labels[rows][:, None], reference_labels[members][None]).bool()
        if itself:
            matches = matches & (rows[:, None] != members)
        right[rows] = matches.sum(1)
    return right
