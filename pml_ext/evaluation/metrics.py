"""Metrics as pure functions, and the table of metrics for calculator, runs and reports.

A neighbor metric has two arguments, from a search for the K nearest gallery items of each query:

- ``right``, ``[Q, K]``, booleans :math:`r_{ij}`: whether neighbor j of query i, nearest first, has the query's class.
  Missing columns of a small gallery count as wrong.
- ``relevant``, ``[Q]``, integers :math:`R_i`: the number of gallery items of the query's class, without the query
  itself. A query is *lone* if :math:`R_i = 0`.

It returns one value per query, ``[Q]``, float64 from 0 to 1; for a lone query 0, or NaN where :math:`R_i` divides.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from .clustering import ami, nmi, nmi_majority, pairwise_f1, purity


def recall_at_k(right: Tensor, k: int) -> Tensor:
    r"""Recall@K: whether one of the k nearest is right.

    .. math:: \max_{j \le k} r_{ij}
    """
    return right[:, :k].any(dim=1).to(torch.float64)


def precision_at_k(right: Tensor, k: int) -> Tensor:
    r"""Precision@K: the share of right items among the k nearest.

    .. math:: \frac{1}{k} \sum_{j \le k} r_{ij}

    The divisor is k even if K is smaller.
    """
    return right[:, :k].sum(dim=1).to(torch.float64) / k


def r_precision(right: Tensor, relevant: Tensor) -> Tensor:
    r"""R-precision: the share of right items among the :math:`R_i` nearest.

    .. math:: \frac{1}{R_i} \sum_{j \le R_i} r_{ij}

    If K is smaller than :math:`R_i`, K replaces it, as in PML.
    """
    right = right & _within(right, relevant)
    return right.sum(dim=1).to(torch.float64) / relevant.clamp(max=right.shape[1])


def map_at_r(right: Tensor, relevant: Tensor) -> Tensor:
    r"""MAP@R (Musgrave et al. 2020, "A Metric Learning Reality Check", Sec. 3.2).

    .. math:: \frac{1}{R_i} \sum_{j \le R_i} r_{ij} \, \frac{1}{j} \sum_{l \le j} r_{il}
    """
    return average_precision(right & _within(right, relevant), relevant)


def average_precision(right: Tensor, relevant: Tensor) -> Tensor:
    r"""Average precision; its mean over queries is MAP.

    .. math:: \frac{1}{R_i} \sum_{j \le K} r_{ij} \, \frac{1}{j} \sum_{l \le j} r_{il}

    For the usual MAP, K is the size of the gallery.
    """
    return ((right.cumsum(dim=1) * right).to(torch.float64) / _ranks(right)).sum(dim=1) / relevant


def reciprocal_rank(right: Tensor) -> Tensor:
    r"""The reciprocal rank of the first right neighbor; its mean is MRR.

    .. math:: \max_{j \le K} \frac{r_{ij}}{j}

    For the usual MRR, K is the size of the gallery.
    """
    first = right & (right.cumsum(dim=1) == 1)
    return (first.to(torch.float64) / _ranks(right)).sum(dim=1)


def ndcg(gains: Tensor, ideal: Tensor) -> Tensor:
    r"""NDCG@K: the discounted gains of the K nearest, divided by the ideal ones.

    .. math:: \frac{\sum_{j \le K} g_{ij} / \log_2(j + 1)}{\sum_{j \le K} g^*_{ij} / \log_2(j + 1)}

    ``gains``, ``[Q, K]``, are the neighbors' weights; ``ideal``, ``[Q, K]``, the K greatest gains in the gallery. The
    value is NaN if all ideal gains are 0.
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

    name: str  # key in metrics.json
    title: str  # heading in a report
    function: Callable[[Any, Any], Any]  # of right and relevant, or classes and clusters
    neighbors: int | Literal["relevant", "gallery"] | None = None  # number of neighbors used; None for a cluster metric
    clusters: int = 0  # k-means clusters per class of the queries; 0 for a neighbor metric
    pml_name: str = ""  # name in PML's calculator, if different
    lone_queries: bool = False  # whether lone queries may count as misses in the mean
    in_runs: bool = True  # whether runs report it
    graded: bool = False  # whether the function needs gains and ideal gains
    of_pairs: bool = False  # whether the function needs the metrics of pairs, of pml_ext.evaluation.verification
    level: int = 0  # tree level at which neighbors are right if ancestors match; 0: the relation's own

    @property
    def accuracy(self) -> str:
        """The name in the calculator."""
        return self.pml_name or self.name

    def columns(self, most_relevant: int, gallery: int) -> int:
        """Number of neighbors needed."""
        if self.neighbors == "gallery":
            return gallery
        if self.neighbors == "relevant":
            return min(most_relevant, gallery)
        return min(self.neighbors or 0, gallery)


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


