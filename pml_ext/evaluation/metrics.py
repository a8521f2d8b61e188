r"""Retrieval metrics as pure functions on neighbors.

A search gives the K nearest gallery items of each query. Two tensors say all that the metrics need to know of it:

- ``right``, ``[Q, K]``, booleans: whether the neighbor j of query i, nearest first, is of the query's class, written
  :math:`r_{ij}` below (:func:`is_right` makes it);
- ``relevant``, ``[Q]``, integers: how many gallery items are of the query's class, the query itself left out, written
  :math:`R_i` (:func:`relevant_counts` makes it).

A metric gives one value per query, ``[Q]``, float64. :func:`mean`, :func:`class_means` and :func:`mean_of_class_means`
reduce these. A query is *lone* if its class has no item in the gallery, :math:`R_i = 0`: it cannot be answered. Each
docstring says what value a lone query has; ``counted=relevant > 0`` leaves lone queries out of a reduction.

A column that a small gallery cannot fill is simply not there: with K smaller than k, what is missing counts as wrong.
"""

from __future__ import annotations

import torch
from torch import Tensor

# What the functions need


def relevant_counts(query_labels: Tensor, gallery_labels: Tensor, gallery_has_queries: bool = False) -> Tensor:
    """How many gallery items are of each query's class.

    They are counted once per class, so that memory grows with queries + gallery.

    Args:
        query_labels: ``[Q]``, integers.
        gallery_labels: ``[G]``, integers, on the same device.
        gallery_has_queries: whether each query is in the gallery too, and is not counted.

    Returns:
        ``[Q]``, int64, from 0 to G.
    """
    classes, places = torch.unique(torch.cat([query_labels, gallery_labels]), return_inverse=True)
    counts = torch.bincount(places[len(query_labels) :], minlength=len(classes))
    return counts[places[: len(query_labels)]] - int(gallery_has_queries)


def is_right(query_labels: Tensor, gallery_labels: Tensor, indices: Tensor) -> Tensor:
    """Which neighbors are of their query's class.

    Args:
        query_labels: ``[Q]``, integers.
        gallery_labels: ``[G]``, integers.
        indices: ``[Q, K]``, places in the gallery, nearest first; below 0 where a search has no neighbor.

    Returns:
        ``[Q, K]``, booleans; false where there is no neighbor.
    """
    return (gallery_labels[indices] == query_labels[:, None]) & (indices >= 0)


# Metrics: one value per query


def recall_at_k(right: Tensor, k: int) -> Tensor:
    r"""Recall@K: whether at least one of the k nearest is right.

    .. math:: \max_{j \le k} r_{ij}

    Args:
        right: ``[Q, K]``.
        k: at least 1.

    Returns:
        ``[Q]``, 0 or 1; 0 for a lone query.
    """
    return right[:, :k].any(dim=1).to(torch.float64)


def precision_at_k(right: Tensor, k: int) -> Tensor:
    r"""Precision@K: the share of right items among the k nearest.

    .. math:: \frac{1}{k} \sum_{j \le k} r_{ij}

    Args:
        right: ``[Q, K]``.
        k: at least 1; also the divisor where K is smaller.

    Returns:
        ``[Q]``, from 0 to 1; 0 for a lone query.
    """
    return right[:, :k].sum(dim=1).to(torch.float64) / k


def r_precision(right: Tensor, relevant: Tensor) -> Tensor:
    r"""R-precision: the share of right items among as many nearest as are relevant.

    .. math:: \frac{1}{R_i} \sum_{j \le R_i} r_{ij}

    Args:
        right: ``[Q, K]``. Where K is smaller than :math:`R_i`, K takes its place, as in PML.
        relevant: ``[Q]``.

    Returns:
        ``[Q]``, from 0 to 1; NaN for a lone query.
    """
    right = right & _within(right, relevant)
    return right.sum(dim=1).to(torch.float64) / relevant.clamp(max=right.shape[1])


