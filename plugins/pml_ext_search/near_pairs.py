"""Pairs of vectors within a radius, and the shortest of them that connect each group."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pml_ext.evaluation import has_faiss
from pml_ext_train.retrieval import Numbers, Vectors

MOST_EXACT = 20_000  # vectors up to which all pairs are compared
_TILE = 2048  # vectors per block of all pairs
_BLOCK = 256  # vectors per block of the search by faiss
_PAIRS = 1 << 18  # pairs per block of exact distances
_WAITING = 1 << 20  # pairs that are held before only the shortest are kept
LISTS_SEARCHED = 16  # of faiss's index, by each vector


class Pairs(NamedTuple):
    """Pairs of vectors and their distances, three arrays of one length."""

    first: Numbers
    second: Numbers
    distances: Vectors

    def where(self, chosen: NDArray[np.bool_]) -> Pairs:
        """Return the pairs of a mask."""
        return Pairs(self.first[chosen], self.second[chosen], self.distances[chosen])


def joined(parts: list[Pairs]) -> Pairs:
    """Return the pairs of several blocks."""
    none = Pairs(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32))
    return Pairs(*map(np.concatenate, zip(none, *parts, strict=True)))


def shortest_pairs(points: Tensor, radius: float) -> Pairs:
    """Return the pairs within a radius that connect what any such pairs connect, by the smallest distances.

    These are the edges of a minimum spanning forest: a group of n vectors has n - 1 of them. Up to 20,000 vectors all
    pairs are compared; of more, each vector with those of 16 lists of a faiss index, of which there are as many as the
    square root of the number of vectors. Without faiss all pairs are compared.
    """
    kept: list[Pairs] = []
    waiting = 0
    for candidates in _candidates(points, radius):
        for pairs in _within(points, candidates, radius):
            kept.append(pairs)
            waiting += len(pairs.first)
            if waiting > _WAITING:
                kept = [forest(joined(kept), len(points))]
                waiting = 0
    return forest(joined(kept), len(points))


def _candidates(points: Tensor, radius: float) -> Iterator[Tensor]:
    """Yield pairs ``[2, P]`` that may be within a radius; rounding errors add some that are slightly farther."""
    if len(points) > MOST_EXACT and has_faiss():
        yield from _of_lists(points, radius)
        return
    least_product = 1 - radius**2 / 2 - 1e-5  # |x - y|^2 = 2 - 2 x.y of vectors of length 1
    for start in range(0, len(points), _TILE):
        rows = points[start : start + _TILE]
        for other in range(start, len(points), _TILE):
            near = rows @ points[other : other + _TILE].T >= least_product
            pairs = near.nonzero().T + torch.tensor([[start], [other]])
            yield pairs[:, pairs[0] < pairs[1]]


def _of_lists(points: Tensor, radius: float) -> Iterator[Tensor]:
    """Yield pairs as :func:`_candidates` does, of vectors in the same or near lists of a faiss index."""
    rows = points.numpy()
    index = lists_of(rows, LISTS_SEARCHED)
    for start in range(0, len(rows), _BLOCK):
        limits, _, numbers = index.range_search(rows[start : start + _BLOCK], radius**2 + 2e-5)
        ends = limits.astype(np.int64)
        found = ends[1:] - ends[:-1]
        firsts = start + np.arange(len(found)).repeat(found)
        are_others = numbers != firsts
        yield torch.from_numpy(np.stack([firsts[are_others], numbers[are_others]]))


def lists_of(rows: Vectors, searched: int) -> Any:
    """Return a faiss index of vectors, in as many lists as the square root of their number; a search sees some."""
    import faiss

    index = faiss.index_factory(rows.shape[1], f"IVF{math.isqrt(len(rows))},Flat")
    inverted: Any = faiss.extract_index_ivf(index)
    inverted.cp.max_points_per_centroid = 64  # more take longer than the search
    index.train(rows)
    index.add(rows)
    inverted.nprobe = searched
    return index


def _within(points: Tensor, candidates: Tensor, radius: float) -> Iterator[Pairs]:
    """Yield the candidates whose exact distance is within the radius."""
    for one, other in torch.split(candidates, _PAIRS, 1):
        distances = (points[one] - points[other]).norm(dim=1)
        pairs = Pairs(one.numpy(), other.numpy(), distances.numpy())
        yield pairs.where(pairs.distances <= radius)


def forest(pairs: Pairs, count: int) -> Pairs:
    """Return the edges of the minimum spanning forest of pairs of ``count`` vectors, the shortest first."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import minimum_spanning_tree

    first = np.minimum(pairs.first, pairs.second)
    second = np.maximum(pairs.first, pairs.second)
    order = np.lexsort((pairs.distances, second, first))
    first, second, distances = first[order], second[order], pairs.distances[order]
    is_new = np.ones(len(first), dtype=bool)
    is_new[1:] = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
    is_new &= first != second
    first, second, distances = first[is_new], second[is_new], distances[is_new]
    # To scipy, a stored 0 is no edge: edges are numbered by their distance, from 1.
    by_distance = np.argsort(distances, kind="stable")
    ranks = np.empty(len(first), dtype=np.float64)
    ranks[by_distance] = np.arange(1, len(first) + 1)
    tree = minimum_spanning_tree(csr_array((ranks, (first, second)), shape=(count, count)))
    edges = by_distance[np.sort(tree.data).astype(np.int64) - 1]
    return Pairs(first[edges], second[edges], distances[edges])


def components(pairs: Pairs, count: int) -> list[list[int]]:
    """Return the groups that pairs of ``count`` vectors connect, each ascending, without single vectors."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    edges = np.ones(len(pairs.first), dtype=bool)
    graph = coo_array((edges, (pairs.first, pairs.second)), shape=(count, count))
    _, groups = connected_components(graph, directed=False)
    order = np.argsort(groups, kind="stable")
    ends = np.flatnonzero(np.diff(groups[order])) + 1
    return [members.tolist() for members in np.split(order, ends) if len(members) > 1]
