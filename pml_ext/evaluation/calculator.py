"""Retrieval and clustering metrics in PML's calculator."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import torch
from pytorch_metric_learning.utils import common_functions as c_f
from pytorch_metric_learning.utils.accuracy_calculator import (
    EQUALITY,
    AccuracyCalculator,
    maybe_get_avg_of_avgs,
    nan_accuracy,
    precision_at_k,
)
from torch import Tensor

from .. import registry
from .clustering import kmeans, pairwise_f1, purity
from .neighbours import default_neighbours

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

    PML's metrics keep their names and meaning; with ``k`` set, they see ``k`` neighbours, while the new ones see as
    many as their K asks for. A gallery that is smaller than K counts what is missing as wrong. Labels are compared as
    integers (PML's float32 merges 16777216 and 16777217).

    What a PML user types does what it does in PML. ``exclude=("NMI", "AMI")`` ends clustering: ``f1`` and ``purity``
    go with the two, unless ``include`` names them, so that no k-means is run and a ``label_comparison_fn`` may be
    given. Metrics of other numbers of clusters, which ``clusters_per_class`` asks for by itself, stay. A subclass adds
    metrics as PML documents it: a method ``calculate_NAME``, whose name ``requires_knn()`` or
    ``requires_clustering()`` has; it gets the neighbours that PML would give it, and takes the place of a metric of the
    same name here.

    Args:
        include: names of metrics to compute; all, if empty.
        exclude: names of metrics to leave out.
        avg_of_avgs: the mean over classes of their means, instead of the mean over queries.
        return_per_class: a list with one value per class, instead of the mean over queries.
        k: how many neighbours PML's metrics see: a number, ``"max_bin_count"``, or None for the whole gallery.
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
        self._largest: dict[str, int] = {}  # the K of every metric that this class adds
        for names, ks, function in (
            ("recall_at", recall_at, self._recall),
            ("precision_at", precision_at, self._precision),
        ):
            for number in ks:
                if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                    raise ValueError(f"{names} wants integers of at least 1, not {number!r}")
                if not hasattr(type(self), f"calculate_{names}_{number}"):  # PML's precision_at_1, or a subclass's own
                    self._largest[f"{names}_{number}"] = number
                    setattr(self, f"calculate_{names}_{number}", functools.partial(function, k=number))
        self._clusters_of: dict[str, int] = {}  # clusters per class of every metric where they are not 1
        for count in clusters_per_class:
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise ValueError(f"clusters_per_class wants integers of at least 1, not {count!r}")
            for name, metric in CLUSTER_METRICS.items() if count > 1 else ():
                self._clusters_of[f"{name}_{count}"] = count
                setattr(self, f"calculate_{name}_{count}", getattr(self, f"calculate_{metric}"))
        settings: dict[str, Any] = {
            "include": include, "exclude": tuple(exclude), "avg_of_avgs": avg_of_avgs,
            "return_per_class": return_per_class, "k": k, "label_comparison_fn": label_comparison_fn, "device": device,
            "knn_func": default_neighbours() if knn_func is None else knn_func,
            "kmeans_func": kmeans if kmeans_func is None else kmeans_func,
        }  # fmt: skip
        try:
            super().__init__(**settings)
        except NotImplementedError:
            clustering = [name for name in self.get_curr_metrics() if name in self.requires_clustering()]
            raise NotImplementedError(
                f"a label_comparison_fn does not go with metrics of clusters, and {', '.join(clustering)} "
                "would be computed; leave them out, for example with exclude=('NMI', 'AMI')"
            ) from None

    def requires_knn(self) -> list[str]:
        """Names of the metrics that need neighbours."""
        return [*super().requires_knn(), "mean_reciprocal_rank", *self._largest]

    def requires_clustering(self) -> list[str]:
        """Names of the metrics that need clusters."""
        return [*super().requires_clustering(), *_OWN_CLUSTER_METRICS, *self._clusters_of]

    def get_function_dict(self, include: Iterable[str] = (), exclude: Iterable[str] = ()) -> dict[str, Any]:
        """The metrics to compute: where ``exclude`` ends PML's clustering metrics, ``f1`` and ``purity`` end too."""
        chosen: dict[str, Any] = super().get_function_dict(include, exclude)
        clustering = set(super().requires_clustering())
        if clustering & set(exclude) and not clustering & set(chosen):
            kept = self._named.union(include)
            return {name: function for name, function in chosen.items()
                    if name in kept or name not in _OWN_CLUSTER_METRICS}  # fmt: skip
        return chosen

    def get_cluster_labels(self, query: Tensor, query_labels: Tensor, **kwargs: Any) -> Tensor | None:
        """As many clusters as classes; None where all metrics wanted have clusters of their own."""
        if set(self.get_curr_metrics()) & set(self.requires_clustering()) <= self._clusters_of.keys():
            return None
        return super().get_cluster_labels(query, query_labels, **kwargs)  # type: ignore[no-any-return]

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
        if self.label_comparison_fn is EQUALITY:
            query_labels, reference_labels = _small_labels(query_labels, reference_labels)
        return super().get_accuracy(  # type: ignore[no-any-return]
            query, query_labels, reference, reference_labels, ref_includes_query, tuple(include), tuple(exclude)
        )

    def determine_k(self, bin_counts: Tensor, num_reference_embeddings: int, ref_includes_query: bool) -> int:
        """How many neighbours to ask for: PML's number, or the largest K of the metrics wanted."""
        current = set(self.get_curr_metrics())
        largest = max((k for name, k in self._largest.items() if name in current), default=0)
        pml_k = int(super().determine_k(bin_counts, num_reference_embeddings, ref_includes_query))
        # All but ours may look at neighbours: PML's metrics, and a subclass's, whether requires_knn() has them or not.
        ours = {*self._largest, *_OWN_CLUSTER_METRICS, *self._clusters_of, *super().requires_clustering()}
        self._pml_k = max(1, pml_k) if current - ours else 0
        return min(max(self._pml_k, largest), num_reference_embeddings - int(ref_includes_query))

    def _get_accuracy(self, function_dict: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        found = {}
        clusters: dict[int, Tensor] = {}
        for name, function in function_dict.items():
            seen = kwargs
            if "knn_labels" in kwargs and name not in self._largest:
                seen = kwargs | {key: kwargs[key][:, : self._pml_k] for key in ("knn_labels", "knn_distances")}
            if name in self._clusters_of:
                count = self._clusters_of[name]
                if count not in clusters:
                    number = count * len(torch.unique(kwargs["query_labels"]))
                    clusters[count] = self.kmeans_func(kwargs["query"], number)
                seen = kwargs | {"cluster_labels": clusters[count]}
            found[name] = function(**seen)
        return found

    def _recall(self, knn_labels: Tensor, query_labels: Tensor, not_lone_query_mask: Tensor, label_counts: Any, k: int,
                **_: Any) -> Any:  # fmt: skip
        hit = self.label_comparison_fn(query_labels[:, None], knn_labels[:, :k]).any(1)
        if self.lone_queries == "drop":
            hit, query_labels = hit[not_lone_query_mask], query_labels[not_lone_query_mask]
        if len(hit) == 0:
            return nan_accuracy(label_counts[0], self.return_per_class)
        return maybe_get_avg_of_avgs(hit.double(), query_labels[:, None], self.avg_of_avgs, self.return_per_class)

    def _precision(self, knn_labels: Tensor, query_labels: Tensor, not_lone_query_mask: Tensor, label_counts: Any,
                   k: int, **_: Any) -> Any:  # fmt: skip
        knn_labels, query_labels = knn_labels[not_lone_query_mask], query_labels[not_lone_query_mask]
        if len(query_labels) == 0:
            return nan_accuracy(label_counts[0], self.return_per_class)
        return precision_at_k(
            knn_labels, query_labels[:, None], k, self.avg_of_avgs, self.return_per_class, self.label_comparison_fn
        )

    def calculate_f1(self, query_labels: Tensor, cluster_labels: Tensor, **_: Any) -> float:
        """Pairwise F1 of the clusters."""
        return pairwise_f1(query_labels.cpu().numpy(), cluster_labels.cpu().numpy())

    def calculate_purity(self, query_labels: Tensor, cluster_labels: Tensor, **_: Any) -> float:
        """Purity of the clusters."""
        return purity(query_labels.cpu().numpy(), cluster_labels.cpu().numpy())


CLUSTER_METRICS = {"nmi": "NMI", "f1": "f1", "purity": "purity"}  # the calculator's names, by ours
_OWN_CLUSTER_METRICS = ("f1", "purity")  # which PML does not have


def _small_labels(query_labels: Any, reference_labels: Any) -> tuple[Tensor, Tensor | None]:
    """Labels renamed 0, 1, ... in their order, so that nothing is lost where PML casts them to float32."""
    query = torch.as_tensor(c_f.numpy_to_torch(query_labels))
    if reference_labels is None:
        return torch.unique(query, return_inverse=True)[1], None
    reference = torch.as_tensor(c_f.numpy_to_torch(reference_labels)).to(query.device)
    renamed = torch.unique(torch.cat([query, reference]), return_inverse=True)[1]
    return renamed[: len(query)], renamed[len(query) :]


def retrieval_metrics(accuracies: Mapping[str, Any]) -> dict[str, float]:
    """Accuracies under the names of ``metrics.json``.

    Args:
        accuracies: what :meth:`RetrievalAccuracyCalculator.get_accuracy` returns, averaged over queries.

    Returns:
        ``recall_at_K``, ``precision_at_K``, ``r_precision``, ``map_at_r``, ``nmi``, ``f1``, ``purity``, ``nmi_C``, ...:
        those that were computed, as fractions.
    """
    order = ["r_precision", "mean_average_precision_at_r", "NMI", "f1", "purity"]
    groups = [sorted((name for name in accuracies if name.startswith(prefix)), key=_number)
              for prefix in ("recall_at_", "precision_at_")]  # fmt: skip
    others = [name for name in accuracies if name.rpartition("_")[0] in CLUSTER_METRICS]
    names = [*groups[0], *groups[1], *(name for name in order if name in accuracies), *sorted(others, key=_number)]
    return {_SHORT_NAMES.get(name, name): float(accuracies[name]) for name in names}


def _number(name: str) -> int:
    return int(name.rpartition("_")[2])
