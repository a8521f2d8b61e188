"""Nearest-neighbor searches with the ``knn_func`` interface of PML's calculators."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..pairwise.batch import describe

if TYPE_CHECKING:
    from ..pml import BaseDistance

_PAIRS = 1 << 16  # query-candidate pairs that are re-ranked at a time
_NEIGHBORS = 1 << 23  # neighbors in memory at a time
_MOST_EXACT = 20_000  # vectors up to which all are compared
_LISTS_SEARCHED = 16  # of an inverted index, by each vector
_FAISS_GPU_NEIGHBORS = 2048  # largest k of faiss on a GPU

Search = Callable[[Tensor, int, Tensor], tuple[Tensor, Tensor]]


def check_embeddings(name: str, points: Tensor) -> None:
    """Raise ValueError unless points are finite floating point numbers, ``[N, D]``."""
    if points.ndim != 2 or not points.is_floating_point():
        raise ValueError(f"{name} must be floating point numbers of shape [N, D]; got {describe(points)}")
    bad_rows = int((~points.isfinite().all(-1)).sum())
    if bad_rows:
        raise ValueError(
            f"{bad_rows} of {len(points)} rows of {name} have NaN or infinite values; wanted finite embeddings"
        )


def has_faiss() -> bool:
    """Whether faiss can be imported."""
    try:
        import faiss  # noqa: F401
    except ImportError:
        return False
    return True


def faiss_sees_a_gpu() -> bool:
    """Whether faiss is installed and finds a GPU."""
    if has_faiss():
        import faiss

        return bool(getattr(faiss, "get_num_gpus", int)())
    return False


class NearestNeighbors:
    """A ``knn_func`` for PML that excludes the query itself by its index.

    Unlike PML's, it returns fewer than ``k`` columns if the gallery has fewer items.

    Args:
        search: ``search(query, k, reference) -> (distances, indices)``, both ``[N, k]``, nearest first.
        distance: the distance of the search; None for the Euclidean distance.
    """

    def __init__(self, search: Search, distance: BaseDistance | None = None) -> None:
        self.search = search
        self.distance = distance

    def __call__(
        self, query: Tensor, k: int, reference: Tensor, ref_includes_query: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Distances and indices of the nearest references, ``[N, min(k, R)]``.

        With ``ref_includes_query``, reference i is query i and is excluded.
        """
        _, distances, indices = next(self.tiles(query, k, reference, ref_includes_query, max(1, len(query))))
        return distances, indices

    def among(self, query: Tensor, reference: Tensor) -> Callable[[Tensor, int], tuple[Tensor, Tensor]]:
        """A function ``find(rows, k)`` that searches the references for some queries."""
        return lambda rows, k: self.search(query[rows], k, reference)

    def tiles(
        self, query: Tensor, k: int, reference: Tensor, ref_includes_query: bool = False, rows: int | None = None
    ) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield slices of the queries with distances and indices, in bounded memory.

        ``rows``: queries per tile, by default for 8 million neighbors.
        """
        k = min(k + ref_includes_query, len(reference))
        for part in self.slices(len(query), k, rows):
            distances, indices = self.search(query[part], k, reference)
            if ref_includes_query:
                itself = torch.arange(part.start, part.stop, device=indices.device)
                distances, indices = without(itself, distances, indices)
            yield part, distances, indices

    def slices(self, queries: int, k: int, rows: int | None = None) -> Iterator[slice]:
        """Yield the slices of :meth:`tiles`; default tiles are multiples of faiss's 4,096 rows."""
        if rows is None:
            rows = max(1, _NEIGHBORS // max(1, k))
            if rows > 4096:
                rows -= rows % 4096
        starts = range(0, max(1, queries // rows) * rows, rows)
        for first, last in zip(starts, [*starts[1:], queries], strict=True):
            yield slice(first, last)


def without(itself: Tensor, distances: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Remove the query itself, whose gallery index is ``[N]``: ``[N, K]`` to ``[N, K - 1]``.

    A query with K exact duplicates may be missing; the last column is then dropped.
    """
    if (indices[:, 0] == itself).all():
        return distances[:, 1:], indices[:, 1:]
    others = indices != itself[:, None]
    others[:, -1] &= ~others.all(dim=1)
    shape = len(indices), indices.shape[1] - 1
    return distances[others].view(shape), indices[others].view(shape)


def nearest_of(query: Tensor, k: int, reference: Tensor) -> tuple[Tensor, Tensor]:
    """Euclidean distances and indices of the nearest references, ``[N, k]``.

    Uses faiss if it supports the device, else torch in tiles.
    """
    if query.device.type == "cpu" and has_faiss():
        import faiss

        points = np.ascontiguousarray(query.detach().float().numpy())
        gallery = np.ascontiguousarray(reference.detach().float().numpy())
        found_squared, found_indices = faiss.knn(points, gallery, k)
        squared = torch.from_numpy(found_squared)
        return squared.clamp_(min=0).sqrt_(), torch.from_numpy(found_indices)
    from ..pml import FaissKNN, LpDistance

    if k > _FAISS_GPU_NEIGHBORS or not faiss_sees_a_gpu():
        return neighbors_under(LpDistance(normalize_embeddings=False), tile=1024).search(query, k, reference)
    squared, indices = FaissKNN()(query.contiguous(), k, reference.contiguous())
    return squared.clamp(min=0).sqrt(), indices


def inverted_lists(vectors: NDArray[np.float32]) -> Any | None:
    """A faiss index of vectors ``[N, D]`` that searches 16 of sqrt(N) lists.

    None up to 20,000 vectors, or without faiss.
    """
    if len(vectors) <= _MOST_EXACT or not has_faiss():
        return None
    import faiss

    index = faiss.index_factory(vectors.shape[1], f"IVF{math.isqrt(len(vectors))},Flat")
    inverted: Any = faiss.extract_index_ivf(index)
    inverted.cp.max_points_per_centroid = 64  # more take longer than the search
    index.train(vectors)
    index.add(vectors)
    inverted.nprobe = _LISTS_SEARCHED
    return index


def default_neighbors() -> NearestNeighbors:
    """The exact search by Euclidean distance."""
    return NearestNeighbors(nearest_of)


def neighbors_under(distance: BaseDistance, tile: int = 256) -> NearestNeighbors:
    """A search by any PML distance; memory grows with ``tile`` x gallery."""
    from ..pml import CustomKNN

    knn = CustomKNN(distance, batch_size=tile)

    def search(query: Tensor, k: int, reference: Tensor) -> tuple[Tensor, Tensor]:
        with evaluating(distance):
            return knn(query, k, reference)  # type: ignore[no-any-return]

    return NearestNeighbors(search, distance)


def distance_matrix(distance: BaseDistance, points: Tensor) -> Tensor:
    """The ``[N, N]`` values of a PML distance, without gradients or dropout."""
    with evaluating(distance):
        return distance(points)  # type: ignore[no-any-return]


@contextlib.contextmanager
def evaluating(distance: BaseDistance) -> Iterator[None]:
    """Switch off gradients and dropout of a distance inside the block."""
    training: Any = distance.training
    distance.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        distance.train(training)


def reranked_under(
    distance: BaseDistance, shortlist: int, nearest: Search = nearest_of, normalized: bool = False
) -> NearestNeighbors:
    """A search that re-ranks a Euclidean shortlist by a PML distance.

    ``nearest``, by default exact, finds max(k, ``shortlist``) candidates per query; -1 marks a missing one.
    ``normalized``: embeddings already have length 1.
    """

    def search(query: Tensor, k: int, reference: Tensor) -> tuple[Tensor, Tensor]:
        points = query
        gallery = reference
        if not normalized:
            points = torch.nn.functional.normalize(query)
            gallery = torch.nn.functional.normalize(reference)
        _, candidates = nearest(points, min(max(k, shortlist), len(reference)), gallery)
        candidates = candidates.to(reference.device)
        width = candidates.shape[1]
        tile = max(1, _PAIRS // max(1, width))
        values = query.new_empty(candidates.shape)
        with evaluating(distance):
            query = distance.maybe_normalize(query)
            for start in range(0, len(query), tile):
                rows = candidates[start : start + tile]
                others = distance.maybe_normalize(reference[rows.flatten()])
                repeated = query[start : start + tile].repeat_interleave(width, 0)
                values[start : start + tile] = distance.pairwise_distance(repeated, others).view(rows.shape)
        farthest = -torch.inf if distance.is_inverted else torch.inf
        values.masked_fill_(candidates < 0, farthest)
        best = values.topk(k, dim=1, largest=distance.is_inverted)
        return best.values, candidates.gather(1, best.indices)

    return NearestNeighbors(search, distance)


def learned_metric(parts: Iterable[Any]) -> BaseDistance | None:
    """The first attribute ``metric`` that is a PML distance, or None."""
    from ..pml import BaseDistance

    metrics = (getattr(part, "metric", None) for part in parts)
    return next((metric for metric in metrics if isinstance(metric, BaseDistance)), None)
