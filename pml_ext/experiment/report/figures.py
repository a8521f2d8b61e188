"""The figures of a run's report."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
from matplotlib.figure import Figure

from ...errors import one_line
from ...evaluation.figures import gallery, loss_curves, projections, recall_curve, similarity_distributions
from ..records import loss_series
from ..stages import Stages
from ..testing import nearest
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
        yield ReportFigure.drawn("The loss and its terms", lambda: loss_curves(series),
                                 f"{terms}: in every iteration, and smoothed.")  # fmt: skip
    yield ReportFigure.drawn("Recall@K before and after training",
                             lambda: recall_curve(_curves(metrics, "recall_at_")),
                             "The share of test images with one of their class among the K nearest.")  # fmt: skip
    if len(view.recipe.evaluation.precision_at) > 1:
        yield ReportFigure.drawn("Query accuracy (precision@K) before and after training",
                                 lambda: recall_curve(_curves(metrics, "precision_at_"), "precision@K, %"),
                                 "The mean share of the query's class among the K nearest.")  # fmt: skip
    test, labels = view.embeddings("test"), view.labels("test")
    yield ReportFigure.drawn(
        "Similarities of positive and negative pairs",
        lambda: similarity_distributions(
            {"training images": (view.embeddings("train"), view.labels("train")), "test images": (test, labels)}
        ),
        "The further apart the two, the easier the retrieval; the legends give mean and standard deviation.",
    )

    def flat(method: Literal["tsne", "pca"]) -> Figure:
        parts = {"before training": (view.embeddings_before(), labels), "after training": (test, labels)}
        return projections(parts, view.splits["test"].class_names, method, seed=view.seed)

    methods: dict[Literal["tsne", "pca"], str] = {"tsne": "t-SNE", "pca": "principal components"}
    for method, title in methods.items():
        yield ReportFigure.drawn(f"The test embeddings in two dimensions: {title}", functools.partial(flat, method),
                                 "Before and after training, the same images, colored by class.")  # fmt: skip
    yield ReportFigure.drawn("Queries and their nearest test images", lambda: _gallery(view),
                             "Half of these queries were answered wrongly, as far as there are such; framed green (✓): "
                             "the query's class, red (✗): another one; with the Euclidean distance.")  # fmt: skip


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
    return {PHASES[phase]: _at_each_k(metrics[phase], prefix) for phase in ("raw", "before", "after", "training")}


def _at_each_k(metrics: Mapping[str, float], prefix: str) -> dict[int, float]:
    return {int(name.removeprefix(prefix)): value for name, value in metrics.items() if name.startswith(prefix)}


def _recorded_terms(stages: Stages) -> list[str]:
    """Names of the loss terms that any loss or regularizer of the run records."""
    terms: list[str] = []
    for stage in stages:
        for module in stage.loss.modules():
            terms += [name for name in getattr(module, "_record_these_stats", []) if name.endswith(("_loss", "_value"))]
    return terms


def _gallery(view: View) -> Figure:
    distances, indices = nearest(view, "test")
    split, labels = view.splits["test"], torch.as_tensor(view.splits["test"].labels)
    wrong = labels[indices[:, 0]] != labels
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(view.seed))
    failures, successes = order[wrong[order]], order[~wrong[order]]
    half = GALLERY_QUERIES // 2
    queries = torch.cat([failures[:half], successes])[:GALLERY_QUERIES].tolist()
    return gallery(
        [(query, indices[query].tolist()) for query in queries],
        labels.tolist(),
        split.image,
        split.class_names,
        [distances[query].tolist() for query in queries],
    )
