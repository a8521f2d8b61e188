"""PML's calculator as an adapter over the metrics of this package."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from .. import registry
from ..pml import EQUALITY, AccuracyCalculator
from .clustering import ami, kmeans, nmi, pairwise_f1, purity
from .metrics import class_means, mean, mean_of_class_means, relevant_counts
from .neighbors import NearestNeighbors, default_neighbors
from .protocols import RANKING, QueryMetric, check_first, precision, recall, values_per_query, whole_numbers

# Metrics with one value per query that PML has too, by its names.
_PMLS = {
    "precision_at_1": precision(1),
    "r_precision": RANKING["r_precision"],
    "mean_average_precision_at_r": RANKING["map_at_r"],
    "mean_average_precision": RANKING["map"],
    "mean_reciprocal_rank": RANKING["mrr"],
}
CLUSTER_METRICS = {"nmi": "NMI", "f1": "f1", "purity": "purity"}  # the calculator's names, by ours
_OWN_CLUSTER_METRICS = ("f1", "purity")  # which PML does not have
# Names in metrics.json, by the calculator's names where they differ.
_SHORT_NAMES = {"mean_average_precision_at_r": "map_at_r", "NMI": "nmi"}


class RetrievalAccuracyCalculator(AccuracyCalculator):  # type: ignore[misc]
    r"""PML's calculator with Recall@K, precision@K for any K, pairwise F1 and purity, for any number of clusters.

    ``recall_at_K``: the share of queries with at least one image of their class among their K nearest,

    .. math:: \frac{1}{N} \sum_i \mathbf 1[\,\exists j \in kNN_K(i) : y_j = y_i\,].

    ``precision_at_K``: the mean share of images of the query's class among the K nearest. ``f1``: pairwise F1 of
    k-means clusters, as many as classes (see :func:`pml_ext.evaluation.pairwise_f1`). ``purity``: the share of images
    that are of their cluster's most frequent class. With ``clusters_per_class=(1, 3)`` there are ``nmi_3``, ``f1_3``
    and ``purity_3`` too, of three times as many clusters as classes.

    PML's metrics keep their names and meaning. They see ``k`` neighbors, while the new ones see as many as their K
    asks for. A gallery that is smaller than K counts what is missing as wrong. Labels are compared as
    integers (PML's float32 merges 16777216 and 16777217).

    One search serves all metrics, the functions of :mod:`pml_ext.evaluation.metrics`, for as many neighbors as they
    need. Neighbors come in tiles of queries, unless ``knn_func`` is of another kind than
    :class:`pml_ext.evaluation.NearestNeighbors` or a subclass's metric looks at them.

    What a PML user types does what it does in PML. ``exclude=("NMI", "AMI")`` ends clustering: ``f1`` and ``purity``
    go with the two, unless ``include`` names them, so that no k-means is run and a ``label_comparison_fn`` may be
    given. Metrics of other numbers of clusters, which ``clusters_per_class`` asks for by itself, stay. A subclass adds
    metrics as PML documents it: a method ``calculate_NAME``, whose name ``requires_knn()`` or
    ``requires_clustering()`` has; it gets the neighbors that PML would give it, and takes the place of a metric of the
    same name here.

    Args:
        include: names of metrics to compute; all, if empty.
        exclude: names of metrics to leave out.
        avg_of_avgs: the mean over classes of their means, instead of the mean over queries.
        return_per_class: a list with one value per class, instead of the mean over queries.
        k: how many neighbors PML's metrics see: None for the whole gallery, a number, or ``"max_bin_count"`` for as
            many as the largest class has items. ``r_precision`` and ``mean_average_precision_at_r`` look at no more
            than these, so that None is cheap without ``mean_average_precision`` and ``mean_reciprocal_rank``.
        label_comparison_fn: in PML's form; by default equality. Clustering metrics do not go with one.
        device: where to compute; by default a GPU where there is one.
        knn_func: in PML's form; by default Euclidean, with faiss where it is installed, else with torch.
        kmeans_func: in PML's form; by default with a fixed seed, with faiss or else scikit-learn.
        recall_at: every K of ``recall_at_K``.
        precision_at: every K of ``precision_at_K``; 1 is PML's.
        clusters_per_class: clusters of k-means per class of the queries; 1 gives ``NMI``, ``f1`` and ``purity``,
            another c ``nmi_c``, ``f1_c`` and ``purity_c``.
        lone_queries: a query whose class has no other member is a ``"miss"`` in ``recall_at_K``, or is left out
            (``"drop"``), as PML's own metrics do.

    Raises:
        ValueError: a K below 1, an unknown metric (the text has the nearest ones) or ``lone_queries``.
        NotImplementedError: a ``label_comparison_fn`` beside a metric that needs clusters.

    Example:
        >>> calculator = RetrievalAccuracyCalculator(include=("recall_at_1", "recall_at_2"), recall_at=(1, 2))
        >>> points, labels = torch.tensor([[0.0], [1.0], [1.5], [9.0]]), torch.tensor([0, 1, 0, 1])
        >>> calculator.get_accuracy(points, labels)
        {'recall_at_1': 0.0, 'recall_at_2': 0.75}
    """

    def __init__(
        self,
        include: Iterable[str] = (),
        exclude: Iterable[str] = (),
        avg_of_avgs: bool = False,
        return_per_class: bool = False,
        k: int | str | None = None,
        label_comparison_fn: Callable[[Tensor, Tensor], Tensor] | None = None,
        device: torch.device | None = None,
        knn_func: Any = None,
        kmeans_func: Any = None,
        *,
        recall_at: Iterable[int] = (1, 2, 4, 8),
        precision_at: Iterable[int] = (1,),
        clusters_per_class: Iterable[int] = (1,),
        lone_queries: Literal["miss", "drop"] = "miss",
    ) -> None:
        if lone_queries not in ("miss", "drop"):
            raise ValueError(f"lone_queries must be 'miss' or 'drop', not {lone_queries!r}")
        self.lone_queries = lone_queries
        include = tuple(include)
        self._named = frozenset(include)
        added = {f"recall_at_{number}": recall(number) for number in whole_numbers("recall_at", recall_at)}
        added |= {f"precision_at_{number}": precision(number) for number in whole_numbers("precision_at", precision_at)}
        self._own: dict[str, QueryMetric] = {}
        for name, metric in {**added, **_PMLS}.items():
            method = f"calculate_{name}"
            if getattr(type(self), method, None) is getattr(AccuracyCalculator, method, None):  # no subclass's own
                self._own[name] = metric
            if not hasattr(self, method):
                setattr(self, method, functools.partial(self._reduced, name))
        self._clusters_of: dict[str, int] = {}  # clusters per class of every metric where they are not 1
        for count in whole_numbers("clusters_per_class", clusters_per_class):
            for name, metric_of_pml in CLUSTER_METRICS.items() if count > 1 else ():
                self._clusters_of[f"{name}_{count}"] = count
                setattr(self, f"calculate_{name}_{count}", getattr(self, f"calculate_{metric_of_pml}"))
        settings: dict[str, Any] = {
            "include": include,
            "exclude": tuple(exclude),
            "avg_of_avgs": avg_of_avgs,
            "return_per_class": return_per_class,
            "k": k,
            "label_comparison_fn": label_comparison_fn,
            "device": device,
            "knn_func": default_neighbors() if knn_func is None else knn_func,
            "kmeans_func": kmeans if kmeans_func is None else kmeans_func,
        }
        try:
            super().__init__(**settings)
        except NotImplementedError:
            clustering = [name for name in self.get_curr_metrics() if name in self.requires_clustering()]
            raise NotImplementedError(
                f"a label_comparison_fn does not go with metrics of clusters, and {', '.join(clustering)} "
                "would be computed; leave them out, for example with exclude=('NMI', 'AMI')"
            ) from None

    def requires_knn(self) -> list[str]:
        """Names of the metrics that need neighbors."""
        return [*super().requires_knn(), *_PMLS, *self._own]

    def requires_clustering(self) -> list[str]:
        """Names of the metrics that need clusters."""
        return [*super().requires_clustering(), *_OWN_CLUSTER_METRICS, *self._clusters_of]

    def get_function_dict(self, include: Iterable[str] = (), exclude: Iterable[str] = ()) -> dict[str, Any]:
        """The metrics to compute: where ``exclude`` ends PML's clustering metrics, ``f1`` and ``purity`` end too."""
        chosen: dict[str, Any] = super().get_function_dict(include, exclude)
        clustering = set(super().requires_clustering())
        if clustering & set(exclude) and not clustering & set(chosen):
            kept = self._named.union(include)
            return {
                name: function for name, function in chosen.items() if name in kept or name not in _OWN_CLUSTER_METRICS
            }
        return chosen

    def get_cluster_labels(self, query: Tensor, query_labels: Tensor, **kwargs: Any) -> Tensor | None:
        """As many clusters as classes; None where all metrics wanted have clusters of their own."""
        if set(self.get_curr_metrics()) & set(self.requires_clustering()) <= self._clusters_of.keys():
            return None
        return torch.as_tensor(super().get_cluster_labels(query, query_labels, **kwargs))

    def check_primary_metrics(self, include: Iterable[str] = (), exclude: Iterable[str] = ()) -> None:
        """Refuses metrics that there are not."""
        for name in (*include, *exclude):
            if name not in self.original_function_dict:
                raise ValueError(registry.unknown("metric", name, self.original_function_dict))

    def get_accuracy(
        self,
        query: Any,
        query_labels: Any,
        reference: Any = None,
        reference_labels: Any = None,
        ref_includes_query: bool = False,
        include: Iterable[str] = (),
        exclude: Iterable[str] = (),
    ) -> dict[str, Any]:
        """The metrics of queries searched in a gallery.

        Args:
            query: ``[N, D]``, tensor or array.
            query_labels: ``[N]``, integers.
            reference: the gallery, ``[R, D]``; None for the queries themselves.
            reference_labels: ``[R]``.
            ref_includes_query: whether the gallery's first N rows are the queries, which then are left out.
            include: names of metrics, to compute these alone.
            exclude: names of metrics to leave out.

        Returns:
            ``{name: value}``; values are fractions, or lists by class with ``return_per_class``.
        """
        self.check_primary_metrics(include, exclude)
        self.curr_function_dict = self.get_function_dict(tuple(include), tuple(exclude))
        query, query_labels = self._points(query, query_labels)
        if reference is None:
            reference, reference_labels, ref_includes_query = query, query_labels, True
        else:
            reference, reference_labels = self._points(reference, reference_labels)
            if ref_includes_query:
                check_first(query, query_labels, reference, reference_labels)
        seen = {
            "query": query,
            "query_labels": query_labels,
            "reference": reference,
            "reference_labels": reference_labels,
            "ref_includes_query": ref_includes_query,
            "label_comparison_fn": self.label_comparison_fn,
        }
        current = set(self.get_curr_metrics())
        if current & set(self.requires_knn()):
            seen |= self._search(query, query_labels, reference, reference_labels, ref_includes_query)
        if current & set(self.requires_clustering()):
            seen["cluster_labels"] = self.get_cluster_labels(**seen)
        return self._get_accuracy(self.curr_function_dict, **seen)

    def _points(self, points: Any, labels: Any) -> tuple[Tensor, Tensor]:
        points, labels = torch.as_tensor(points, device=self.device), torch.as_tensor(labels, device=self.device)
        if len(points) != len(labels):
            raise ValueError(f"wanted one label per embedding, not {len(labels)} labels of {len(points)} embeddings")
        if self.label_comparison_fn is not EQUALITY:
            return points.float(), labels.float()  # as PML hands them to such a function
        if labels.ndim > 1:
            raise ValueError(f"labels of shape {list(labels.shape)} want a label_comparison_fn; else one number each")
        return points.float(), labels

    def _search(
        self, query: Tensor, query_labels: Tensor, reference: Tensor, reference_labels: Tensor, ref_includes_query: bool
    ) -> dict[str, Any]:
        """Values per query of our metrics, and what PML gives to the metrics of a subclass."""
        same, itself = self.label_comparison_fn, int(ref_includes_query)
        classes, places = torch.unique(query_labels, dim=0, return_inverse=True)
        if same is EQUALITY:
            counts = relevant_counts(classes, reference_labels)
        else:
            counts = torch.stack([same(label[None], reference_labels).sum() for label in classes])
        lone = counts <= same(classes, classes) * itself
        if lone.all():
            logging.getLogger("PML").warning("None of the query labels are in the reference set.")
        relevant = (counts - itself).clamp(min=0)[places].cpu()

        size = len(reference) - itself
        pml_k = min(max(1, self.determine_k(counts, len(reference), ref_includes_query)), size)
        current = set(self.get_curr_metrics())
        wanted = {name: metric for name, metric in self._own.items() if name in current}
        columns = {
            name: metric.columns(int(relevant.max()), pml_k if name in _PMLS else size)
            for name, metric in wanted.items()
        }
        # A subclass's metric may look at neighbors, whether requires_knn() has it or not.
        others = current - wanted.keys() - {"AMI", *CLUSTER_METRICS.values(), *self._clusters_of}
        keep = pml_k if others else 0
        k = max([min(1, size), keep, *columns.values()])
        per_query, distances, indices, _ = values_per_query(
            wanted,
            columns,
            relevant,
            self._tiles(query, k, reference, ref_includes_query),
            lambda rows, near: same(query_labels[rows][:, None], reference_labels[near]).bool() & (near >= 0),
            keep,
        )
        return {
            "per_query": per_query,
            "label_counts": (classes, counts),
            "lone_query_labels": classes[lone],
            "not_lone_query_mask": ~lone[places],
            "knn_labels": reference_labels[indices.to(reference_labels.device)],
            "knn_distances": distances.to(query.device),
        }

    def _tiles(
        self, query: Tensor, k: int, reference: Tensor, ref_includes_query: bool
    ) -> Iterable[tuple[slice, Tensor, Tensor]]:
        if isinstance(self.knn_func, NearestNeighbors):
            return self.knn_func.tiles(query, k, reference, ref_includes_query)
        return [(slice(0, len(query)), *self.knn_func(query, k, reference, ref_includes_query))]

    def _get_accuracy(self, function_dict: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        accuracies = {}
        clusters: dict[int, Tensor] = {}
        for name, function in function_dict.items():
            seen = kwargs
            if name in self._clusters_of:
                count = self._clusters_of[name]
                if count not in clusters:
                    number = count * len(torch.unique(kwargs["query_labels"]))
                    clusters[count] = torch.as_tensor(self.kmeans_func(kwargs["query"], number))
                seen = kwargs | {"cluster_labels": clusters[count]}
            accuracies[name] = self._reduced(name, **seen) if name in self._own else function(**seen)
        return accuracies

    def _reduced(
        self,
        name: str,
        per_query: Mapping[str, Tensor],
        query_labels: Tensor,
        not_lone_query_mask: Tensor,
        label_counts: tuple[Tensor, Tensor],
        **_: Any,
    ) -> float | list[float]:
        values, labels = per_query[name], query_labels.cpu()
        all_count = self._own[name].lone_can_count and self.lone_queries == "miss"
        counted = None if all_count else not_lone_query_mask.cpu()
        if self.return_per_class:
            return class_means(values, labels, counted)[1].tolist() or [math.nan] * len(label_counts[0])
        return mean_of_class_means(values, labels, counted) if self.avg_of_avgs else mean(values, counted)

    def calculate_NMI(self, query_labels: Tensor, cluster_labels: Tensor, **_: Any) -> float:
        """Normalized mutual information of classes and clusters."""
        return nmi(query_labels.cpu(), cluster_labels.cpu())

    def calculate_AMI(self, query_labels: Tensor, cluster_labels: Tensor, **_: Any) -> float:
        """Adjusted mutual information of classes and clusters."""
        return ami(query_labels.cpu(), cluster_labels.cpu())

    def calculate_f1(self, query_labels: Tensor, cluster_labels: Tensor, **_: Any) -> float:
        """Pairwise F1 of the clusters."""
        return pairwise_f1(query_labels.cpu(), cluster_labels.cpu())

    def calculate_purity(self, query_labels: Tensor, cluster_labels: Tensor, **_: Any) -> float:
        """Purity of the clusters."""
        return purity(query_labels.cpu(), cluster_labels.cpu())


def retrieval_metrics(accuracies: Mapping[str, Any]) -> dict[str, float]:
    """Accuracies under the names of ``metrics.json``.

    Args:
        accuracies: what :meth:`RetrievalAccuracyCalculator.get_accuracy` returns, averaged over queries.

    Returns:
        ``recall_at_K``, ``precision_at_K``, ``r_precision``, ``map_at_r``, ``nmi``, ``f1``, ``purity``, ``nmi_C``, ...:
        those that were computed, as fractions.
    """
    order = ["r_precision", "mean_average_precision_at_r", "NMI", "f1", "purity"]
    groups = [
        sorted((name for name in accuracies if name.startswith(prefix)), key=_number)
        for prefix in ("recall_at_", "precision_at_")
    ]
    others = [name for short in CLUSTER_METRICS for name in accuracies if name.rpartition("_")[0] == short]
    names = [*groups[0], *groups[1], *(name for name in order if name in accuracies), *sorted(others, key=_number)]
    return {_SHORT_NAMES.get(name, name): float(accuracies[name]) for name in names}


def _number(name: str) -> int:
    return int(name.rpartition("_")[2])
