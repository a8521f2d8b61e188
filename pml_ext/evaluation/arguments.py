"""The arguments of metrics, named as in PML's calculator."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .retrieval import Comparison, Sides


@dataclass
class MetricArguments:
    """Arguments of a metric, named as in PML; None for what was not needed."""

    query: Tensor
    query_labels: Tensor
    reference: Tensor
    reference_labels: Tensor
    ref_includes_query: bool
    label_comparison_fn: Comparison
    per_query: Mapping[str, Tensor] = field(default_factory=dict)  # values of metrics of neighbors, [Q] each
    label_counts: tuple[Tensor, Tensor] | None = None  # classes of the queries, and their items in the gallery
    lone_query_labels: Tensor | None = None
    not_lone_query_mask: Tensor | None = None
    not_lone_at_level: Mapping[int, Tensor] | None = None  # not_lone_query_mask at each level of a tree
    knn_labels: Tensor | None = None
    knn_distances: Tensor | None = None
    cluster_labels: Tensor | None = None
    pair_values: Mapping[str, float] | None = None  # metrics of pairs, by name

    def keywords(self) -> dict[str, Any]:
        """The known arguments."""
        return {name: value for name, value in vars(self).items() if value is not None}


class Clusterings:
    """Clusters of the queries, computed once for each number per class."""

    def __init__(self, sides: Sides, kmeans_func: Any) -> None:
        self._query = sides.query
        self._classes = len(torch.unique(sides.query_labels, dim=0))
        self._kmeans = kmeans_func
        self._found: dict[int, Tensor] = {}

    def reason(self, per_class: int) -> str:
        """Why the clusters are meaningless, or an empty string."""
        queries = len(self._query)
        clusters = per_class * self._classes
        if self._classes == 1:
            return f"all {queries} queries have one class, so that no cluster can be wrong"
        if clusters >= queries:
            return f"{clusters} clusters of {queries} queries have one each, whatever the embeddings"
        return ""

    def of(self, per_class: int) -> Tensor:
        """The cluster of each query, ``[Q]``."""
        if per_class not in self._found:
            self._found[per_class] = torch.as_tensor(self._kmeans(self._query, per_class * self._classes))
        return self._found[per_class]
