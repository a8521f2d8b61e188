"""The figures of a run's report."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from matplotlib.figure import Figure
from torch.nn.functional import normalize

from ...errors import one_line
from ...evaluation import Evaluation
from ...evaluation.figures import (
    epoch_curves,
    gallery,
    loss_curves,
    projections,
    recall_curve,
    similarity_distributions,
)
from ...pml import BaseDistance
from ..curves import CURVE, PSEUDO, VALIDATION, metric_series
from ..evaluation import metric_of, nearest, nearest_by
from ..records import loss_series
from ..stages import Stages
from ..view import View
from .html import ReportFigure

PHASES = {
    "raw": "raw pixels",
    "before": "before training",
    "after": "after training",
    "training": "after training, among the training images",
    "learned_metric": "after training, by the learned metric",
    "shortlist": "the same, among a shortlist by cosine similarity",
}
GALLERY_QUERIES = 8


def figures_of_run(view: View, stages: Stages, metrics: Mapping[str, Any]) -> Iterator[ReportFigure]:
    """The figures that every run has.

    Args:
        view: of the run, with the tested weights in its networks.
        stages: of the run, whose losses have recorded their terms.
        metrics: what stands in ``metrics.json``.
    """
    if series := loss_series(view.folder, _recorded_terms(stages)):
        terms = ", ".join(series).capitalize()
        yield ReportFigure.drawn(
            "The loss and its terms", lambda: loss_curves(series), f"{terms}: in every iteration, and smoothed."
        )
    yield from _curves_over_epochs(view, metrics)
    kind, gallery_kind = _kinds(view)
    yield ReportFigure.drawn(
        "Recall@K before and after training",
        lambda: recall_curve(_curves(metrics, "recall_at_")),
        f"The share of {kind} with one of their class among the K nearest.",
    )
    if len(view.recipe.evaluation.precision_at) > 1:
        yield ReportFigure.drawn(
            "Query accuracy (precision@K) before and after training",
            lambda: recall_curve(_curves(metrics, "precision_at_"), "precision@K, %"),
            "The mean share of the query's class among the K nearest.",
        )
    queries, training = view.queries, view.tested_training
    test, labels = view.embeddings(queries), view.true_labels(queries)
    compared = {} if training is None else {"training images": (view.embeddings(training), view.true_labels(training))}
    yield ReportFigure.drawn(
        "Similarities of positive and negative pairs",
        lambda: similarity_distributions({**compared, kind: (test, labels)}),
        "The further apart the two, the easier the retrieval; the legends give mean and standard deviation.",
    )

    def flat(method: Literal["tsne", "pca"]) -> Figure:
        parts = {"after training": (test, labels)}
        if view.recipe.evaluation.baselines:
            parts = {"before training": (view.embeddings_before(), labels), **parts}
        return projections(parts, view.splits[queries].class_names, method, seed=view.seed)

    when = "Before and after training, the same images" if view.recipe.evaluation.baselines else "After training"
    methods: dict[Literal["tsne", "pca"], str] = {"tsne": "t-SNE", "pca": "principal components"}
    for method, title in methods.items():
        yield ReportFigure.drawn(
            f"The embeddings of {kind} in two dimensions: {title}",
            functools.partial(flat, method),
            f"{when}, colored by class.",
        )
    yield ReportFigure.drawn(
        f"Queries and their nearest {gallery_kind}",
        lambda: _gallery(view),
        "Half of these queries were answered wrongly, as far as there are such; framed green (✓): "
        "the query's class, red (✗): another one; with the Euclidean distance.",
    )
    if (metric := metric_of(stages)) is not None:
        yield ReportFigure.drawn(
            f"Queries and their nearest {gallery_kind} by the learned metric",
            lambda: _gallery(view, metric),
            "As above; with the learned value and the Euclidean distance of the features.",
        )


def _captions(view: View, result: Evaluation, query: int, learned: bool) -> Sequence[float | str]:
    """What stands over a query's answers: their distance; of a learned metric, the score and the feature distance."""
    values: list[float] = result.distances[query].tolist()
    if not learned:
        return values
    points = normalize(view.embeddings(view.queries)[query : query + 1])
    answers = normalize(view.embeddings(view.gallery_of(view.queries))[result.indices[query].to(points.device)])
    return [
        f"{value:.2f} | {distance:.2f}"
        for value, distance in zip(values, (points - answers).norm(dim=1).tolist(), strict=True)
    ]


def _kinds(view: View) -> tuple[str, str]:
    """What the images that are searched for are called, and those among which they are searched."""
    return ("test images", "test images") if view.queries == "test" else ("queries", "gallery images")