def map_at_r(right: Tensor, relevant: Tensor) -> Tensor:
    r"""MAP@R (Musgrave et al. 2020, "A Metric Learning Reality Check", Sec. 3.2): average precision of the R nearest.

    .. math:: \frac{1}{R_i} \sum_{j \le R_i} r_{ij} \, \frac{1}{j} \sum_{l \le j} r_{il}

    Args:
        right: ``[Q, K]``. Where K is smaller than :math:`R_i`, what is missing counts as wrong.
        relevant: ``[Q]``.

    Returns:
        ``[Q]``, from 0 to 1; NaN for a lone query.
    """
    return average_precision(right & _within(right, relevant), relevant)


def average_precision(right: Tensor, relevant: Tensor) -> Tensor:
    r"""Average precision, of which the mean over queries is MAP.

    .. math:: \frac{1}{R_i} \sum_{j \le K} r_{ij} \, \frac{1}{j} \sum_{l \le j} r_{il}

    Args:
        right: ``[Q, K]``; the whole gallery for MAP as it is usually meant, fewer columns for MAP of the K nearest.
        relevant: ``[Q]``.

    Returns:
        ``[Q]``, from 0 to 1; NaN for a lone query.
    """
    return ((right.cumsum(dim=1) * right).to(torch.float64) / _ranks(right)).sum(dim=1) / relevant


def reciprocal_rank(right: Tensor) -> Tensor:
    r"""The reciprocal rank of the first right neighbor, of which the mean over queries is MRR.

    .. math:: \max_{j \le K} \frac{r_{ij}}{j}

    Args:
        right: ``[Q, K]``; the whole gallery for MRR as it is usually meant.

    Returns:
        ``[Q]``, from 0 to 1; 0 where none of the K is right, as for a lone query.
    """
    first = right & (right.cumsum(dim=1) == 1)
    return (first.to(torch.float64) / _ranks(right)).sum(dim=1)


def _ranks(right: Tensor) -> Tensor:
    return torch.arange(1, right.shape[1] + 1, device=right.device)


def _within(right: Tensor, relevant: Tensor) -> Tensor:
    return _ranks(right) <= relevant[:, None]


# Reductions


def mean(values: Tensor, counted: Tensor | None = None) -> float:
    """The mean over queries.

    Args:
        values: ``[Q]``.
        counted: ``[Q]``, booleans: the queries that count; all by default.

    Returns:
        NaN where no query counts.
    """
    return float((values if counted is None else values[counted]).mean())


def class_means(values: Tensor, labels: Tensor, counted: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The mean of each class.

    Args:
        values: ``[Q]``, or ``[Q, D]``: points, whose means are not normalized.
        labels: ``[Q]``, or ``[Q, L]`` where a row is a label; the classes.
        counted: ``[Q]``, booleans: the queries that count; all by default.

    Returns:
        The C classes that have a query which counts, in rising order, ``[C]`` (``[C, L]``); and their means, ``[C]``
        or ``[C, D]``.
    """
    if counted is not None:
        values, labels = values[counted], labels[counted]
    classes, places = torch.unique(labels.to(values.device), dim=0, return_inverse=True)
    sums = values.new_zeros(len(classes), *values.shape[1:]).index_add_(0, places, values)
    counts = torch.bincount(places, minlength=len(classes))
    return classes, sums / counts.view(-1, *[1] * (values.ndim - 1))


def mean_of_class_means(values: Tensor, labels: Tensor, counted: Tensor | None = None) -> float:
    """The mean of :func:`class_means`: each class counts alike, however many queries it has.

    Args:
        values: ``[Q]``, float64.
        labels: ``[Q]`` or ``[Q, L]``.
        counted: ``[Q]``, booleans: the queries that count; all by default.

    Returns:
        NaN where no query counts.
    """
    return float(class_means(values, labels, counted)[1].mean())
