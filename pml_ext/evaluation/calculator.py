"""PML's accuracy calculator with more metrics, of this package and of plugins."""

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

from ..errors import PluginError, unknown
from ..pml import AccuracyCalculator, LpDistance
from ..relations import DifferentGroups, Relation
from .arguments import Clusterings, MetricArguments
from .blank import explained, reason_of_neighbors
from .clustering import kmeans
from .inputs import Inputs, with_groups
from .metrics import Metric, class_means, mean, mean_of_class_means, metrics_of
from .neighbors import default_neighbors
from .of_plugins import PREFIX, needs_clusters, plugin_metrics, value_of_plugin
from .pairs import pairs_of_sides
from .reranking import Reranking, check_reranking
from .retrieval import MetricOfNeighbors, MetricSearch, Neighbors, QueryClasses, Sides, query_classes
from .verification import verify


@dataclass(frozen=True)
class Evaluation:
    """Accuracies of queries, and their nearest neighbors; all tensors are on the CPU."""

    accuracies: dict[str, Any]  # by name of the metric; NaN for one that is blank
    counted: dict[str, int]  # number of queries that a metric of neighbors or clusters is over, by its name
    blank: dict[str, str]  # why a metric cannot be given, by its name
    relevant: Tensor  # gallery items of each query's class, without the query itself, [Q], int64; [0] without a search
    distances: Tensor  # to the nearest neighbors, [Q, keep], or fewer columns if the gallery is smaller
    indices: Tensor  # rows of these neighbors in the gallery, [Q, keep]
    right: Tensor  # whether each neighbor has the query's class, or is positive under a relation, [Q, keep]


