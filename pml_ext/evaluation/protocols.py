"""How well embeddings answer queries: all metrics, from one search."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from .clustering import kmeans as default_kmeans
from .clustering import nmi, pairwise_f1, purity
from .metrics import (
    average_precision,
    is_right,
    map_at_r,
    mean,
    precision_at_k,
    r_precision,
    recall_at_k,
    reciprocal_rank,
    relevant_counts,
)
from .neighbors import NearestNeighbors, default_neighbors


@dataclass(frozen=True)
class QueryMetric:
    """A metric that has one value per query.

    Args:
        values: gives them, ``[Q]``, of ``right`` and ``relevant`` (see :mod:`pml_ext.evaluation.metrics`).
        sees: how many neighbors: a number, as many as are relevant to any query, or the whole gallery.
        lone_can_count: whether a lone query may enter the mean, as a miss.
    """

    values: Callable[[Tensor, Tensor], Tensor]
    sees: int | Literal["relevant", "gallery"]
    lone_can_count: bool = False

    def columns(self, most_relevant: int, gallery: int) -> int:
        """How many neighbors it sees.

        Args:
            most_relevant: how many gallery items are relevant to a query, at most.
            gallery: how many items can be a query's neighbors.
        """
        if isinstance(self.sees, int):
            return min(self.sees, gallery)
        return min(most_relevant, gallery) if self.sees == "relevant" else gallery


def recall(k: int) -> QueryMetric:
    """``recall_at_k``."""
    return QueryMetric(lambda right, _: recall_at_k(right, k), k, lone_can_count=True)


def precision(k: int) -> QueryMetric:
    """``precision_at_k``."""
    return QueryMetric(lambda right, _: precision_at_k(right, k), k)


RANKING = {
    "r_precision": QueryMetric(r_precision, "relevant"),
    "map_at_r": QueryMetric(map_at_r, "relevant"),
    "map": QueryMetric(average_precision, "gallery"),
    "mrr": QueryMetric(lambda right, _: reciprocal_rank(right), "gallery"),
}
CLUSTERING = {"nmi": nmi, "f1": pairwise_f1, "purity": purity}


@dataclass(frozen=True)
class Evaluation:
    """What :func:`evaluate` gives; all tensors are on the CPU.

    Args:
        metrics: the means, by the names of ``metrics.json``: ``recall_at_K``, ``precision_at_K``, ``r_precision``,
            ``map_at_r``, ``map``, ``mrr``, then ``nmi``, ``f1`` and ``purity``, and ``nmi_c``, ``f1_c`` and
            ``purity_c`` of c clusters per class. Those that were asked for, in this order.
        per_query: the values that the means are of, ``[Q]``, float64, by the same names. Clusters have none.
        relevant: how many gallery items are of each query's class, ``[Q]``, int64; 0 for a lone query.
        distances: of the nearest neighbors that were to be kept, as the search gives them: ``[Q, keep]``, or as many
            columns as the gallery has items.
        indices: their places in the gallery, of the same shape.
        right: whether they are of the query's class, of the same shape.
    """

    metrics: dict[str, float]
    per_query: dict[str, Tensor]
    relevant: Tensor
    distances: Tensor
    indices: Tensor
    right: Tensor


def evaluate(
    embeddings: Any,
    labels: Any,
    *,
    gallery: Any = None,
    gallery_labels: Any = None,
    gallery_has_queries: bool = False,
    recall_at: Iterable[int] = (1, 2, 4, 8),
    precision_at: Iterable[int] = (1,),
    ranking: Iterable[str] = ("r_precision", "map_at_r"),
    clusters_per_class: Iterable[int] = (1,),
    lone_queries: Literal["miss", "drop"] = "miss",
    search: NearestNeighbors | None = None,
    kmeans: Callable[[Tensor, int], Tensor] | None = None,
    keep: int = 0,
) -> Evaluation:
    """Retrieval and clustering metrics of embeddings, from one search.

    The search is for as many neighbors as the metrics need: the largest K; as many as the largest class has, for
    ``r_precision`` and ``map_at_r``; the whole gallery for ``map`` and ``mrr``. A gallery with fewer than K items
    counts what is missing as wrong. Formulas stand in :mod:`pml_ext.evaluation.metrics` and
    :mod:`pml_ext.evaluation.clustering`.

    *Cost:* the search and k-means. Neighbors are taken in tiles of queries: in memory are one value per query and
    metric, the neighbors to keep, and a tile of about 8 million neighbors.

    Args:
        embeddings: the queries, ``[Q, D]``, tensor or array, compared in float32 as they are: normalize them for cosine
            similarity.
        labels: their classes, ``[Q]``, integers.
        gallery: where they are searched, ``[G, D]``; by default each query is searched among all others.
        gallery_labels: its classes, ``[G]``, integers.
        gallery_has_queries: whether the gallery's first Q items are the queries, each of which then leaves out itself.
        recall_at: every K of ``recall_at_K``.
        precision_at: every K of ``precision_at_K``.
        ranking: which of ``r_precision``, ``map_at_r``, ``map`` and ``mrr``.
        clusters_per_class: every c for which k-means finds c clusters per class among the queries; ``()`` for none.
        lone_queries: a query without a relevant gallery item is a ``"miss"`` in ``recall_at_K``, or is left out
            (``"drop"``). The other metrics of retrieval always leave it out.
        search: how neighbors are searched; by Euclidean distance by default.
        kmeans: ``kmeans(points, clusters)`` gives the cluster of each point, ``[Q]``; by default
            :func:`pml_ext.evaluation.kmeans`.
        keep: how many of the nearest neighbors of each query are returned.

    Returns:
        Metrics as fractions (NaN where no query counts), their values per query, and the neighbors kept.

    Raises:
        ValueError: a K, a c or ``keep`` that is no such number, an unknown name in ``ranking`` or ``lone_queries``,
            embeddings and labels that do not fit together, or more clusters than points.

    Example:
        >>> points, labels = torch.tensor([[0.0], [1.0], [1.5], [9.0]]), torch.tensor([0, 1, 0, 1])
        >>> evaluate(points, labels, recall_at=(1, 2), ranking=(), clusters_per_class=()).metrics
        {'recall_at_1': 0.0, 'recall_at_2': 0.75, 'precision_at_1': 0.0}
    """
    ranking = tuple(ranking)
    if unknown := [name for name in ranking if name not in RANKING]:
        raise ValueError(f"no ranking metric {unknown[0]!r}; there are {', '.join(RANKING)}")
    if lone_queries not in ("miss", "drop"):
        raise ValueError(f"lone_queries must be 'miss' or 'drop', not {lone_queries!r}")
    wanted = {f"recall_at_{k}": recall(k) for k in whole_numbers("recall_at", recall_at)}
    wanted |= {f"precision_at_{k}": precision(k) for k in whole_numbers("precision_at", precision_at)}
    wanted |= {name: metric for name, metric in RANKING.items() if name in ranking}
    cluster_counts = whole_numbers("clusters_per_class", clusters_per_class)
    (keep,) = whole_numbers("keep", (keep,), least=0)

    query, query_labels = _points("embeddings", embeddings, labels)
    if gallery is None:
        if gallery_labels is not None or gallery_has_queries:
            raise ValueError("gallery_labels and gallery_has_queries go with a gallery; give it, or leave them out")
        gallery, gallery_labels, gallery_has_queries = query, query_labels, True
    else:
        gallery, gallery_labels = (x.to(query.device) for x in _points("gallery", gallery, gallery_labels))
        if gallery.shape[1] != query.shape[1]:
            raise ValueError(f"the gallery has {gallery.shape[1]} dimensions, the embeddings {query.shape[1]}")
        if gallery_has_queries:
            check_first(query, query_labels, gallery, gallery_labels)

    relevant = relevant_counts(query_labels, gallery_labels, gallery_has_queries).cpu()
    most, size = int(relevant.max()), len(gallery) - int(gallery_has_queries)
    columns = {name: metric.columns(most, size) for name, metric in wanted.items()}
    tiles: Iterable[tuple[slice, Tensor, Tensor]] = ()
    if wanted or keep:
        search, k = search or default_neighbors(), max([1, keep, *columns.values()])
        tiles = search.tiles(query, k, gallery, gallery_has_queries)
    per_query, *kept = values_per_query(
        wanted,
        columns,
        relevant,
        tiles,
        lambda rows, indices: is_right(query_labels[rows], gallery_labels, indices),
        min(keep, size),
    )

    means = {}
    for name, metric in wanted.items():
        all_count = metric.lone_can_count and lone_queries == "miss"
        means[name] = mean(per_query[name], None if all_count else relevant > 0)
    classes = len(torch.unique(query_labels))
    for count in cluster_counts:
        clusters = (kmeans or default_kmeans)(query, count * classes).cpu()
        for name, function in CLUSTERING.items():
            means[name if count == 1 else f"{name}_{count}"] = function(query_labels.cpu(), clusters)
    return Evaluation(means, per_query, relevant, *kept)


def values_per_query(
    wanted: Mapping[str, QueryMetric],
    columns: Mapping[str, int],
    relevant: Tensor,
    tiles: Iterable[tuple[slice, Tensor, Tensor]],
    right_of: Callable[[slice, Tensor], Tensor],
    keep: int = 0,
) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor]:
    """Values of metrics while neighbors come in, tile by tile.

    Args:
        wanted: the metrics by name.
        columns: how many neighbors each of them sees.
        relevant: ``[Q]``, on the CPU.
        tiles: which queries, and their distances and indices, as of :meth:`NearestNeighbors.tiles`.
        right_of: gives of these queries and indices which are right, booleans of the indices' shape.
        keep: how many of the nearest neighbors to return, at most as many as there are.

    Returns:
        ``{name: [Q] float64}``; distances, indices and what is right of the neighbors kept, ``[Q, keep]``. All on the
        CPU, since not every device has float64.
    """
    values = {name: torch.empty(len(relevant), dtype=torch.float64) for name in wanted}
    kept = [torch.empty(len(relevant), keep, dtype=kind) for kind in (torch.float32, torch.int64, torch.bool)]
    for rows, distances, indices in tiles:
        right = right_of(rows, indices).cpu()
        for all_kept, tile in zip(kept, (distances, indices, right), strict=True):
            all_kept[rows] = tile[:, :keep].cpu()
        for name, metric in wanted.items():
            values[name][rows] = metric.values(right[:, : columns[name]], relevant[rows])
    return values, kept[0], kept[1], kept[2]


def whole_numbers(name: str, values: Iterable[int], least: int = 1) -> list[int]:
    """Settings that are whole numbers, each once, in rising order.

    Args:
        name: of the setting, for the text.
        values: the numbers.
        least: the least that is allowed.

    Raises:
        ValueError: one is no integer, or below ``least``.
    """
    values = list(values)
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name} wants integers of at least {least}, not {value!r}")
    return sorted(set(values))


def check_first(query: Tensor, query_labels: Tensor, gallery: Tensor, gallery_labels: Tensor) -> None:
    """Refuses a gallery that does not begin with the queries.

    Args:
        query: ``[Q, D]``.
        query_labels: ``[Q]``, or ``[Q, L]``.
        gallery: ``[G, D]``, on the same device.
        gallery_labels: ``[G]``, or ``[G, L]``.
    """
    count = len(query)
    same = len(gallery) >= count and torch.equal(query_labels, gallery_labels[:count])
    if not same or not torch.allclose(query, gallery[:count], equal_nan=True):
        raise ValueError(
            f"a gallery that is said to have the queries must begin with them, all {count}, and with their labels"
        )


def _points(name: str, points: Any, labels: Any) -> tuple[Tensor, Tensor]:
    points, labels = torch.as_tensor(points).detach().float(), torch.as_tensor([] if labels is None else labels)
    if points.ndim != 2 or labels.shape != points.shape[:1] or len(points) == 0:
        shapes = f"{list(points.shape)} and {list(labels.shape)}"
        raise ValueError(f"{name} want points [N, D] and N labels, N of at least 1, not shapes {shapes}")
    if labels.is_floating_point():
        raise ValueError(f"{name} want integers as labels, not {labels.dtype}; make them .long()")
    return points, labels.to(points.device)
