"""Metrics of a run's splits, and the nearest images of queries."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from pml_ext.errors import DataError
from pml_ext.evaluation.blank import explained
from pml_ext.evaluation.calculator import Evaluation, RetrievalAccuracyCalculator
from pml_ext.evaluation.listed import scores_of_pairs, tuple_metrics
from pml_ext.evaluation.metrics import metrics_of, title_of
from pml_ext.evaluation.neighbors import NearestNeighbors, learned_metric, neighbors_under, reranked_under
from pml_ext.evaluation.of_plugins import needs_clusters, plugin_metrics
from pml_ext.evaluation.verification import best_threshold
from pml_ext.pml import BaseDistance
from pml_ext.relations import Relation

from ..data import raw_pixels
from ..networks import is_pretrained, whitened_components
from ..recipe import trains_pretrained_trunk
from .closed_form import whitened
from .protocols import Metrics, classified
from .stages import Stages
from .view import View

NEIGHBORS = 8  # kept of a search, for the report


def metrics_before(view: View) -> dict[str, Metrics]:
    """Metrics of raw pixels or vectors and of the untrained network, in one pass.

    A pretrained or frozen trunk adds its features, their whitened components, and features whitened within classes.
    """
    parts = _compared_splits(view, view.queries)
    if view.data.has_vectors:
        vectors = {part: view.embedded(part, features=True)["features"] for part in parts}
        return _metrics_by_phase(view, {"raw": vectors, **_in_closed_form(view, vectors)})
    has_features = view.frozen or is_pretrained(view.recipe.model.trunk.settings)
    held = {part: view.embedded(part, also=raw_pixels, features=has_features) for part in parts}
    points = {"raw": {part: rows["also"] for part, rows in held.items()}}
    if has_features:
        features = {part: rows["features"].float() for part, rows in held.items()}
        points |= {"frozen": features, **_in_closed_form(view, features)}
    return _metrics_by_phase(view, points)


def _metrics_by_phase(view: View, points: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Metrics]:
    metrics = {phase: _metrics_of_points(view, view.queries, rows) for phase, rows in points.items()}
    return metrics | {"before": evaluate_split(view, view.queries)}


def _metrics_of_points(view: View, split: str, points: Mapping[str, Tensor]) -> Metrics:
    """Retrieval and clustering metrics of points ``[N, D]`` by cosine similarity."""
    normalized = {part: nn.functional.normalize(rows) for part, rows in points.items()}
    if view.data.listed is not None:
        return _of_listed(view, split, normalized)
    retrieval = _retrieval(view, split, normalized)
    return retrieval.accuracies | _clustering(view, split, normalized[split]).accuracies


def _in_closed_form(view: View, features: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Whitened components, and features whitened within classes if there are any."""
    training = view.untrained_features("train")
    layer = whitened_components(training, view.recipe.model.embedding_size)
    points = {"pca": {part: layer(rows) for part, rows in features.items()}}
    within = whitened(view, features, training)
    if within is not None:
        points["within_class"] = within
    return points


def tested_features(view: View) -> dict[str, Tensor]:
    """Features of the compared splits; the pass keeps their embeddings, too."""
    return {
        part: view.embedded(part, features=True)["features"].float() for part in _compared_splits(view, view.queries)
    }


def metrics_after(view: View, stages: Stages, features: Mapping[str, Tensor] | None = None) -> dict[str, Metrics]:
    """Metrics of the trained network on test and training images, and of a learned metric.

    A fine-tuned trunk, or a refitted head, adds the features before the head.
    """
    split = view.queries
    if features is None and trains_pretrained_trunk(view.recipe):
        features = tested_features(view)
    metrics = {"after": evaluate_split(view, split)}
    if features:
        metrics["features"] = _metrics_of_points(view, split, features)
    for size in view.recipe.loss.nested[:-1]:
        shortened = {part: view.embeddings(part)[:, :size] for part in _compared_splits(view, split)}
        metrics[f"first_{size}"] = _metrics_of_points(view, split, shortened)
    if view.data.tested_training is not None:
        metrics["training"] = evaluate_split(view, view.data.tested_training, clustering=False)
    metric = learned_metric(stages[-1].loss.modules()) or learned_metric(stages.parts())
    if metric is None:
        return metrics
    points = {part: view.embeddings(part) for part in _compared_splits(view, split)}
    if view.data.listed is not None:
        return metrics | {"learned_metric": _of_listed(view, split, points, metric)}
    metrics["learned_metric"] = _retrieval(view, split, points, neighbors_under(metric), keep=0).accuracies
    shortlist = view.recipe.evaluation.shortlist
    if shortlist:
        if view.data.gallery_of(split) == split:
            shortlist += 1  # the query itself is among its own nearest
        metrics["shortlist"] = _retrieval(view, split, points, reranked_under(metric, shortlist), keep=0).accuracies
    return metrics


def evaluate_split(view: View, split: str, clustering: bool = True) -> Metrics:
    """Metrics of a split by cosine similarity; TrainingError for non-finite embeddings.

    ``clustering`` adds metrics of clusters and protocols.
    """
    if view.data.listed is not None:
        points = {part: view.normalized_embeddings(part) for part in _compared_splits(view, split)}
        return view.once(("listed", split), lambda: _of_listed(view, split, points))
    metrics = dict(nearest(view, split).accuracies)
    if clustering:
        metrics |= clustered(view, split).accuracies
        metrics |= view.once(("classified", split), lambda: classified(view, split))
    return metrics