class RetrievalAccuracyCalculator(AccuracyCalculator):  # type: ignore[misc]
    """PML's calculator with Recall@K and precision@K for any K, and more cluster metrics.

    PML's metrics keep their names and meaning and use ``k`` neighbors. In a small gallery, missing neighbors count as
    wrong. Metrics of plugins are available by name. Labels are compared as integers, not as float32.

    A meaningless metric, for example without any right answer, is NaN with a reason. As in PML, ``exclude=("NMI",
    "AMI")`` turns clustering off, except for metrics that ``include`` names.

    Args:
        include: names of the metrics to compute; empty for all.
        exclude: names of metrics to leave out.
        avg_of_avgs: average classes instead of queries.
        return_per_class: return a list with one mean per class.
        k: neighbors of PML's metrics: None for the gallery, a number, or ``"max_bin_count"``, the size of the largest
            class.
        label_comparison_fn: as in PML. Clustering metrics support only equality.
        device: for the computation; by default a GPU if available.
        knn_func: a neighbor search as in PML, preferably a :class:`NearestNeighbors`; by default exact and Euclidean.
        kmeans_func: a clustering as in PML; by default k-means with a fixed seed.
        recall_at: values of K for ``recall_at_K``.
        precision_at: values of K for ``precision_at_K``; ``precision_at_1`` is PML's.
        clusters_per_class: numbers of k-means clusters per class; 1 gives ``NMI``, ``f1`` and ``purity``, any other c
            ``nmi_c``, ``f1_c`` and ``purity_c``.
        relation: replaces equality of labels: a neighbor is right if it is positive to the query. A
            :class:`pml_ext.Hierarchy` adds ``recall_at_K_level_L`` for each level L other than its own.
        ndcg_at: values of K for ``ndcg_at_K``. Gains are the relation's weights, or else 1 for right neighbors.
        verification: adds the metrics of pairs (:mod:`pml_ext.evaluation.verification`): a number of pairs of each
            kind, drawn with a fixed seed, or ``"all"``.
        reranking: a :class:`pml_ext.evaluation.QueryExpansion` or :class:`pml_ext.evaluation.KReciprocal`, for
            normalized embeddings.
        lone_queries: queries without another item of their class: ``"drop"`` ignores them, as PML does; ``"miss"``
            counts them as misses in ``recall_at_K``.

    Raises:
        ValueError: a K below 1, an unknown metric.
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
        lone_queries: Literal["miss", "drop"] = "drop",
        relation: Relation | None = None,
        ndcg_at: Iterable[int] = (),
        verification: int | Literal["all"] | None = None,
        reranking: Reranking | None = None,
    ) -> None:
        if relation is not None and label_comparison_fn is not None:
            raise ValueError("relation and label_comparison_fn both say which neighbors are right; leave out one")
        if isinstance(relation, DifferentGroups):
            raise ValueError(
                "groups are not a relation here: leave out relation, and type "
                "evaluate(points, classes, query_groups=groups)"
            )
        if lone_queries not in ("miss", "drop"):
            raise ValueError(f"lone_queries must be 'miss' or 'drop', not {lone_queries!r}")
        if verification is not None and (relation is not None or label_comparison_fn is not None):
            raise ValueError(
                "verification compares equal classes; with a relation or label_comparison_fn, list the pairs: "
                "pml_ext.evaluation.verify(embeddings, listed_pairs(...))"
            )
        if reranking is not None:
            check_reranking(reranking, knn_func)
        self.lone_queries = lone_queries
        self.relation = relation
        self.verification = verification
        self.reranking = reranking
        include = tuple(include)
        self._named = frozenset(include)

        levels: Iterable[int] = ()
        if relation is not None:
            levels = relation.levels
            label_comparison_fn = relation.positive
            if not include:  # clusters are compared with classes, which a relation's labels are not
                exclude = [*exclude, *super().requires_clustering()]
                clusters_per_class = ()

        self._metrics: dict[str, Metric] = {}  # the table's metrics that no subclass overrides, by PML's names
        table = metrics_of(recall_at, precision_at, clusters_per_class, ndcg_at, levels, verification is not None)
        for metric in table:
            method = PREFIX + metric.accuracy
            if getattr(type(self), method, None) is getattr(AccuracyCalculator, method, None):
                self._metrics[metric.accuracy] = metric
            if not hasattr(self, method):
                setattr(self, method, functools.partial(self._value, metric))

        self._of_plugins = plugin_metrics(self)
        for name, function in self._of_plugins.items():
            setattr(self, PREFIX + name, functools.partial(value_of_plugin, name, function))

        super().__init__(
            include=include,
            exclude=tuple(exclude),
            avg_of_avgs=avg_of_avgs,
            return_per_class=return_per_class,
            k=k,
            label_comparison_fn=label_comparison_fn,
            device=device,
            knn_func=knn_func or default_neighbors(),
            kmeans_func=kmeans_func or kmeans,
        )

    def requires_knn(self) -> list[str]:
        """Names of the metrics that need neighbors."""
        ours = [name for name, metric in self._metrics.items() if not metric.clusters and not metric.of_pairs]
        return [*super().requires_knn(), "mean_reciprocal_rank", *ours, *self._of_plugins]

    def requires_clustering(self) -> list[str]:
        """Names of the metrics that need clusters."""
        ours = [name for name, metric in self._metrics.items() if metric.clusters]
        of_plugins = [name for name, function in self._of_plugins.items() if needs_clusters(function)]
        return [*super().requires_clustering(), *ours, *of_plugins]

    def get_function_dict(self, include: Iterable[str] = (), exclude: Iterable[str] = ()) -> dict[str, Any]:
        """The functions of all metrics to compute, by name."""
        chosen: dict[str, Any] = super().get_function_dict(include, exclude)
        for name in chosen:
            if name in self._metrics:
                chosen[name] = functools.partial(self._value, self._metrics[name])

        clustering = set(super().requires_clustering())
        all_are_excluded = not clustering.isdisjoint(exclude) and clustering.isdisjoint(chosen)
        if all_are_excluded:
            named = self._named.union(include)
            for name, metric in self._metrics.items():
                if metric.clusters == 1 and name not in named:
                    chosen.pop(name, None)
        return chosen

    def check_primary_metrics(self, include: Iterable[str] = (), exclude: Iterable[str] = ()) -> None:
        """Raise ValueError for an unknown metric."""
        for name in (*include, *exclude):
            if name not in self.original_function_dict:
                raise ValueError(unknown("metric", name, self.original_function_dict))

    def get_accuracy(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """``{name: value}``, each a fraction or a list per class; see :meth:`evaluate`.

        A meaningless metric is NaN, with a warning.
        """
        result = self.evaluate(*args, **kwargs)
        for text in explained(result.blank):
            warnings.warn(text, stacklevel=2)
        return result.accuracies

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
        on_failure: Callable[[str], None] | None = None,
        query_groups: Any = None,
        reference_groups: Any = None,
    ) -> Evaluation:
        """Accuracies and nearest neighbors, searched in tiles of 8 million neighbors.

        Args:
            query: embeddings of the queries, ``[N, D]``, tensor or array.
            query_labels: integers, ``[N]`` or ``[N, 1]``, or labels for the relation.
            reference: embeddings of the gallery, ``[R, D]``; None for the queries themselves.
            reference_labels: labels of the gallery, ``[R]``.
            ref_includes_query: whether the gallery begins with the queries; each query then skips itself.
            include: names of the metrics to compute; empty for all.
            exclude: names of metrics to leave out.
            keep: number of nearest neighbors to return for each query.
            on_failure: called with a message if a plugin's metric fails.
            query_groups: group of each query, integers or texts, ``[N]``, left out of its gallery. Negative integers
                and "" mean no group.
            reference_groups: groups of the gallery, ``[R]``. A query whose right items are all in its own group is
                lone.

        Raises:
            ValueError: an unknown metric, wrong shapes, NaN, a gallery that contradicts ``ref_includes_query``, or
                groups that leave no gallery.
            PluginError: a plugin's metric failed, without ``on_failure``.
        """
        self.check_primary_metrics(include, exclude)
        self.curr_function_dict = self.get_function_dict(tuple(include), tuple(exclude))
        inputs = Inputs(self.device, self.relation, self.label_comparison_fn)
        sides = inputs.sides(query, query_labels, reference, reference_labels, ref_includes_query)
        if query_groups is not None or reference_groups is not None:
            sides = with_groups(sides, query_groups, reference_groups)
            self._check_known_groups()
        arguments = MetricArguments(
            query=sides.query,
            query_labels=sides.query_labels,
            reference=sides.reference,
            reference_labels=sides.reference_labels,
            ref_includes_query=sides.ref_includes_query,
            label_comparison_fn=self.label_comparison_fn,
        )

        neighbors = Neighbors.empty(len(sides.query), 0)
        relevant = torch.empty(0, dtype=torch.int64)
        no_neighbors = ""  # the reason why metrics of neighbors are blank
        if keep or not set(self.requires_knn()).isdisjoint(self.curr_function_dict):
            classes = self._classes(sides)
            neighbors = self._search(sides, classes, keep, arguments)
            relevant = classes.relevant
            no_neighbors = reason_of_neighbors(sides, classes)

        if any(name in self._metrics and self._metrics[name].of_pairs for name in self.curr_function_dict):
            arguments.pair_values = self._verify(sides)

        accuracies: dict[str, Any] = {}
        counted: dict[str, int] = {}
        blank: dict[str, str] = {}
        clusterings = Clusterings(sides, self.kmeans_func)
        need_clusters = self.requires_clustering()
        for name, function in self.curr_function_dict.items():
            metric = self._metrics.get(name)
            reason = ""
            arguments.cluster_labels = None
            if name in need_clusters:
                per_class = 1 if metric is None else metric.clusters
                reason = clusterings.reason(per_class)
                if not reason:
                    arguments.cluster_labels = clusterings.of(per_class)
                    counted[name] = len(sides.query)
            elif metric is not None and not metric.of_pairs:
                if self.relation is None or not (metric.graded or metric.level):
                    reason = no_neighbors
                if not reason:
                    counted[name] = self._number_of_queries(metric, arguments)
            if reason:
                blank[name] = reason
                accuracies[name] = self._blank_value(metric, arguments)
                continue
            try:
                accuracies[name] = function(**arguments.keywords())
            except PluginError as error:
                if on_failure is None:
                    raise
                on_failure(f"{error}; the metric is left out")

        kept = neighbors.nearest(keep)
        return Evaluation(accuracies, counted, blank, relevant, kept.distances, kept.indices, kept.right)

    def _check_known_groups(self) -> None:
        for name, function in self.curr_function_dict.items():
            if name not in self._metrics and name in self.requires_knn():
                original = self._of_plugins.get(name, function)
                if "label_counts" in inspect.signature(original).parameters:
                    raise ValueError(f"{name} needs label_counts, which ignore groups; exclude it, or leave out groups")

    def _classes(self, sides: Sides) -> QueryClasses:
        classes = query_classes(sides, self.label_comparison_fn, self.relation)
        if classes.lone_query.all():
            logging.getLogger("PML").warning("None of the query labels are in the reference set.")
        return classes

    def _verify(self, sides: Sides) -> dict[str, float]:
        most = None if self.verification == "all" else self.verification
        distance = getattr(self.knn_func, "distance", None) or LpDistance(normalize_embeddings=False)
        pairs = pairs_of_sides(sides, most)  # type: ignore[arg-type]
        references = None if sides.reference is sides.query else sides.reference
        return verify(sides.query, pairs, references, distance=distance)

    def _number_of_queries(self, metric: Metric, arguments: MetricArguments) -> int:
        counts = self._counted(metric, arguments.not_lone_query_mask, arguments.not_lone_at_level or {})
        return len(arguments.query) if counts is None else int(counts.sum())

    def _blank_value(self, metric: Metric | None, arguments: MetricArguments) -> float | list[float]:
        is_per_class = self.return_per_class and metric is not None and not metric.clusters
        if is_per_class and arguments.label_counts is not None:
            return [math.nan] * len(arguments.label_counts[0])
        return math.nan

    def _search(self, sides: Sides, classes: QueryClasses, keep: int, arguments: MetricArguments) -> Neighbors:
        pml_k = self.determine_k(classes.counts, len(sides.reference), sides.ref_includes_query)
        pml_k = min(max(1, pml_k), sides.size)

        metrics = []
        for name in self.curr_function_dict:
            metric = self._metrics.get(name)
            if metric is not None and not metric.clusters and not metric.of_pairs:
                is_of_pml = hasattr(AccuracyCalculator, PREFIX + name)
                most_columns = pml_k if is_of_pml else sides.size
                columns = metric.columns(int(classes.relevant.max()), most_columns)
                metrics.append(MetricOfNeighbors(metric, columns, len(sides.query)))

        # A subclass's metric may use neighbors even if requires_knn() does not list it.
        others = sorted(self.curr_function_dict.keys() - self._metrics.keys())
        pml_columns = pml_k if others else 0

        search = MetricSearch(
            sides=sides,
            classes=classes,
            compare=self.label_comparison_fn,
            relation=self.relation,
            metrics=metrics,
            keep=max(keep, pml_columns),
            reranking=self.reranking,
        )
        neighbors = search.run(self.knn_func)

        seen_by_others = neighbors.nearest(pml_columns)
        incomplete = int((seen_by_others.indices < 0).any(1).sum())
        if incomplete:
            names = ", ".join(others)
            raise ValueError(
                f"the search found fewer than {pml_columns} neighbors of {incomplete} of {len(sides.query)} queries, "
                f"and {names} cannot count the missing ones as wrong; use an exact search, or exclude them"
            )
        arguments.per_query = {each.metric.accuracy: each.values for each in metrics}
        arguments.label_counts = (classes.classes, classes.counts)
        arguments.lone_query_labels = classes.classes[classes.lone]
        arguments.not_lone_query_mask = ~classes.lone_query
        if self.lone_queries == "drop":
            arguments.not_lone_at_level = search.not_lone_at_levels()
        arguments.knn_labels = sides.reference_labels[seen_by_others.indices.to(sides.reference_labels.device)]
        arguments.knn_distances = seen_by_others.distances.to(sides.query.device)
        return neighbors

    def _value(
        self,
        metric: Metric,
        query_labels: Tensor,
        per_query: Mapping[str, Tensor] = {},  # never modified
        not_lone_query_mask: Tensor | None = None,
        not_lone_at_level: Mapping[int, Tensor] = {},  # never modified
        label_counts: Any = ((), ()),
        cluster_labels: Any = None,
        pair_values: Mapping[str, float] = {},  # never modified
        **_: Any,
    ) -> float | list[float]:
        labels = query_labels.cpu()
        if metric.clusters:
            return float(metric.function(labels, torch.as_tensor(cluster_labels).cpu()))
        if metric.of_pairs:
            return float(metric.function(pair_values, None))

        values = per_query[metric.accuracy]
        counted = self._counted(metric, not_lone_query_mask, not_lone_at_level)
        if self.return_per_class:
            _classes, means = class_means(values, labels, counted)
            return means.tolist() or [math.nan] * len(label_counts[0])
        if self.avg_of_avgs:
            return mean_of_class_means(values, labels, counted)
        return mean(values, counted)

    def _counted(
        self, metric: Metric, not_lone_query_mask: Tensor | None, not_lone_at_level: Mapping[int, Tensor]
    ) -> Tensor | None:
        lone_queries_miss = metric.lone_queries and self.lone_queries == "miss"
        if not_lone_query_mask is None or lone_queries_miss:
            return None
        return not_lone_at_level.get(metric.level, not_lone_query_mask).cpu()
