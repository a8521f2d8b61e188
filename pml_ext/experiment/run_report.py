"""What a run's report shows."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import tomli_w
import torch
from matplotlib.figure import Figure
from torch import Tensor

from ..errors import one_line
from ..evaluation import default_neighbours
from ..evaluation.figures import gallery, loss_curves, projections, recall_curve, similarity_distributions
from .records import loss_series
from .report import Cell, ReportFigure, ReportTable, write_report

if TYPE_CHECKING:
    from .run import Run

PHASES = {
    "raw": "raw pixels",
    "before": "before training",
    "after": "after training",
    "training": "after training, among the training images",
    "learned_metric": "after training, by the learned metric",
    "shortlist": "the same, among a shortlist by cosine similarity",
}
GALLERY_QUERIES, GALLERY_WIDTH = 8, 8


def write_run_report(run: Run, metrics: Mapping[str, Any]) -> None:
    """Writes ``report.html`` of a finished run; a figure that cannot be drawn is left out with its reason.

    Args:
        run: the run, with the tested weights in its networks.
        metrics: what stands in ``metrics.json``.
    """
    figures = [*_figures(run, metrics), *_figures_of_components(run)]
    for figure in figures:
        if figure.problem:
            run.listener.warn(f"the figure {figure.title!r} is left out of the report: {figure.problem}")
    seconds = metrics["seconds"]
    write_report(
        run.folder / "report.html",
        title=metrics["recipe"],
        subtitle=f"{run.recipe.description}. Seed {metrics['seed']}, {metrics['device']}, "
        f"{seconds['train']:.1f} s of training and {seconds['test']:.1f} s of testing, epoch {metrics['best_epoch']} "
        f"of {run.recipe.schedule.epochs}.",
        tables=[_metrics_table(metrics)],
        figures=figures,
        appendix=[*_paper_table(run), _versions_table(metrics)],
        warnings=metrics["warnings"],
        recipe=tomli_w.dumps(run.recipe.as_dict()),
    )


_HEADINGS = {
    "r_precision": "R-prec.", "map_at_r": "MAP@R", "nmi": "NMI", "f1": "F1", "purity": "purity",
}  # fmt: skip


def _heading(name: str) -> str:
    stem, _, number = name.rpartition("_")
    if name.startswith(("recall_at_", "precision_at_")):
        return f"{'Recall' if name.startswith('recall') else 'P'}@{number}"
    return f"{_HEADINGS[stem]}, {number} a class" if stem in _HEADINGS else _HEADINGS.get(name, name)


def _metrics_table(metrics: Mapping[str, Any]) -> ReportTable:
    phases = [phase for phase in PHASES if phase in metrics]
    names = list(metrics["after"])
    compared = [phase for phase in phases if phase != "training"]  # on other images
    best = {name: max(metrics[phase].get(name, 0) for phase in compared) for name in names}
    rows = [
        [Cell(PHASES[phase]),
         *(_percent(metrics[phase].get(name), best[name] if phase in compared else -1) for name in names)]
        for phase in phases
    ]  # fmt: skip
    return ReportTable(
        "Retrieval and clustering on the test images", ["%", *(_heading(name) for name in names)], rows,
        "Every test image is searched among all others by cosine similarity; k-means has as many clusters as classes. "
        "The row of the training images shows what is lost on unseen ones.",
    )  # fmt: skip


def _percent(value: float | None, best: float) -> Cell:
    return Cell("") if value is None else Cell(f"{100 * value:.1f}", best=value == best)


def _paper_table(run: Run) -> Iterator[ReportTable]:
    if run.recipe.paper is not None:
        entries = run.recipe.paper.model_dump()
        rows = [[Cell(key), Cell(str(value))] for key, value in entries.items() if value != ""]
        yield ReportTable("What the paper reports, on its own data", ["", ""], rows)


def _versions_table(metrics: Mapping[str, Any]) -> ReportTable:
    rows = [[Cell(name), Cell(version)] for name, version in metrics["versions"].items()]
    return ReportTable("Versions", ["package", "version"], rows)


def _figures(run: Run, metrics: Mapping[str, Any]) -> Iterator[ReportFigure]:
    if series := loss_series(run.folder, _recorded_terms(run)):
        terms = ", ".join(series).capitalize()
        yield ReportFigure.drawn("The loss and its terms", lambda: loss_curves(series),
                                 f"{terms}: in every iteration, and smoothed.")  # fmt: skip
    yield ReportFigure.drawn("Recall@K before and after training",
                             lambda: recall_curve(_curves(metrics, "recall_at_")),
                             "The share of test images with one of their class among the K nearest.")  # fmt: skip
    if len(run.recipe.evaluation.precision_at) > 1:
        yield ReportFigure.drawn("Query accuracy (precision@K) before and after training",
                                 lambda: recall_curve(_curves(metrics, "precision_at_"), "precision@K, %"),
                                 "The mean share of the query's class among the K nearest.")  # fmt: skip
    train, test = run.embeddings("train"), run.embeddings("test")
    split, labels = run.splits["test"], run.labels("test")
    yield ReportFigure.drawn(
        "Similarities of positive and negative pairs",
        lambda: similarity_distributions(
            {"training images": (train, run.labels("train")), "test images": (test, labels)}
        ),
        "The further apart the two, the easier the retrieval; the legends give mean and standard deviation.",
    )

    def flat(method: Literal["tsne", "pca"]) -> Figure:
        parts = {"before training": (run.embeddings_before(), labels), "after training": (test, labels)}
        return projections(parts, split.class_names, method, seed=run.seed)

    methods: dict[Literal["tsne", "pca"], str] = {"tsne": "t-SNE", "pca": "principal components"}
    for method, title in methods.items():
        yield ReportFigure.drawn(f"The test embeddings in two dimensions: {title}", functools.partial(flat, method),
                                 "Before and after training, the same images, coloured by class.")  # fmt: skip
    yield ReportFigure.drawn("Queries and their nearest test images", lambda: _gallery(run, test),
                             "Half of these queries were answered wrongly, as far as there are such; framed green (✓): "
                             "the query's class, red (✗): another one; with the Euclidean distance.")  # fmt: skip


def _curves(metrics: Mapping[str, Any], prefix: str) -> dict[str, dict[int, float]]:
    return {PHASES[phase]: _at_each_k(metrics[phase], prefix) for phase in ("raw", "before", "after", "training")}


def _recorded_terms(run: Run) -> list[str]:
    """Names of the loss terms that any loss or regularizer of the run records."""
    terms: list[str] = []
    for stage in run.stages:
        for module in stage.loss.modules():
            terms += [name for name in getattr(module, "_record_these_stats", []) if name.endswith(("_loss", "_value"))]
    return terms


def _at_each_k(metrics: Mapping[str, float], prefix: str) -> dict[int, float]:
    return {int(name.removeprefix(prefix)): value for name, value in metrics.items() if name.startswith(prefix)}


def _gallery(run: Run, embeddings: Tensor) -> Figure:
    points = torch.nn.functional.normalize(embeddings)
    labels = run.labels("test")
    distances, nearest = default_neighbours()(points, GALLERY_WIDTH, points, ref_includes_query=True)
    wrong = labels[nearest[:, 0]] != labels
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(run.seed)).to(labels.device)
    failures, successes = order[wrong[order]], order[~wrong[order]]
    half = GALLERY_QUERIES // 2
    queries = torch.cat([failures[:half], successes])[:GALLERY_QUERIES].tolist()
    split = run.splits["test"]
    return gallery(
        [(query, nearest[query].tolist()) for query in queries],
        labels.tolist(),
        split.image,
        split.class_names,
        [distances[query].tolist() for query in queries],
    )


def _figures_of_components(run: Run) -> Iterator[ReportFigure]:
    for part in run.parts():
        name = type(part).__name__
        try:
            figures = dict(run.call(part, "figures") or {})
        except Exception as error:  # a component's figures are its own affair
            yield ReportFigure(f"Figures of {name}", None, problem=one_line(error))
            continue
        for title, figure in figures.items():
            yield _figure_of(name, str(title), figure)


def _figure_of(component: str, title: str, figure: Figure) -> ReportFigure:
    drawn = ReportFigure.drawn(title, lambda: figure)
    return dataclasses.replace(drawn, problem=f"{component}: {drawn.problem}") if drawn.problem else drawn