def _compared_splits(view: View, split: str) -> list[str]:
    """A split, its gallery, and the training pairs that set its threshold."""
    parts = [split, view.data.gallery_of(split)]
    if view.data.listed is not None and view.data.listed.kind == "pairs" and view.data.tested_training is not None:
        parts.append(view.data.tested_training)
    return list(dict.fromkeys(parts))


def _of_listed(view: View, split: str, points: Mapping[str, Tensor], distance: BaseDistance | None = None) -> Metrics:
    """Metrics of listed pairs or triplets; training pairs set the threshold."""
    tuples = view.images(split).tuples
    assert tuples is not None
    threshold = None
    training = view.data.tested_training
    try:
        if tuples.kind == "pairs" and training is not None:
            trained = view.images(training).tuples
            assert trained is not None
            scores = scores_of_pairs(points[training], trained, distance)
            threshold = best_threshold(scores, trained.same)
        return tuple_metrics(points[split], tuples, threshold, distance)
    except ValueError as error:
        raise DataError(f"the {tuples.kind} of {split} cannot be tested: {error}") from None


def nearest(view: View, split: str) -> Evaluation:
    """Retrieval metrics and the 8 nearest images of each query; computed once."""
    points = {part: view.normalized_embeddings(part) for part in _compared_splits(view, split)}
    return view.once(("nearest", split), lambda: _retrieval(view, split, points))


def clustered(view: View, split: str) -> Evaluation:
    """Clustering metrics; computed once."""
    points = view.normalized_embeddings(split)
    return view.once(("clusters", split), lambda: _clustering(view, split, points))


def _retrieval(
    view: View,
    split: str,
    points: Mapping[str, Tensor],
    search: NearestNeighbors | None = None,
    keep: int = NEIGHBORS,
) -> Evaluation:
    names = _names_by_accuracy(view, of_clusters=False)
    calculator = _calculator(view, names, view.relation, search)
    labels = view.true_labels(split)
    searched = view.data.gallery_of(split)
    gallery, gallery_labels = (None, None) if searched == split else (points[searched], view.true_labels(searched))
    groups = _groups(view, split)
    try:
        result = calculator.evaluate(
            points[split], labels, gallery, gallery_labels, keep=keep, on_failure=view.warn, **groups
        )
    except ValueError as error:
        if view.recipe.evaluation.verification is None and not groups:
            raise
        raise DataError(f"the images of {split} cannot be tested: {error}") from None
    return _named(view, split, result, names)


def _clustering(view: View, split: str, points: Tensor) -> Evaluation:
    names = _names_by_accuracy(view, of_clusters=True)
    calculator = _calculator(view, names)  # by classes, which a relation's labels may not be
    result = calculator.evaluate(points, view.true_labels(split), on_failure=view.warn)
    return _named(view, split, result, names)


def _names_by_accuracy(view: View, of_clusters: bool) -> dict[str, str]:
    """Names in ``metrics.json`` by their names in the calculator."""
    table = view.recipe.evaluation
    levels = () if view.relation is None else view.relation.levels
    known = metrics_of(
        table.recall_at,
        table.precision_at,
        table.clusters_per_class,
        table.ndcg_at,
        levels,
        table.verification is not None,
    )
    names = {
        metric.accuracy: metric.name for metric in known if metric.in_runs and bool(metric.clusters) == of_clusters
    }
    names.update({name: name for name, function in plugin_metrics().items() if needs_clusters(function) == of_clusters})
    return names


def _calculator(
    view: View, names: Iterable[str], relation: Relation | None = None, search: NearestNeighbors | None = None
) -> RetrievalAccuracyCalculator:
    table = view.recipe.evaluation
    return RetrievalAccuracyCalculator(
        names,
        k="max_bin_count",
        device=view.device,
        knn_func=search,
        recall_at=table.recall_at,
        precision_at=table.precision_at,
        lone_queries=table.lone_queries,
        clusters_per_class=table.clusters_per_class,
        relation=relation,
        ndcg_at=table.ndcg_at,
        verification=table.verification,
    )


def _named(view: View, split: str, result: Evaluation, names: Mapping[str, str]) -> Evaluation:
    """Rename the metrics of an evaluation, and warn of blank ones."""
    accuracies = {names[key]: float(result.accuracies[key]) for key in names if key in result.accuracies}
    counted = {names[key]: result.counted[key] for key in names if key in result.counted}
    blank = {names[key]: result.blank[key] for key in names if key in result.blank}
    for text in explained({title_of(name): reason for name, reason in blank.items()}):
        view.warn(f"the test of {split}: {text}")
    return dataclasses.replace(result, accuracies=accuracies, counted=counted, blank=blank)


def _groups(view: View, split: str) -> dict[str, Any]:
    """Groups of queries and gallery, as arguments of the calculator."""
    queries = view.images(split)
    searched = view.images(view.data.gallery_of(split))
    if queries.groups is None or searched.groups is None:
        return {}
    if not (queries.groups != "").any() and not (searched.groups != "").any():
        return {}
    if searched is queries:
        return {"query_groups": queries.groups}
    return {"query_groups": queries.groups, "reference_groups": searched.groups}
