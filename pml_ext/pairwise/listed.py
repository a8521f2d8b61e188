"""Listed pairs and triplets, and the ``indices_tuple`` of a batch of them."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from .batch import describe

Kind = Literal["pairs", "triplets"]


class TupleBatch(NamedTuple):
    """A batch of listed pairs or triplets."""

    tuples: list[int]  # the numbers of the pairs or triplets in their list
    items: list[int]  # the rows of their items, each once, sorted
    indices_tuple: tuple[Tensor, ...]  # (a1, p, a2, n) of pairs, (a, p, n) of triplets: places in ``items``


class ListedTuples:
    """Listed pairs (same or different), or triplets of anchor, positive and negative.

    Args:
        rows: item numbers, integers, ``[T, 2]`` for pairs or ``[T, 3]`` for triplets.
        same: whether the items of each pair are the same, booleans ``[T]``; None for triplets.

    Raises:
        TypeError: ``rows`` are not integers, or ``same`` are not booleans.
        ValueError: other shapes, or an item twice in one tuple.

    Example:
        >>> pairs = ListedTuples([[7, 8], [8, 9]], same=[True, False])
        >>> pairs.batch([0, 1]).items, pairs.batch([0, 1]).indices_tuple
        ([7, 8, 9], (tensor([0]), tensor([1]), tensor([1]), tensor([2])))
    """

    def __init__(self, rows: Any, same: Any = None) -> None:
        self.rows: Tensor = torch.as_tensor(rows).cpu()
        if self.rows.is_floating_point() or self.rows.is_complex() or self.rows.dtype == torch.bool:
            raise TypeError(f"rows of listed tuples must be integers; got {describe(self.rows)}")
        self.rows = self.rows.long()
        self.same: Tensor | None = None
        if same is not None:
            self.same = torch.as_tensor(same).cpu()
        wanted = "triplets, [T, 3]" if same is None else "pairs, [T, 2]"
        if self.rows.ndim != 2 or self.rows.shape[1] != (3 if same is None else 2):
            raise ValueError(f"rows of listed {wanted}: got the shape {list(self.rows.shape)}")
        if self.same is not None and self.same.dtype != torch.bool:
            raise TypeError(f"same must be booleans, one for each pair; got {describe(self.same)}")
        if self.same is not None and self.same.shape != (len(self.rows),):
            found = list(self.same.shape)
            raise ValueError(f"same must have the shape [{len(self.rows)}], one for each pair; got {found}")
        ordered = self.rows.sort(dim=1).values
        twice = (ordered[:, 1:] == ordered[:, :-1]).any(dim=1).nonzero().flatten().tolist()
        if twice:
            raise ValueError(f"{self.kind[:-1]} {twice[0]} has one item twice: {self.rows[twice[0]].tolist()}")

    @property
    def kind(self) -> Kind:
        """``"pairs"`` or ``"triplets"``."""
        return "triplets" if self.same is None else "pairs"

    def __len__(self) -> int:
        return len(self.rows)

    def some(self, chosen: Any) -> ListedTuples:
        """Tuples selected by number or mask."""
        chosen = torch.as_tensor(chosen)
        if chosen.dtype != torch.bool:  # an empty list has floating point numbers
            chosen = chosen.long()
        same = None if self.same is None else self.same[chosen]
        return ListedTuples(self.rows[chosen], same)

    def among(self, items: Any, count: int) -> ListedTuples:
        """The tuples within ``items``, renumbered by place; ``count`` items exist."""
        places = torch.full((count,), -1)
        places[torch.as_tensor(items, dtype=torch.long)] = torch.arange(len(items))
        rows = places[self.rows]
        kept = (rows >= 0).all(dim=1)
        same = None if self.same is None else self.same[kept]
        return ListedTuples(rows[kept], same)

    def conflict(self) -> tuple[int, int] | None:
        """An anchor and an item that is both its positive and negative, or None."""
        if self.same is not None:
            return None
        anchors, positives, negatives = self.rows.T
        count = int(self.rows.max()) + 1 if len(self) else 0
        known = anchors * count + positives
        both = known[torch.isin(known, anchors * count + negatives)].tolist()
        return divmod(both[0], count) if both else None

    def batch(self, numbers: Any) -> TupleBatch:
        """A batch of numbered tuples, with each item once."""
        numbers = torch.as_tensor(numbers, dtype=torch.long)
        items, places = torch.unique(self.rows[numbers], return_inverse=True)
        if self.same is None:
            anchors, positives, negatives = places.T
            indices_tuple: tuple[Tensor, ...] = (anchors, positives, negatives)
        else:
            same = self.same[numbers]
            first, second = places.T
            indices_tuple = (first[same], second[same], first[~same], second[~same])
        return TupleBatch(numbers.tolist(), items.tolist(), indices_tuple)


def sample_tuples(tuples: ListedTuples, most: int, seed: int) -> ListedTuples:
    """At most ``most`` random tuples, in order; pairs of both kinds keep their shares."""
    if len(tuples) <= most:
        return tuples
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.zeros(len(tuples), dtype=torch.bool) if tuples.same is None else tuples.same
    chosen = []
    for kind in torch.unique(kinds):
        members = (kinds == kind).nonzero().flatten()
        count = max(1, most * len(members) // len(tuples))
        chosen.append(members[torch.randperm(len(members), generator=generator)[:count]])
    return tuples.some(torch.cat(chosen).sort().values)
