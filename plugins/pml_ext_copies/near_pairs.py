"""Pairs of vectors within a radius, and the shortest ones that connect each group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pml_ext.evaluation import inverted_lists
from pml_ext_train.retrieval import Numbers, Vectors

_TILE = 2048  # vectors per block of all pairs
_BLOCK = 256  # vectors per block of the search by faiss
_PAIRS = 1 << 18  # pairs per block of exact distances
_WAITING = 1 << 20  # pairs that are held before only the shortest are kept


class Pairs(NamedTuple):
    """Pairs of vectors and their distances, three arrays of one length."""

    first: Numbers
    second: Numbers
    distances: Vectors

    def where(self, chosen: NDArray[np.bool_]) -> Pairs:
        """The pairs of a mask."""
        return Pairs(self.first[chosen], self.second[chosen], self.distances[chosen])

    def numbered(self, numbers: Numbers) -> Pairs:
        """The pairs with other numbers, by the present ones."""
        return Pairs(numbers[self.first], numbers[self.second], self.distances)


def shortest_pairs(points: Tensor, radius: float) -> Pairs:
    """The minimum spanning forest of all pairs within a radius.

    With faiss and more than 20,000 vectors, each one is compared with 16 lists of an index only.
    """
    waiting = [Pairs(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32))]
    for candidates in _candidates(points, radius):
        for one, other in torch.split(candidates, _PAIRS, 1):
            distances = (points[one] - points[other]).norm(dim=1)
            near = distances <= radius
            waiting.append(Pairs(one[near].numpy(), other[near].numpy(), distances[near].numpy()))
            if sum(len(pairs.first) for pairs in waiting[1:]) > _WAITING:
                waiting = [_forest_of(waiting, len(points))]
    return _forest_of(waiting, len(points))


def _forest_of(blocks: list[Pairs], count: int) -> Pairs:
    return forest(joined(blocks), count)


def joined(blocks: Sequence[Pairs]) -> Pairs:
    """The pairs of all blocks."""
    return Pairs(*map(np.concatenate, zip(*blocks, strict=True)))


def _candidates(points: Tensor, radius: float) -> Iterator[Tensor]:
    """Yield pairs ``[2, P]`` that may be within a radius; rounding adds some slightly beyond."""
    rows = points.numpy()
    index = inverted_lists(rows)
    if index is not None:
        for start in range(0, len(rows), _BLOCK):
            limits, _, numbers = index.range_search(rows[start : start + _BLOCK], radius**2 + 2e-5)
            firsts = start + np.arange(len(limits) - 1).repeat(np.diff(limits.astype(np.int64)))
            yield torch.from_numpy(np.stack([firsts, numbers]))
        return
    least_product = 1 - radius**2 / 2 - 1e-5  # |x - y|^2 = 2 - 2 x.y of vectors of length 1
    for start in range(0, len(points), _TILE):
        for other in range(start, len(points), _TILE):
            products = points[start : start + _TILE] @ points[other : other + _TILE].T
            yield (products >= least_product).nonzero().T + torch.tensor([[start], [other]])


def forest(pairs: Pairs, count: int) -> Pairs:
    """Edges of the minimum spanning forest of pairs of ``count`` vectors, the shortest first."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import minimum_spanning_tree

    first = np.minimum(pairs.first, pairs.second)
    second = np.maximum(pairs.first, pairs.second)
    order = np.lexsort((second, first, pairs.distances))
    order = order[first[order] != second[order]]
    _, shortest = np.unique(first[order] * count + second[order], return_index=True)
    order = order[np.sort(shortest)]
    ranks = np.arange(1.0, len(order) + 1)  # edges are numbered by distance, from 1: to scipy, a stored 0 is no edge
    tree = minimum_spanning_tree(csr_array((ranks, _places(first[order], second[order])), shape=(count, count)))
    edges = order[np.sort(tree.data).astype(np.int64) - 1]
    return Pairs(first[edges], second[edges], pairs.distances[edges])


def _places(*indices: np.ndarray) -> tuple[np.ndarray, ...]:
    """Convert the places of edges to 32 bits; with 64, scipy 1.11 ignores its own error and joins nothing."""
    return tuple(each.astype(np.int32) for each in indices)


def components(pairs: Pairs, count: int) -> list[list[int]]:
    """Groups of two vectors or more that pairs connect, each ascending."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    edges = np.ones(len(pairs.first), dtype=bool)
    graph = coo_array((edges, _places(pairs.first, pairs.second)), shape=(count, count))
    _, groups = connected_components(graph, directed=False)
    order = np.argsort(groups, kind="stable")
    ends = np.flatnonzero(np.diff(groups[order])) + 1
    return [members.tolist() for members in np.split(order, ends) if len(members) > 1]
