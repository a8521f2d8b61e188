"""Figures of a run's report."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure

from ...errors import one_line
from ...evaluation import Evaluation, figures
from ...evaluation.fonts import short_name
from ..evaluation import metric_of, nearest, nearest_by
from ..records import CURVE, PSEUDO, VALIDATION, loss_series, metric_series
from ..stages import Stages
from ..view import View

PHASES = {
    "raw": "raw pixels",
    "before": "untrained network",
    "after": "trained network",
    "training": "trained network, training classes",
    "learned_metric": "trained network, learned metric",
    "shortlist": "trained network, learned metric on a shortlist",
}
GALLERY_QUERIES = 8
Curves = dict[str, dict[str, tuple[list[int], list[float]]]]  # epochs and values, by panel and line


class ReportFigure(NamedTuple):
    """A figure with its title and caption, or the reason why it could not be drawn."""

    title: str
    png: bytes = b""
    caption: str = ""
    problem: str = ""

    @property
    def base64(self) -> str:
        """The PNG in base64, for the page."""
        return base64.b64encode(self.png).decode("ascii")

    @property
    def file_name(self) -> str:
        """The title as the name of a PNG file."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-") + ".png"


def draw(title: str, figure: Callable[[], Figure], caption: str = "", owner: str = "") -> ReportFigure:
    """Draw a figure; an error is kept as its problem, after the owner's name, and costs no other figure."""
    try:
        buffer = io.BytesIO()
        figure().savefig(buffer, format="png")
    except (Exception, SystemExit) as error:  # components draw figures of their own
        return ReportFigure(title, problem=owner + one_line(error))
    return ReportFigure(title, buffer.getvalue(), caption)


def figures_of_run(view: View, stages: Stages, metrics: Mapping[str, Any]) -> Iterator[ReportFigure]:
    """Draw the figures that every run has: losses, curves, similarities, projections and nearest neighbors."""
    table, queries = view.recipe.evaluation, view.queries
    if series := loss_series(view.folder, _recorded_terms(stages)):
        caption = f"{', '.join(series).capitalize()}: in every iteration, and smoothed."
        yield draw("The loss and its terms", lambda: figures.loss_curves(series), caption)
    if clusters := pseudo_labels_over_epochs(view):
        yield draw(
            "Clusters as labels, over the epochs",
            lambda: figures.epoch_curves(clusters),
            "Agreement of an epoch's clusters with the clusters of the epoch before (NMI), and the share of the "
            "training images in the largest cluster. Labels of training images are not used.",
        )
    kind, gallery_kind = ("test images", "test images") if queries == "test" else ("queries", "gallery images")
    if panels := _metrics_over_epochs(view, kind, metrics.get("before", {})):
        images = f"the {kind} themselves" if table.select_on == "test" else "held-out training classes alone"
        chosen = f"The epoch is chosen by {table.select} on {images}." if table.select else "The last epoch is tested."
        yield draw("Metrics over the epochs", lambda: figures.epoch_curves(panels), chosen)
    yield draw(
        "Recall@K before and after training",
        lambda: figures.recall_curve(_by_k(metrics, "recall_at_")),
        f"The share of {kind} with an image of their class among the K nearest.",
    )
    if len(table.precision_at) > 1:
        yield draw(
            "Query accuracy (precision@K) before and after training",
            lambda: figures.recall_curve(_by_k(metrics, "precision_at_"), "precision@K, %"),
            "The mean share of the query's class among the K nearest.",
        )
    test, labels = view.embeddings(queries), view.true_labels(queries)
    compared = {kind: (test, labels)}
    if (training := view.tested_training) is not None:
        compared = {"training images": (view.embeddings(training), view.true_labels(training)), **compared}
    yield draw(
        "Similarities of positive and negative pairs",
        lambda: figures.similarity_distributions(compared),
        "Retrieval is easier where the two lie further apart; the legends give mean and standard deviation.",
    )

    def projected() -> Figure:
        parts = {"before training": (view.embeddings_before(), labels)} if table.baselines else {}
        parts["after training"] = test, labels
        return figures.projections(parts, view.splits[queries].class_names, seed=view.seed)

    when = "Before and after training, the same images" if table.baselines else "After training"
    yield draw(f"The embeddings of {kind} in two dimensions: t-SNE", projected, f"{when}, colored by class.")
    yield draw(
        f"Queries and their nearest {gallery_kind}",
        lambda: _gallery(view, nearest(view, queries)),
        "Half of the queries have a wrong nearest image, where available. Frames: green (✓) for the query's class, "
        "red (✗) for another. Numbers: Euclidean distances.",
    )
    if (metric := metric_of(stages)) is not None:
        yield draw(
            f"Queries and their nearest {gallery_kind} by the learned metric",
            lambda: _gallery(view, nearest_by(view, metric)),
            "As above. Numbers: the learned metric.",
        )


