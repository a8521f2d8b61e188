"""Checks of queries and gallery: embeddings, labels and groups."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..pairwise import labels_as_tensor
from ..pml import EQUALITY
from ..relations import NegativesOnly, Relation
from .groups import groups_of
from .neighbors import check_embeddings
from .retrieval import Comparison, Sides


@dataclass(frozen=True)
class Inputs:
    """Checks of embeddings and labels for one calculator."""

    device: torch.device
    relation: Relation | None
    compare: Comparison

    def sides(
        self, query: Any, query_labels: Any, reference: Any, reference_labels: Any, ref_includes_query: bool
    ) -> Sides:
        """Checked queries and gallery; without a gallery, the queries are their own."""
        query, query_labels = self._points("query", query, query_labels, axis=0)
        if reference is None:
            return Sides(query, query_labels, query, query_labels, ref_includes_query=True)

        reference, reference_labels = self._points("reference", reference, reference_labels, axis=1)
        if query.shape[1] != reference.shape[1]:
            raise ValueError(
                f"queries have embeddings of size {query.shape[1]}, and the gallery of size {reference.shape[1]}; "
                "wanted the same size"
            )
        if ref_includes_query:
            first = reference[: len(query)]
            first_labels = reference_labels[: len(query)]
            if not (torch.equal(query_labels, first_labels) and torch.allclose(query, first)):
                raise ValueError(
                    f"with ref_includes_query, a gallery must begin with all {len(query)} queries and their labels"
                )
        return Sides(query, query_labels, reference, reference_labels, ref_includes_query)

    def _points(self, name: str, points: Any, labels: Any, axis: int) -> tuple[Tensor, Tensor]:
        points = torch.as_tensor(points, device=self.device).detach().float()
        check_embeddings(name, points)
        if self.relation is not None:
            if self.relation.num_classes is not None or isinstance(self.relation, NegativesOnly):
                labels = _without_column(labels)
            labels = self.relation.tensor(labels, len(points), self.device, axis)
            self.relation.matrix(labels[:1], labels[:1])  # ValueError for weights of a wrong shape
            return points, labels
        labels = labels_as_tensor(labels, f"{name}_labels").to(self.device)
        if len(points) != len(labels):
            raise ValueError(f"wanted one label per embedding, not {len(labels)} labels for {len(points)} embeddings")
        return points, self._comparable(labels)

    def _comparable(self, labels: Tensor) -> Tensor:
        if self.compare is EQUALITY:
            labels = _without_column(labels)
            if labels.ndim > 1:
                raise ValueError(f"labels of shape {list(labels.shape)} need a label_comparison_fn; default: shape [N]")
            return labels

        labels = labels.float()  # PML passes float labels to a label_comparison_fn
        first = labels[:1]
        if self.compare(first, first).ndim <= 1:  # one value per pair, not one per column
            return labels
        single_labels: Tensor = _without_column(labels)
        if single_labels.ndim > 1:
            raise ValueError(
                "label_comparison_fn must return one boolean for each pair; for labels of shape "
                f"{list(labels.shape)} it compares each column: type (x == y).all(-1), for example"
            )
        return single_labels


def with_groups(sides: Sides, query_groups: Any, reference_groups: Any) -> Sides:
    """Add checked groups; ValueError if no query has a gallery left."""
    if query_groups is None:
        raise ValueError("reference_groups are given without query_groups; queries and gallery both have groups")
    gallery_size = None if sides.reference is sides.query else len(sides.reference)
    groups = groups_of(query_groups, reference_groups, len(sides.query), gallery_size, sides.query.device)
    sides = replace(sides, groups=groups)
    sizes = sides.gallery_sizes()
    if len(sizes) and bool((sizes <= 0).all()):
        raise ValueError(
            f"the groups leave no gallery: all {len(sides.reference)} gallery items belong to each query's own group"
        )
    return sides


def _without_column(labels: Any) -> Any:
    if getattr(labels, "ndim", 0) == 2 and labels.shape[1] == 1:
        return labels[:, 0]
    return labels