def _curves_over_epochs(view: View, metrics: Mapping[str, Any]) -> Iterator[ReportFigure]:
    """The metrics that were measured between epochs, if any were."""
    table, kind = view.recipe.evaluation, _kinds(view)[0]
    names = {VALIDATION: "held-out training classes", CURVE: kind}
    panels: dict[str, dict[str, tuple[list[int], list[float]]]] = {}
    for metric in dict.fromkeys(["recall_at_1", "map_at_r", *([table.select] if table.select else [])]):
        if curves := metric_series(view.folder, metric):
            lines = {names[where]: curve for where, curve in curves.items()}
            if kind in lines and metric in metrics.get("before", {}):
                epochs, values = lines[kind]
                lines[kind] = [0, *epochs], [metrics["before"][metric], *values]
            panels[metric] = lines
    if clusters := pseudo_labels_over_epochs(view):
        yield ReportFigure.drawn(
            "Clusters as labels, over the epochs",
            lambda: epoch_curves(clusters),
            "How far an epoch's clusters agree with the clusters of the epoch before (NMI), and the share of the "
            "training images in the largest. No label of a training image is looked at.",
        )
    if panels:
        chosen = {
            None: "They choose nothing: the last epoch is tested.",
            "validation": "The epoch is chosen by the held-out classes alone.",
            "test": f'The epoch is chosen by {table.select} of the {kind} themselves (select_on = "test").',
        }
        yield ReportFigure.drawn(
            "Metrics over the epochs", lambda: epoch_curves(panels), chosen[table.select_on if table.select else None]
        )


def pseudo_labels_over_epochs(view: View) -> dict[str, dict[str, tuple[list[int], list[float]]]]:
    """What was recorded of clusters as labels, if they were.

    Args:
        view: of the run.

    Returns:
        Panels of a figure.
    """
    names = {"nmi_to_epoch_before": "NMI with the epoch before", "largest": "images in the largest cluster"}
    curves = {title: metric_series(view.folder, name, (PSEUDO,)) for name, title in names.items()}
    return {title: {"training images": curve[PSEUDO]} for title, curve in curves.items() if curve.get(PSEUDO)}


def figures_of_components(view: View, stages: Stages) -> Iterator[ReportFigure]:
    """The figures that components of the run draw.

    Args:
        view: of the run.
        stages: which have the components.
    """
    for part in stages.parts():
        name = type(part).__name__
        try:
            figures = dict(view.call(part, "figures") or {})
        except (Exception, SystemExit) as error:  # a component's figures are its own affair
            yield ReportFigure(f"Figures of {name}", None, problem=one_line(error))
            continue
        for title, figure in figures.items():
            yield _figure_of(name, str(title), figure)


def _figure_of(component: str, title: str, figure: Figure) -> ReportFigure:
    drawn = ReportFigure.drawn(title, lambda: figure)
    return dataclasses.replace(drawn, problem=f"{component}: {drawn.problem}") if drawn.problem else drawn


def _curves(metrics: Mapping[str, Any], prefix: str) -> dict[str, dict[int, float]]:
    return {
        PHASES[phase]: _at_each_k(metrics[phase], prefix)
        for phase in ("raw", "before", "after", "training")
        if phase in metrics
    }


def _at_each_k(metrics: Mapping[str, float], prefix: str) -> dict[int, float]:
    return {int(name.removeprefix(prefix)): value for name, value in metrics.items() if name.startswith(prefix)}


def _recorded_terms(stages: Stages) -> list[str]:
    """Names of the loss terms that any loss or regularizer of the run records."""
    terms: list[str] = []
    for stage in stages:
        for module in stage.loss.modules():
            terms += [name for name in getattr(module, "_record_these_stats", []) if name.endswith(("_loss", "_value"))]
    return terms


def _gallery(view: View, metric: BaseDistance | None = None) -> Figure:
    result = nearest(view, view.queries) if metric is None else nearest_by(view, metric)
    queries, shown = view.images(view.queries), view.images(view.gallery_of(view.queries))
    order = torch.randperm(len(queries), generator=torch.Generator().manual_seed(view.seed))
    wrong = ~result.right[:, :1].any(dim=1)
    failures, successes = order[wrong[order]], order[~wrong[order]]
    half = GALLERY_QUERIES // 2
    chosen = torch.cat([failures[:half], successes])[:GALLERY_QUERIES].tolist()
    apart = {} if shown is queries else {"answer_labels": shown.labels.tolist(), "answer_image": shown.image}
    return gallery(
        [(query, result.indices[query].tolist()) for query in chosen],
        queries.labels.tolist(),
        queries.image,
        queries.class_names,
        [_captions(view, result, query, metric is not None) for query in chosen],
        **apart,
    )