def figures_of_components(view: View, stages: Stages) -> Iterator[ReportFigure]:
    """Draw the figures that components of the run offer by a method ``figures(run)``."""
    for part in stages.parts():
        name = type(part).__name__
        try:
            drawn = dict(view.call(part, "figures") or {})
        except (Exception, SystemExit) as error:  # of somebody else's code
            yield ReportFigure(f"Figures of {name}", problem=one_line(error))
            continue
        for title, figure in drawn.items():
            yield draw(str(title), lambda figure=figure: figure, owner=f"{name}: ")  # type: ignore[misc]


def pseudo_labels_over_epochs(view: View) -> Curves:
    """Return the recorded statistics of clusters as labels, where a run has trained on such."""
    names = {"nmi_to_epoch_before": "NMI with the epoch before", "largest": "images in the largest cluster"}
    curves = {title: metric_series(view.folder, name, (PSEUDO,)) for name, title in names.items()}
    return {title: {"training images": curve[PSEUDO]} for title, curve in curves.items() if curve}


def _metrics_over_epochs(view: View, kind: str, before: Mapping[str, float]) -> Curves:
    """Return the metrics measured between epochs, on test images with the untrained network's as epoch 0."""
    panels: Curves = {}
    for metric in filter(None, dict.fromkeys(["recall_at_1", "map_at_r", view.recipe.evaluation.select])):
        if curves := metric_series(view.folder, metric):
            if CURVE in curves and metric in before:
                epochs, values = curves[CURVE]
                curves[CURVE] = [0, *epochs], [before[metric], *values]
            names = {VALIDATION: "held-out training classes", CURVE: kind}
            panels[metric] = {names[table]: curve for table, curve in curves.items()}
    return panels


def _by_k(metrics: Mapping[str, Any], prefix: str) -> dict[str, dict[int, float]]:
    """Return the values at each K by phase, of metrics with a prefix."""
    return {
        PHASES[phase]: {
            int(name.removeprefix(prefix)): value for name, value in metrics[phase].items() if name.startswith(prefix)
        }
        for phase in ("raw", "before", "after", "training")
        if phase in metrics
    }


def _recorded_terms(stages: Stages) -> list[str]:
    """Return the names of the terms that losses and regularizers of the run record."""
    modules = (module for stage in stages for module in stage.loss.modules())
    recorded = (name for module in modules for name in getattr(module, "_record_these_stats", []))
    return [name for name in recorded if name.endswith(("_loss", "_value"))]


def _gallery(view: View, result: Evaluation) -> Figure:
    """Draw queries, half of them failures, with the nearest images that a search has found and their distances."""
    queries, shown = view.images(view.queries), view.images(view.gallery_of(view.queries))
    order = torch.randperm(len(queries), generator=torch.Generator().manual_seed(view.seed))
    wrong = ~result.right[:, :1].any(dim=1)
    failures, successes = order[wrong[order]], order[~wrong[order]]
    rows = []
    for query in torch.cat([failures[: GALLERY_QUERIES // 2], successes])[:GALLERY_QUERIES].tolist():
        label = int(queries.labels[query])
        rows.append([(queries.image(query), f"query\n{short_name(queries.class_names[label])}", figures.GRAY)])
        for index, distance in zip(result.indices[query].tolist(), result.distances[query].tolist(), strict=True):
            other = int(shown.labels[index])
            caption = f"{distance:.2f}\n{short_name(queries.class_names[other])}"
            rows[-1].append(figures.answer(shown.image(index), caption, other == label))
    return figures.gallery(rows)
