"""What a metric is given, under the names of PML's calculator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from torch import Tensor

from .retrieval import Comparison


@dataclass
class MetricArguments:
    """The arguments of a metric, as PML names them; those of neighbors and clusters only where a metric needs them."""

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
        """Return the arguments that are known."""
        known = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if value is not None:
                known[each.name] = value
        return known
