"""Nearest vectors of queries: searched, and ranked by exact distances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from pml_ext.evaluation import Search, neighbors_under, reranked_under
from pml_ext_train.retrieval import Numbers, SearchResult

from ..collection.state import Image
from .query import QueryOptions

if TYPE_CHECKING:
    from pml_ext.pml import BaseDistance

_EXACT = 1 << 23  # numbers of found vectors whose exact distances are computed at a time


def nearest_vectors(
    search: Search, points: Tensor, count: int, vectors: Tensor, options: QueryOptions
) -> tuple[Tensor, Tensor]:
    """Distances of the nearest vectors to each point, and their rows or -1, ``[Q, count]``.

    A metric is computed for all vectors, or for the shortlist that ``search`` finds.
    """
    metric = options.metric
    if metric is not None and options.shortlist is not None:
        search = reranked_under(metric, options.shortlist, search, normalized=True).search
    elif metric is not None:
        search = neighbors_under(metric).search
    return search(points, count, vectors)


def with_exact_distances(points: Tensor, vectors: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Exact distances of found vectors and their rows or -1, ``[Q, k]``, nearest first.

    faiss's compressed vectors, and products of many queries, err by up to a thousandth.
    """
    distances = torch.full(places.shape, torch.inf, device=points.device)
    queries, found = places.shape
    size = points.shape[1]
    columns_at_once = max(1, _EXACT // size)
    queries_at_once = max(1, columns_at_once // max(1, found))
    for start in range(0, queries, queries_at_once):
        rows = slice(start, start + queries_at_once)
        for first in range(0, found, columns_at_once):
            columns = slice(first, first + columns_at_once)
            neighbors = vectors[places[rows, columns].clamp(min=0).to(vectors.device)]
            distances[rows, columns] = (neighbors - points[rows, None]).norm(dim=2)
    distances.masked_fill_((places < 0).to(distances.device), torch.inf)
    distances, order = distances.sort(dim=1, stable=True)
    return distances, places.to(order.device).gather(1, order)


def rows_of(images: Sequence[Image | None], numbers: Numbers) -> Tensor:
    """The row of each image among vector numbers, or -1."""
    vectors = np.array([-1 if image is None else image.vector for image in images], dtype=np.int64)
    rows = np.searchsorted(numbers, vectors).clip(max=len(numbers) - 1)
    return torch.from_numpy(np.where(numbers[rows] == vectors, rows, -1))


def within_radius(distances: Tensor, places: Tensor, radius: float, metric: BaseDistance | None) -> Tensor:
    """Places, with -1 beyond a radius; for a similarity, below it."""
    values = distances.double()
    is_similarity = metric is not None and metric.is_inverted
    inside = values >= radius if is_similarity else values <= radius
    return places.where(inside, -1)


def results_of(numbers: Numbers, distances: Tensor, images: Mapping[int, Image]) -> list[list[SearchResult]]:
    """Results of each query from vector numbers, -1 for none, and distances."""
    results: list[list[SearchResult]] = []
    for row, values in zip(numbers.tolist(), distances.tolist(), strict=True):
        found = []
        for number, distance in zip(row, values, strict=True):
            if number != -1:
                image = images[number]
                found.append(SearchResult(image.id, image.path, image.class_name, distance))
        results.append(found)
    return results
