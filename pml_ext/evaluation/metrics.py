r"""Metrics as pure functions, and the table of them that calculator, runs and reports go by.

A metric of neighbors gets two tensors of a search for the K nearest gallery items of each query:

- ``right``, ``[Q, K]``, booleans: whether the neighbor j of query i, nearest first, is of the query's class, written
  :math:`r_{ij}` below;
- ``relevant``, ``[Q]``, integers: how many gallery items are of the query's class, the query itself left out, written
  :math:`R_i`.

It returns one value per query, ``[Q]``, float64 from 0 to 1, which :func:`mean`, :func:`class_means` and
:func:`mean_of_class_means` reduce. A query is *lone* if its class has no item in the gallery, :math:`R_i = 0`: it
cannot be answered. Columns that a small gallery cannot fill are missing and count as wrong.

A metric of clusters gets the classes and the clusters of the queries; see :mod:`pml_ext.evaluation.clustering`.

To add a metric, write its function and a row of ``_METRICS``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from .clustering import ami, nmi, nmi_majority, pairwise_f1, purity


def recall_at_k(right: Tensor, k: int) -> Tensor:
    r"""Return Recall@K: whether at least one of the k nearest is right.

    .. math:: \max_{j \le k} r_{ij}

    The value is 0 for a lone query.
    """
    return right[:, :k].any(dim=1).to(torch.float64)


def precision_at_k(right: Tensor, k: int) -> Tensor:
    r"""Return Precision@K: the share of right items among the k nearest.

    .. math:: \frac{1}{k} \sum_{j \le k} r_{ij}

    The divisor is k where K is smaller, too. The value is 0 for a lone query.
    """
    return right[:, :k].sum(dim=1).to(torch.float64) / k


def r_precision(right: Tensor, relevant: Tensor) -> Tensor:
    r"""Return R-precision: the share of right items among the :math:`R_i` nearest.

    .. math:: \frac{1}{R_i} \sum_{j \le R_i} r_{ij}

    Where K is smaller than :math:`R_i`, K takes its place, as in PML. The value is NaN for a lone query.
    """
    right = right & _within(right, relevant)
    return right.sum(dim=1).to(torch.float64) / relevant.clamp(max=right.shape[1])


def map_at_r(right: Tensor, relevant: Tensor) -> Tensor:
    r"""Return MAP@R (Musgrave et al. 2020, "A Metric Learning Reality Check", Sec. 3.2).

    .. math:: \frac{1}{R_i} \sum_{j \le R_i} r_{ij} \, \frac{1}{j} \sum_{l \le j} r_{il}

    The value is NaN for a lone query.
    """
    return average_precision(right & _within(right, relevant), relevant)


def average_precision(right: Tensor, relevant: Tensor) -> Tensor:
    r"""Return average precision, of which the mean over queries is MAP.

    .. math:: \frac{1}{R_i} \sum_{j \le K} r_{ij} \, \frac{1}{j} \sum_{l \le j} r_{il}

    K is the whole gallery for MAP as it is usually meant. The value is NaN for a lone query.
    """
    return ((right.cumsum(dim=1) * right).to(torch.float64) / _ranks(right)).sum(dim=1) / relevant


def reciprocal_rank(right: Tensor) -> Tensor:
    r"""Return the reciprocal rank of the first right neighbor, of which the mean over queries is MRR.

    .. math:: \max_{j \le K} \frac{r_{ij}}{j}

    K is the whole gallery for MRR as it is usually meant. The value is 0 where none of the K is right.
    """
    first = right & (right.cumsum(dim=1) == 1)
    return (first.to(torch.float64) / _ranks(right)).sum(dim=1)


def ndcg(gains: Tensor, ideal: Tensor) -> Tensor:
    r"""Return NDCG@K: gains of the K nearest, discounted by rank, over those of the best order.

    .. math:: \frac{\sum_{j \le K} g_{ij} / \log_2(j + 1)}{\sum_{j \le K} g^*_{ij} / \log_2(j + 1)}

    ``gains``, ``[Q, K]``, are the weights of the neighbors, 1 and 0 without a graded relation; ``ideal``, ``[Q, K]``,
    the K greatest of the gallery. The value is NaN where all of these are 0.
    """
    discounts = 1 / torch.log2(1 + _ranks(ideal).to(torch.float64))
    return (gains * discounts[: gains.shape[1]]).sum(dim=1) / (ideal * discounts).sum(dim=1)


def _ranks(right: Tensor) -> Tensor:
    return torch.arange(1, right.shape[1] + 1, device=right.device)


def _within(right: Tensor, relevant: Tensor) -> Tensor:
    return _ranks(right) <= relevant[:, None]


@dataclass(frozen=True)
class Metric:
    """A row of the table of metrics."""

    name: str  # in metrics.json
    title: str  # in a report
    function: Callable[[Any, Any], Any]  # of right and relevant, or of the classes and clusters of the queries
    neighbors: int | Literal["relevant", "gallery"] | None = None  # that it looks at; None for a metric of clusters
    clusters: int = 0  # of k-means per class of the queries; 0 for a metric of neighbors
    pml_name: str = ""  # in PML's calculator, where it differs from the name
    lone_queries: bool = False  # whether a lone query may enter the mean, as a miss
    in_runs: bool = True  # whether runs report it
    graded: bool = False  # whether the function is of gains and the greatest gains of the gallery
    level: int = 0  # of a tree, whose ancestors say which neighbors are right; 0 for the relation's own

    @property
    def accuracy(self) -> str:
        """Its name in the calculator."""
        return self.pml_name or self.name

    def columns(self, most_relevant: int, gallery: int) -> int:
        """Return the number of neighbors it looks at, by the largest R of a query and the size of the gallery."""
        limits = {"relevant": most_relevant, "gallery": gallery}
        return min(limits[self.neighbors] if isinstance(self.neighbors, str) else self.neighbors or 0, gallery)


_METRICS = (
    Metric("r_precision", "R-precision", r_precision, "relevant"),
    Metric("map_at_r", "MAP@R", map_at_r, "relevant", pml_name="mean_average_precision_at_r"),
    Metric("map", "MAP", average_precision, "gallery", pml_name="mean_average_precision", in_runs=False),
    Metric(
        "mrr", "MRR", lambda right, _: reciprocal_rank(right), "gallery", pml_name="mean_reciprocal_rank", in_runs=False
    ),
    Metric("nmi", "NMI", nmi, clusters=1, pml_name="NMI"),
    Metric("nmi_majority", "NMI of majority classes", nmi_majority, clusters=1),
    Metric("f1", "F1", pairwise_f1, clusters=1),
    Metric("purity", "purity", purity, clusters=1),
    Metric("ami", "AMI", ami, clusters=1, pml_name="AMI", in_runs=False),
)


def metrics_of(
    recall_at: Iterable[int] = (1,),
    precision_at: Iterable[int] = (1,),
    clusters_per_class: Iterable[int] = (1,),
    ndcg_at: Iterable[int] = (),
    levels: Iterable[int] = (),
) -> list[Metric]:
    """Return the table of metrics in the order of ``metrics.json``; arguments as of the calculator.

    ``levels``: those of a tree for which recall is reported too.
    """
    recall_at = _counts("recall_at", recall_at)

    def recall(k: int) -> Metric:
        return Metric(f"recall_at_{k}", f"Recall@{k}", lambda right, _: recall_at_k(right, k), k, lone_queries=True)

    def precision(k: int) -> Metric:
        return Metric(f"precision_at_{k}", f"P@{k}", lambda right, _: precision_at_k(right, k), k)

    more_clusters = [
        replace(metric, name=f"{metric.name}_{c}", title=f"{metric.title}, {c} per class", clusters=c, pml_name="")
        for c in _counts("clusters_per_class", clusters_per_class)
        if c > 1
        for metric in _METRICS
        if metric.clusters and metric.in_runs
    ]
    graded = [Metric(f"ndcg_at_{k}", f"NDCG@{k}", ndcg, k, graded=True) for k in _counts("ndcg_at", ndcg_at)]
    of_levels = [
        replace(recall(k), name=f"recall_at_{k}_level_{level}", title=f"Recall@{k}, level {level}", level=level)
        for level in levels
        for k in recall_at
    ]
    precisions = [precision(k) for k in _counts("precision_at", precision_at)]
    return [*map(recall, recall_at), *precisions, *graded, *of_levels, *_METRICS, *more_clusters]


def _counts(name: str, values: Iterable[int]) -> list[int]:
    values = list(values)
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} wants integers of at least 1, not {value!r}")
    return sorted(set(values))


def relevant_counts(query_labels: Tensor, gallery_labels: Tensor) -> Tensor:
    """Return the number of gallery items of each query's class, ``[Q]``, int64."""
    classes, places = torch.unique(torch.cat([query_labels, gallery_labels]), return_inverse=True)
    counts = torch.bincount(places[len(query_labels) :], minlength=len(classes))
    return counts[places[: len(query_labels)]]


def mean(values: Tensor, counted: Tensor | None = None) -> float:
    """Return the mean of ``[Q]`` values over the queries that count, by default all; NaN where none does."""
    return float((values if counted is None else values[counted]).mean())


def class_means(values: Tensor, labels: Tensor, counted: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the classes in rising order, ``[C]`` or ``[C, L]``, and the mean of each, ``[C]`` or ``[C, D]``.

    Values are ``[Q]`` or ``[Q, D]``, labels ``[Q]`` or ``[Q, L]``. ``counted``, ``[Q]``: the queries that count; all by
    default.
    """
    if counted is not None:
        values, labels = values[counted], labels[counted]
    classes, places = torch.unique(labels.to(values.device), dim=0, return_inverse=True)
    sums = values.new_zeros(len(classes), *values.shape[1:]).index_add_(0, places, values)
    counts = torch.bincount(places, minlength=len(classes))
    return classes, sums / counts.view(-1, *[1] * (values.ndim - 1))


def mean_of_class_means(values: Tensor, labels: Tensor, counted: Tensor | None = None) -> float:
    """Return the mean of :func:`class_means`: each class counts alike, however many queries it has."""
    return float(class_means(values, labels, counted)[1].mean())
