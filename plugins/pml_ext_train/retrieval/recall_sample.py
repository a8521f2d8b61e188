"""Recall@10 of an approximate search, on a sample."""

from collections.abc import Callable

import torch
from torch import Tensor

from pml_ext.evaluation import nearest_of

_SAMPLE = 200  # number of queries that measure recall
_NEIGHBORS = 10  # exact answers per query


class RecallSample:
    """At most 200 points of an index, and their exact nearest points."""

    def __init__(self, points: Tensor) -> None:
        count = len(points)
        self._points = points
        self._k = min(_NEIGHBORS, count - 1)
        self._queries = torch.linspace(0, count - 1, min(_SAMPLE, count)).round().long().to(points.device)
        _, nearest = nearest_of(points[self._queries], self._k + 1, points)
        distances, counts = self._distances(nearest)
        # An answer is right if it is as near as the farthest exact one: duplicates have equal distances.
        self._farthest = distances.where(counts, -torch.inf).amax(1, keepdim=True)

    def recall_at_10(self, search: Callable[[Tensor, int], Tensor]) -> float:
        """Share of right answers of ``search(queries, k)``: indices ``[Q, k]``, or -1."""
        found = search(self._points[self._queries], self._k + 1).to(self._points.device)
        distances, counts = self._distances(found)
        right = counts & (distances <= self._farthest + 1e-6)
        return int(right.sum()) / (len(self._queries) * self._k)

    def _distances(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        queries = self._queries[:, None]
        distances = (self._points[numbers] - self._points[queries]).norm(dim=2)
        others = (numbers >= 0) & (numbers != queries)
        return distances, others & (others.cumsum(1) <= self._k)