def _of_pairs(name: str, title: str) -> Metric:
    return Metric(f"verification_{name}", title, lambda values, _: values[name], of_pairs=True)


_OF_PAIRS = (
    _of_pairs("roc_auc", "ROC AUC of pairs"),
    _of_pairs("average_precision", "average precision of pairs"),
    _of_pairs("eer", "equal error rate"),
    _of_pairs("tar_at_far_0.1", "TAR at FAR 0.1"),
    _of_pairs("tar_at_far_0.01", "TAR at FAR 0.01"),
    _of_pairs("tar_at_far_0.001", "TAR at FAR 0.001"),
    _of_pairs("tar_at_far_0.0001", "TAR at FAR 0.0001"),
    _of_pairs("accuracy_10_fold", "accuracy of pairs, 10 folds"),
    _of_pairs("accuracy_10_fold_error", "standard error of the accuracy of pairs"),
)

OF_LISTED: dict[str, dict[str, str]] = {  # titles of the metrics of listed pairs and triplets, by kind and name
    "pairs": {
        **{metric.name: metric.title for metric in _OF_PAIRS},
        "verification_accuracy": "accuracy of pairs at the training threshold",
    },
    "triplets": {"triplet_accuracy": "accuracy of triplets"},
}
_TITLES = {metric.name: metric.title for metric in _METRICS} | OF_LISTED["pairs"] | OF_LISTED["triplets"]
_K = r"([1-9]\d*)"
_NUMBERED_TITLES = [  # patterns of the names of metrics that have a number, with their titles
    (rf"recall_at_{_K}", r"Recall@\1"),
    (rf"recall_at_{_K}_level_{_K}", r"Recall@\1, level \2"),
    (rf"precision_at_{_K}", r"P@\1"),
    (rf"ndcg_at_{_K}", r"NDCG@\1"),
    (rf"ncm_top_{_K}", r"class means, top-\1"),
    (rf"zero_shot_top_{_K}", r"zero-shot, top-\1"),
    (r"nmi_([2-9]|[1-9]\d+)", r"NMI, \1 per class"),
    (r"nmi_majority_([2-9]|[1-9]\d+)", r"NMI of majority classes, \1 per class"),
    (r"f1_([2-9]|[1-9]\d+)", r"F1, \1 per class"),
    (r"purity_([2-9]|[1-9]\d+)", r"purity, \1 per class"),
]
SMALLER_IS_BETTER = ("verification_eer", "verification_accuracy_10_fold_error")


