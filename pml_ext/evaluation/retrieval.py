"""The one search that serves all metrics of neighbors."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from ..pml import EQUALITY
from ..relations import Hierarchy, Relation
from .groups import Groups, neighbors_outside, right_in_own_group
from .metrics import Metric, relevant_counts
from .neighbors import NearestNeighbors
from .reranking import Reranking

_LABEL_VALUES = 1 << 23  # values of neighbors' labels in memory at a time
_CLASSES = 256  # classes whose weights are sorted at a time

Comparison = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Sides:
    """Queries and a gallery, which may begin with the queries."""

    query: Tensor  # embeddings, [Q, D]
    query_labels: Tensor  # [Q] or [Q, L]
    reference: Tensor  # embeddings of the gallery, [R, D]
    reference_labels: Tensor
    ref_includes_query: bool
    groups: Groups | None = None  # a query's own group is left out of its gallery

    @property
    def size(self) -> int:
        """Number of gallery items that a query is compared with."""
        return len(self.reference) - int(self.ref_includes_query)

    def gallery_sizes(self) -> Tensor:
        """Number of gallery items each query is compared with, ``[Q]``, without its own group."""
        left_out = torch.full((len(self.query),), int(self.ref_includes_query), device=self.query.device)
        if self.groups is not None:
            left_out = torch.where(self.groups.query >= 0, self.groups.sizes(), left_out)
        return len(self.reference) - left_out


@dataclass(frozen=True)
class QueryClasses:
    """The classes of the queries, and how many gallery items each has."""

    classes: Tensor  # distinct labels, [C] or [C, L]
    counts: Tensor  # gallery items that are right for a query of the class, [C]
    lone: Tensor  # whether a query of the class has no right item but itself, [C]
    class_of_query: Tensor  # row of each query's class, [Q]
    lone_query: Tensor  # whether a query has no right item but itself, outside of its group, [Q]
    relevant: Tensor  # right gallery items of each query, without the query itself, [Q], on the CPU


def query_classes(sides: Sides, compare: Comparison, relation: Relation | None) -> QueryClasses:
    """The classes of the queries, and the number of right items of each."""
    classes, class_of_query = torch.unique(sides.query_labels, dim=0, return_inverse=True)
    if compare is EQUALITY:
        counts = relevant_counts(classes, sides.reference_labels)
    else:
        counts = torch.stack([compare(label[None], sides.reference_labels).sum() for label in classes])

    itself = int(sides.ref_includes_query)
    right_for_itself = torch.zeros_like(counts)
    if itself:
        right_for_itself = compare(classes, classes).long()
    lone = counts <= right_for_itself
    without_query = counts - (itself if relation is None else right_for_itself)
    relevant = without_query.clamp(min=0)[class_of_query]
    lone_query = lone[class_of_query]
    if sides.groups is not None:
        by_equality = compare is EQUALITY
        relevant = relevant - right_in_own_group(
            sides.groups, sides.query_labels, sides.reference_labels, compare, by_equality, bool(itself)
        )
        lone_query = relevant <= 0
        lone = torch.ones_like(lone).index_fill_(0, class_of_query[~lone_query], False)
    return QueryClasses(classes, counts, lone, class_of_query, lone_query, relevant.cpu())


@dataclass(frozen=True)
class Neighbors:
    """The nearest neighbors of all queries, on the CPU, nearest first."""

    distances: Tensor  # [Q, K], float32
    indices: Tensor  # rows in the gallery, [Q, K], int64; -1 where the search found none
    right: Tensor  # whether each has the query's class, or is positive under a relation, [Q, K], booleans

    @classmethod
    def empty(cls, queries: int, columns: int) -> Self:
        """Preallocated neighbors of all queries."""
        return cls(
            distances=torch.empty(queries, columns, dtype=torch.float32),
            indices=torch.empty(queries, columns, dtype=torch.int64),
            right=torch.empty(queries, columns, dtype=torch.bool),
        )

    def put(self, rows: slice, distances: Tensor, indices: Tensor, right: Tensor) -> None:
        """Store the neighbors of some queries."""
        columns = self.indices.shape[1]
        self.distances[rows] = distances[:, :columns].cpu()
        self.indices[rows] = indices[:, :columns].cpu()
        self.right[rows] = right[:, :columns].cpu()

    def nearest(self, count: int) -> "Neighbors":
        """The ``count`` nearest."""
        return Neighbors(self.distances[:, :count], self.indices[:, :count], self.right[:, :count])


class MetricOfNeighbors:
    """A metric during a search, with its number of neighbors and its values per query.

    ``ideal``, ``[Q, columns]``: the greatest gains in the gallery, for a graded metric.
    """

    def __init__(self, metric: Metric, columns: int, queries: int) -> None:
        self.metric = metric
        self.columns = columns
        self.values = torch.empty(queries, dtype=torch.float64)
        self.ideal: Tensor | None = None

    def put(self, rows: slice, right_at_level: Mapping[int, Tensor], gains: Tensor, relevant: Tensor) -> None:
        """Compute the values of some queries."""
        if self.ideal is None:
            right = right_at_level.get(self.metric.level, right_at_level[0])[:, : self.columns]
            self.values[rows] = self.metric.function(right, relevant[rows])
        else:
            self.values[rows] = self.metric.function(gains[:, : self.columns], self.ideal[rows])


class MetricSearch:
    """One search for all metrics of neighbors.

    ``relation``, if given, replaces ``compare`` and gives gains and levels. ``trees``: the relation at each level that
    a metric names. ``keep``: neighbors to keep of each query.
    """

    def __init__(
        self,
        sides: Sides,
        classes: QueryClasses,
        compare: Comparison,
        relation: Relation | None,
        metrics: Sequence[MetricOfNeighbors],
        keep: int,
        reranking: Reranking | None = None,
    ) -> None:
        self.sides = sides
        self.classes = classes
        self.compare = compare
        self.relation = relation
        self.metrics = metrics
        self.reranking = reranking
        self.trees = self._trees()
        self.neighbors = Neighbors.empty(len(sides.query), min(keep, sides.size))
        most = [metric.columns for metric in metrics]
        self.columns = max(min(1, sides.size), keep, *most)

    def run(self, knn_func: Any) -> Neighbors:
        """Search, compute each metric's values, and return the neighbors to keep."""
        graded = [metric for metric in self.metrics if metric.metric.graded]
        for metric in graded:
            metric.ideal = self._greatest_gains(metric.columns)

        for rows, distances, indices in self._tiles(knn_func):
            labels = self.sides.query_labels[rows][:, None]
            neighbor_labels = self.sides.reference_labels[indices]
            exists = indices >= 0
            # On the CPU, since some devices lack float64.
            right_at_level = {0: (self.compare(labels, neighbor_labels).bool() & exists).cpu()}
            for level, tree in self.trees.items():
                right_at_level[level] = (tree.positive(labels, neighbor_labels) & exists).cpu()
            gains = right_at_level[0]
            if graded and self.relation is not None:
                gains = (self.relation.weights(labels, neighbor_labels).nan_to_num() * exists).cpu()

            self.neighbors.put(rows, distances, indices, right_at_level[0])
            for metric in self.metrics:
                metric.put(rows, right_at_level, gains, self.classes.relevant)
        return self.neighbors

    def _trees(self) -> dict[int, Hierarchy]:
        if not isinstance(self.relation, Hierarchy):
            return {}
        levels = {metric.metric.level for metric in self.metrics} - {0}
        return {level: self.relation.at(level) for level in levels}

    def not_lone_at_levels(self) -> dict[int, Tensor]:
        """Which queries have a right item in the gallery, ``[Q]``, by level of the tree."""
        classes = {level: query_classes(self.sides, tree.positive, tree) for level, tree in self.trees.items()}
        return {level: ~each.lone_query for level, each in classes.items()}

    def _tiles(self, knn_func: Any) -> Iterator[tuple[slice, Tensor, Tensor]]:
        sides = self.sides
        if sides.groups is not None or self.reranking is not None:
            yield from self._tiles_outside_groups(knn_func, sides.groups)
            return
        if not isinstance(knn_func, NearestNeighbors):
            distances, indices = knn_func(sides.query, self.columns, sides.reference, sides.ref_includes_query)
            yield slice(0, len(sides.query)), distances, indices
            return

        rows = self._rows_of_labels()
        yield from knn_func.tiles(sides.query, self.columns, sides.reference, sides.ref_includes_query, rows)

    def _rows_of_labels(self) -> int | None:
        label_values = self.sides.query_labels[:1].numel()
        if label_values <= 1:
            return None
        values_per_query = max(1, self.columns) * label_values
        return max(1, _LABEL_VALUES // values_per_query)

    def _tiles_outside_groups(self, knn_func: Any, groups: Groups | None) -> Iterator[tuple[slice, Tensor, Tensor]]:
        sides = self.sides
        count = len(sides.query)
        columns = min(self.columns, sides.size)
        every = torch.arange(count, device=sides.query.device)
        itself = sides.ref_includes_query
        if not isinstance(knn_func, NearestNeighbors):  # PML's searches take all queries at once

            def find_all(rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
                distances, indices = knn_func(sides.query, min(k, sides.size), sides.reference, itself)
                return distances[rows.to(distances.device)], indices[rows.to(indices.device)]

            distances, indices = neighbors_outside(find_all, groups, every, itself, columns, len(sides.reference))
            yield slice(0, count), distances, indices
            return

        find = knn_func.among(sides.query, sides.reference)
        if self.reranking is not None:
            query = torch.nn.functional.normalize(sides.query)
            reference = torch.nn.functional.normalize(sides.reference)
            find = self.reranking.finder(query, reference, itself, groups, knn_func)

        for rows in knn_func.slices(count, self.columns, self._rows_of_labels()):
            distances, indices = neighbors_outside(find, groups, every[rows], itself, columns, len(sides.reference))
            yield rows, distances, indices

    def _greatest_gains(self, k: int) -> Tensor:
        sides = self.sides
        if self.relation is None:
            return (torch.arange(k) < self.classes.relevant[:, None]).to(torch.float64)

        queries = torch.arange(len(sides.query), device=sides.query.device)
        if sides.groups is None:  # one query of each class
            queries = torch.empty_like(self.classes.counts).index_copy_(0, self.classes.class_of_query, queries)
        tops = []
        for rows in torch.split(queries, _CLASSES):
            gains = self.relation.matrix(sides.query_labels[rows], sides.reference_labels).nan_to_num()
            if sides.groups is not None:
                own = sides.groups.query[rows][:, None]
                gains = gains.masked_fill((own == sides.groups.reference) & (own >= 0), 0)
            if sides.ref_includes_query:
                gains[torch.arange(len(rows)), rows] = 0
            tops.append(gains.topk(k, dim=1).values.to("cpu", torch.float64))
        greatest = torch.cat(tops)
        if sides.groups is None:
            return greatest[self.classes.class_of_query.cpu()]
        return greatest
