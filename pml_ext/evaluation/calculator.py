"""PML's accuracy calculator with additional metrics of this package and of plugins."""

from __future__ import annotations

import functools
import inspect
import logging
import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from .. import registry
from ..errors import PluginError, PluginWarning, one_line, unknown
from ..pairwise import Hierarchy, NegativesOnly, Relation
from ..pml import EQUALITY, AccuracyCalculator
from .clustering import kmeans
from .metrics import Metric, class_means, mean, mean_of_class_means, metrics_of, relevant_counts
from .neighbors import NearestNeighbors, default_neighbors

PREFIX = "calculate_"


@dataclass(frozen=True)
class Evaluation:
    """Accuracies of queries, and their nearest neighbors; all tensors are on the CPU."""

    accuracies: dict[str, Any]  # by name of the metric
    relevant: Tensor  # number of gallery items of each query's class, without the query itself, [Q], int64
    distances: Tensor  # to the nearest neighbors, [Q, keep], or fewer columns if the gallery is smaller
    indices: Tensor  # rows of these neighbors in the gallery
    right: Tensor  # whether each neighbor has the query's class, or is positive under a relation


class RetrievalAccuracyCalculator(AccuracyCalculator):  # type: ignore[misc]
    r"""PML's calculator with Recall@K and precision@K for any K, and pairwise F1 and purity of k-means clusters.

    ``recall_at_K`` is the share of queries with an image of their class among the K nearest. ``precision_at_K`` is the
    mean share of such images among the K nearest (:mod:`pml_ext.evaluation.metrics`). ``f1`` and ``purity`` evaluate
    k-means clusters, by default one per class (:mod:`pml_ext.evaluation.clustering`). Metrics of plugins
    (:func:`pml_ext.registry.hooks.pml_ext_metrics`) are available by name.

    PML's metrics keep their names and meaning and use ``k`` neighbors. The new metrics use K neighbors. If the gallery
    has fewer than K items, missing neighbors count as wrong. Labels are compared as integers (PML's float32 merges
    16777216 and 16777217). One search serves all metrics.

    ``exclude=("NMI", "AMI")`` turns clustering off, as in PML: it also excludes ``f1`` and ``purity``, unless
    ``include`` names them. A subclass adds metrics as PML documents.

    Args:
        include: names of the metrics to compute; empty for all.
        exclude: names of metrics to leave out.
        avg_of_avgs: average per class first, then over classes, as in PML.
        return_per_class: return a list with one mean per class, as in PML.
        k: number of neighbors that PML's metrics use: None for the whole gallery, a number, or ``"max_bin_count"``
            for the size of the largest class.
        label_comparison_fn: as in PML. Clustering metrics support only equality.
        device: device for computation; by default a GPU if available.
        knn_func: a neighbor search as in PML; by default an exact Euclidean search, by faiss if it is installed, else
            by torch. A :class:`NearestNeighbors` searches in tiles of queries.
        kmeans_func: a clustering as in PML; by default k-means with a fixed seed, by faiss or else scikit-learn.
        recall_at: values of K for ``recall_at_K``.
        precision_at: values of K for ``precision_at_K``; ``precision_at_1`` is PML's.
        clusters_per_class: numbers of k-means clusters per class of the queries; 1 gives ``NMI``, ``f1`` and
            ``purity``, any other c gives ``nmi_c``, ``f1_c`` and ``purity_c``.
        relation: replaces equality of labels: a neighbor is right if it is positive to the query. Labels may have any
            form that the relation accepts. A :class:`pml_ext.Hierarchy` adds ``recall_at_K_level_L`` for each level L
            other than its own.
        ndcg_at: values of K for ``ndcg_at_K``. Gains are the relation's weights, or else 1 for right neighbors.
        lone_queries: ``"miss"`` counts queries without any other item of their class as misses in ``recall_at_K``;
            ``"drop"`` leaves them out, as PML's own metrics do.

    Raises:
        ValueError: a K below 1, an unknown metric (the text suggests the closest names) or unknown ``lone_queries``.
        NotImplementedError: a ``label_comparison_fn`` together with a metric that needs clusters.

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
        relation: Relation | None = None,
        ndcg_at: Iterable[int] = (),
    ) -> None:
        if relation is not None and label_comparison_fn is not None:
            raise ValueError("relation and label_comparison_fn both say which neighbors are right; leave out one")
        if lone_queries not in ("miss", "drop"):
            raise ValueError(f"lone_queries must be 'miss' or 'drop', not {lone_queries!r}")
        self.lone_queries = lone_queries
        include = tuple(include)
        self._named = frozenset(include)
        self._own: dict[str, Metric] = {}  # metrics that no subclass overrides
        self.relation = relation
        levels = () if relation is None else relation.levels
        if relation is not None:
            label_comparison_fn = relation.positive
            exclude = [*exclude, *(() if include else super().requires_clustering())]
            clusters_per_class = () if not include else clusters_per_class
        table = metrics_of(recall_at, precision_at, clusters_per_class, ndcg_at, levels)
        for metric in table:
            method = PREFIX + metric.accuracy
            if getattr(type(self), method, None) is getattr(AccuracyCalculator, method, None):
                self._own[metric.accuracy] = metric
            if not hasattr(self, method):
                setattr(self, method, functools.partial(self._value, metric))
        self._of_plugins = plugin_metrics(self)
        for name, function in self._of_plugins.items():
            setattr(self, PREFIX + name, function)
        searches = knn_func or default_neighbors(), kmeans_func or kmeans
        means = avg_of_avgs, return_per_class
        super().__init__(include, tuple(exclude), *means, k, label_comparison_fn, device, *searches)

    def requires_knn(self) -> list[str]:
        """Return the names of the metrics that need neighbors."""
        own = [name for name, metric in self._own.items() if not metric.clusters]
        return [*super().requires_knn(), *own, "mean_reciprocal_rank", *self._of_plugins]

    def requires_clustering(self) -> list[str]:
        """Return the names of the metrics that need clusters."""
        own = [name for name, metric in self._own.items() if metric.clusters]
        others = [name for name, function in self._of_plugins.items() if needs_clusters(function)]
        return [*super().requires_clustering(), *own, *others]

    def get_function_dict(self, include: Iterable[str] = (), exclude: Iterable[str] = ()) -> dict[str, Any]:
        """Return the metrics to compute; excluding all of PML's clustering metrics excludes ours as well."""
        chosen: dict[str, Any] = super().get_function_dict(include, exclude)
        clustering = set(super().requires_clustering())
        if clustering & set(exclude) and not clustering & set(chosen):
            kept = self._named.union(include)
            ours = {name for name, metric in self._own.items() if metric.clusters == 1}
            return {name: function for name, function in chosen.items() if name in kept or name not in ours}
        return chosen

    def check_primary_metrics(self, include: Iterable[str] = (), exclude: Iterable[str] = ()) -> None:
        """Raise ValueError for an unknown metric."""
        for name in (*include, *exclude):
            if name not in self.original_function_dict:
                raise ValueError(unknown("metric", name, self.original_function_dict))

    def get_accuracy(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return ``{name: value}``, a fraction or a list per class; :meth:`evaluate` documents the arguments."""
        return self.evaluate(*args, **kwargs).accuracies

    def evaluate(
        self,
        query: Any,
        query_labels: Any,
        reference: Any = None,
        reference_labels: Any = None,
        ref_includes_query: bool = False,
        include: Iterable[str] = (),
        exclude: Iterable[str] = (),
        keep: int = 0,
    ) -> Evaluation:
        """Return accuracies and nearest neighbors of queries, searched in tiles of about 8 million neighbors.

        Args:
            query: embeddings of the queries, ``[N, D]``, tensor or array.
            query_labels: integers, ``[N]`` or ``[N, 1]``, or labels in a form that the relation accepts.
            reference: embeddings of the gallery, ``[R, D]``; None for the queries themselves.
            reference_labels: labels of the gallery, ``[R]``.
            ref_includes_query: whether the gallery's first N rows are the queries; each query then skips its own row.
            include: names of the metrics to compute; empty for all of the calculator's metrics.
            exclude: names of metrics to leave out.
            keep: number of nearest neighbors to return for each query.
        """
        self.check_primary_metrics(include, exclude)
        self.curr_function_dict = self.get_function_dict(tuple(include), tuple(exclude))
        query, query_labels = self._points("query", query, query_labels)
        if reference is None:
            reference, reference_labels, ref_includes_query = query, query_labels, True
        else:
            reference, reference_labels = self._points("reference", reference, reference_labels)
            first, first_labels = reference[: len(query)], reference_labels[: len(query)]
            if ref_includes_query and not (torch.equal(query_labels, first_labels) and torch.allclose(query, first)):
                raise ValueError(
                    f"with ref_includes_query, a gallery must begin with all {len(query)} queries and their labels"
                )
        seen = {"query": query, "query_labels": query_labels, "label_comparison_fn": self.label_comparison_fn}
        seen |= {"reference": reference, "reference_labels": reference_labels, "ref_includes_query": ref_includes_query}
        kept, relevant = [torch.empty(len(query), 0, dtype=kind) for kind in _KINDS], torch.empty(0, dtype=torch.int64)
        if keep or set(self.requires_knn()).intersection(self.get_curr_metrics()):
            more, relevant, kept = self._search(seen, keep)
            seen |= more
        accuracies: dict[str, Any] = {}
        clusters: dict[int, Tensor] = {}  # by number of clusters per class
        for name, function in self.curr_function_dict.items():
            own, arguments = self._own.get(name), seen
            if name in self.requires_clustering():
                count = own.clusters if own else 1
                if count not in clusters:
                    number = count * len(torch.unique(query_labels, dim=0))
                    clusters[count] = torch.as_tensor(self.kmeans_func(query, number))
                arguments = {**seen, "cluster_labels": clusters[count]}
            try:
                accuracies[name] = self._value(own, **arguments) if own else function(**arguments)
            except Exception as error:
                if name not in self._of_plugins:
                    raise
                raise PluginError(f"the metric {name!r} of a plugin failed: {one_line(error)}") from error
        return Evaluation(accuracies, relevant, *(each[:, :keep] for each in kept))

    def _points(self, name: str, points: Any, labels: Any) -> tuple[Tensor, Tensor]:
        """Return embeddings in float32 and their labels; ValueError if they are not finite or do not fit."""
        points = torch.as_tensor(points, device=self.device).detach().float()
        bad_rows = int((~points.isfinite().all(-1)).sum())
        if bad_rows:
            raise ValueError(
                f"{bad_rows} of {len(points)} rows of {name} have NaN or infinite values; wanted finite embeddings"
            )
        if self.relation is not None:
            if self.relation.places is not None or isinstance(self.relation, NegativesOnly):
                labels = _without_column(labels)
            labels = self.relation.tensor(labels, len(points), self.device)
            self.relation.matrix(labels[:1], labels[:1])  # ValueError for weights of a wrong shape
            return points, labels
        labels = torch.as_tensor(labels, device=self.device)
        if len(points) != len(labels):
            raise ValueError(f"wanted one label per embedding, not {len(labels)} labels for {len(points)} embeddings")
        if self.label_comparison_fn is not EQUALITY:
            labels = labels.float()  # PML passes float labels to a label_comparison_fn
            if self.label_comparison_fn(labels[:1], labels[:1]).ndim > 1:  # a function of single labels
                labels = _without_column(labels)
            if labels.ndim > 1 and self.label_comparison_fn(labels[:1], labels[:1]).ndim > 1:
                raise ValueError(
                    "label_comparison_fn must return one boolean for each pair; for labels of shape "
                    f"{list(labels.shape)} it compares each column: type (x == y).all(-1), for example"
                )
            return points, labels
        labels = _without_column(labels)
        if labels.ndim > 1:
            raise ValueError(f"labels of shape {list(labels.shape)} need a label_comparison_fn; default: shape [N]")
        return points, labels

    def _search(self, seen: Mapping[str, Any], keep: int) -> tuple[dict[str, Any], Tensor, list[Tensor]]:
        """Search once; return arguments for all metrics, the relevant counts, and the neighbors to keep."""
        query, query_labels, reference, reference_labels = map(seen.__getitem__, _SIDES)
        same, itself = self.label_comparison_fn, int(seen["ref_includes_query"])
        classes, places = torch.unique(query_labels, dim=0, return_inverse=True)
        if same is EQUALITY:
            counts = relevant_counts(classes, reference_labels)
        else:
            counts = torch.stack([same(label[None], reference_labels).sum() for label in classes])
        own = same(classes, classes) * itself
        lone = counts <= own
        if lone.all():
            logging.getLogger("PML").warning("None of the query labels are in the reference set.")
        relevant = (counts - (itself if self.relation is None else own)).clamp(min=0)[places].cpu()

        size = len(reference) - itself
        pml_k = min(max(1, self.determine_k(counts, len(reference), bool(itself))), size)
        current = set(self.get_curr_metrics())
        wanted = {name: metric for name, metric in self._own.items() if name in current and not metric.clusters}
        columns = {}
        for name, metric in wanted.items():
            of_pml = hasattr(AccuracyCalculator, PREFIX + name)
            columns[name] = metric.columns(int(relevant.max()), pml_k if of_pml else size)
        # a subclass's metric may use neighbors even if requires_knn() does not list it
        others = pml_k if current - self._own.keys() else 0
        values = {name: torch.empty(len(query), dtype=torch.float64) for name in wanted}
        kept = [torch.empty(len(query), min(max(keep, others), size), dtype=kind) for kind in _KINDS]
        most = max([min(1, size), keep, others, *columns.values()])
        ideal = {
            name: self._greatest_gains(classes, reference_labels, counts, columns[name], bool(itself))[places].cpu()
            for name, metric in wanted.items()
            if metric.graded
        }
        levels = {metric.level for metric in wanted.values() if metric.level}
        trees = {level: self.relation.at(level) for level in levels} if isinstance(self.relation, Hierarchy) else {}
        if isinstance(self.knn_func, NearestNeighbors):
            width = query_labels[:1].numel()
            rows = None if width <= 1 else max(1, (1 << 23) // (max(1, most) * width))
            tiles: Iterable[Any] = self.knn_func.tiles(query, most, reference, bool(itself), rows)
        else:
            tiles = [(slice(0, len(query)), *self.knn_func(query, most, reference, bool(itself)))]
        for rows, distances, indices in tiles:
            ends, there = (query_labels[rows][:, None], reference_labels[indices]), indices >= 0
            right = (same(*ends).bool() & there).cpu()  # metrics are float64, which some devices lack
            gains = right
            if ideal and self.relation is not None:
                gains = (self.relation.weights(*ends).nan_to_num() * there).cpu()
            for all_kept, tile in zip(kept, (distances, indices, right), strict=True):
                all_kept[rows] = tile[:, : all_kept.shape[1]].cpu()
            of_level = {level: (tree.positive(*ends) & there).cpu() for level, tree in trees.items()}
            for name, metric in wanted.items():
                seen_by = gains if metric.graded else of_level.get(metric.level, right)
                best = ideal[name][rows] if metric.graded else relevant[rows]
                values[name][rows] = metric.function(seen_by[:, : columns[name]], best)
        without = int((kept[1][:, :others] < 0).any(1).sum())
        if without:
            names = ", ".join(sorted(current - self._own.keys()))
            raise ValueError(
                f"the search found fewer than {others} neighbors of {without} of {len(query)} queries, and {names} "
                "cannot count the missing ones as wrong; take an exact search, or exclude them"
            )
        for_others = {
            "per_query": values,
            "label_counts": (classes, counts),
            "lone_query_labels": classes[lone],
            "not_lone_query_mask": ~lone[places],
            "knn_labels": reference_labels[kept[1][:, :others].to(reference_labels.device)],
            "knn_distances": kept[0][:, :others].to(query.device),
        }
        return for_others, relevant, kept

    def _greatest_gains(
        self, classes: Tensor, reference_labels: Tensor, counts: Tensor, k: int, itself: bool
    ) -> Tensor:
        """Return the k greatest gains in the gallery for a query of each class, without the query, ``[C, k]``."""
        if self.relation is None:
            found = (counts - int(itself)).clamp(min=0)
            return (torch.arange(k, device=found.device) < found[:, None]).to(torch.float64)
        tops = []
        for part in torch.split(classes, 256):
            weights = self.relation.matrix(part, reference_labels).nan_to_num()
            top = weights.topk(min(k + itself, weights.shape[1]), dim=1).values
            if itself:
                own = top == self.relation.weights(part, part).nan_to_num()[:, None]
                own &= own.cumsum(1) == 1
                own[:, -1] |= ~own.any(1)
                top = top[~own].view(len(top), -1)
            tops.append(top.to("cpu", torch.float64))
        return torch.cat(tops).to(classes.device)

    def _value(
        self,
        metric: Metric,
        query_labels: Tensor,
        per_query: Mapping[str, Tensor] = {},  # never modified
        not_lone_query_mask: Tensor | None = None,
        label_counts: Any = ((), ()),
        cluster_labels: Any = None,
        **_: Any,
    ) -> float | list[float]:
        labels = query_labels.cpu()
        if metric.clusters:
            return float(metric.function(labels, torch.as_tensor(cluster_labels).cpu()))
        values = per_query[metric.accuracy]
        all_count = not_lone_query_mask is None or (metric.lone_queries and self.lone_queries == "miss")
        counted = None if all_count else not_lone_query_mask.cpu()  # type: ignore[union-attr]
        if self.return_per_class:
            return class_means(values, labels, counted)[1].tolist() or [math.nan] * len(label_counts[0])
        return mean_of_class_means(values, labels, counted) if self.avg_of_avgs else mean(values, counted)


def _without_column(labels: Any) -> Any:
    """Return labels ``[N, 1]``, as PML's testers give them, as ``[N]``; other labels unchanged."""
    return labels[:, 0] if getattr(labels, "ndim", 0) == 2 and labels.shape[1] == 1 else labels


_SIDES = ("query", "query_labels", "reference", "reference_labels")
_KINDS = (torch.float32, torch.int64, torch.bool)  # dtypes of distances, of indices and of the mask of right neighbors


def plugin_metrics(calculator: Any = None) -> dict[str, Callable[..., Any]]:
    """Return the metrics of plugins by name; skip names that the calculator already uses, with a warning."""
    taken = {metric.name for metric in metrics_of()}
    metrics = {}
    for name, function in registry.factories("metric").items():
        if name in taken or hasattr(calculator or RetrievalAccuracyCalculator, PREFIX + name):
            text = f"the metric {name!r} of a plugin is left out: the name is taken"
            warnings.warn(text, PluginWarning, stacklevel=3)
        else:
            metrics[name] = function
    return metrics


def needs_clusters(metric: Callable[..., Any]) -> bool:
    """Return whether a plugin's metric takes ``cluster_labels``."""
    return "cluster_labels" in inspect.signature(metric).parameters