def metrics_of(
    recall_at: Iterable[int] = (1,),
    precision_at: Iterable[int] = (1,),
    clusters_per_class: Iterable[int] = (1,),
    ndcg_at: Iterable[int] = (),
    levels: Iterable[int] = (),
    verification: bool = False,
) -> list[Metric]:
    """The metrics in the order of ``metrics.json``; arguments as in the calculator.

    ``levels``: additional levels of a tree for recall. ``verification``: whether to include the metrics of pairs.
    """
    recalls = []
    for k in _counts("recall_at", recall_at):
        recalls.append(_at("recall", k, lambda right, _, k=k: recall_at_k(right, k), lone_queries=True))
    table = list(recalls)
    for k in _counts("precision_at", precision_at):
        table.append(_at("precision", k, lambda right, _, k=k: precision_at_k(right, k)))
    table += [_at("ndcg", k, ndcg, graded=True) for k in _counts("ndcg_at", ndcg_at)]
    for level in levels:
        table += [_variant(metric, f"level_{level}", level=level) for metric in recalls]
    table += _METRICS
    clustered = [metric for metric in _METRICS if metric.clusters and metric.in_runs]
    for count in _counts("clusters_per_class", clusters_per_class):
        if count > 1:
            table += [_variant(metric, str(count), clusters=count, pml_name="") for metric in clustered]
    if verification:
        table += _OF_PAIRS
    return table


def _at(name: str, k: int, function: Callable[..., Any], **more: Any) -> Metric:
    return Metric(f"{name}_at_{k}", title_of(f"{name}_at_{k}"), function, k, **more)


def _variant(metric: Metric, suffix: str, **changes: Any) -> Metric:
    name = f"{metric.name}_{suffix}"
    return replace(metric, name=name, title=title_of(name), **changes)


def title_of(name: str) -> str:
    """A metric's heading, ``"Recall@1"`` for ``"recall_at_1"``, or the name itself."""
    return _known_title(name) or name


def is_known_metric(name: str) -> bool:
    """Whether a key in ``metrics.json`` is a metric of this package."""
    return _known_title(name) is not None


def is_of_clusters(name: str) -> bool:
    """Whether a metric needs clusters."""
    without_count = re.sub(r"_\d+$", "", name)
    return any(metric.clusters > 0 and metric.name == without_count for metric in _METRICS)


def is_of_protocol(name: str) -> bool:
    """Whether a metric belongs to a protocol: class means, or classes by their texts."""
    return re.fullmatch(rf"(ncm|zero_shot)_top_{_K}", name) is not None


def _known_title(name: str) -> str | None:
    if name in _TITLES:
        return _TITLES[name]
    for pattern, title in _NUMBERED_TITLES:
        match = re.fullmatch(pattern, name)
        if match is not None:
            return match.expand(title)
    return None


def headline_metric(metrics: Mapping[str, Any]) -> str:
    """The name of the metric that summarizes a test, or an empty string."""
    return next((name for name in ("recall_at_1", "verification_roc_auc", "triplet_accuracy") if name in metrics), "")


def _counts(name: str, values: Iterable[int]) -> list[int]:
    values = list(values)
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must have integers of at least 1, not {value!r}")
    return sorted(set(values))


def relevant_counts(query_labels: Tensor, gallery_labels: Tensor) -> Tensor:
    """The number of gallery items of each query's class, ``[Q]``, int64."""
    classes, places = torch.unique(torch.cat([query_labels, gallery_labels]), return_inverse=True)
    counts = torch.bincount(places[len(query_labels) :], minlength=len(classes))
    return counts[places[: len(query_labels)]]


def mean(values: Tensor, counted: Tensor | None = None) -> float:
    """The mean of ``[Q]`` values over the ``counted`` queries; NaN without any."""
    return float((values if counted is None else values[counted]).mean())


def class_means(values: Tensor, labels: Tensor, counted: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The classes, ascending, and their means of ``[Q]`` or ``[Q, D]`` values.

    Labels and classes may have L columns. ``counted``, ``[Q]``: the queries that count.
    """
    if counted is not None:
        values = values[counted]
        labels = labels[counted]
    classes, places = torch.unique(labels.to(values.device), dim=0, return_inverse=True)
    sums = values.new_zeros(len(classes), *values.shape[1:]).index_add_(0, places, values)
    counts = torch.bincount(places, minlength=len(classes))
    return classes, sums / counts.view(-1, *[1] * (values.ndim - 1))


def mean_of_class_means(values: Tensor, labels: Tensor, counted: Tensor | None = None) -> float:
    """The mean over classes."""
    return float(class_means(values, labels, counted)[1].mean())
