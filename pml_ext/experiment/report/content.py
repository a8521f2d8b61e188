"""What a run's report shows, and its writing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tomli_w

from ...errors import ConfigError, UnknownNameError
from ..evaluation import counts
from ..recipe import EvaluationTable, Recipe, is_full, printed, quoted
from ..stages import Stages
from ..view import SAMPLE, View
from .figures import PHASES, figures_of_components, figures_of_run
from .html import Cell, ReportTable, write_report


def write_run_report(view: View, stages: Stages, metrics: Mapping[str, Any], warn: Callable[[str], None]) -> None:
    """Writes ``report.html`` of a finished run; a figure that cannot be drawn is left out with its reason.

    Args:
        view: of the run, with the tested weights in its networks.
        stages: of the run.
        metrics: what stands in ``metrics.json``.
        warn: called with a line per figure that is left out.
    """
    figures = [*figures_of_run(view, stages, metrics), *figures_of_components(view, stages)]
    for figure in figures:
        if figure.problem:
            warn(f"the figure {figure.title!r} is left out of the report: {figure.problem}")
    seconds = metrics["seconds"]
    write_report(
        view.folder / "report.html",
        title=metrics["recipe"],
        subtitle=f"{view.recipe.description}. Seed {metrics['seed']}, {metrics['device']}, "
        f"{seconds['train']:.1f} s of training and {seconds['test']:.1f} s of testing, epoch {metrics['best_epoch']} "
        f"of {view.recipe.schedule.epochs}{_how_chosen(view.recipe.evaluation)}.",
        tables=[_metrics_table(view, metrics), _images_table(view)],
        figures=figures,
        appendix=[*_paper_tables(view.recipe, metrics), _versions_table(metrics)],
        warnings=[*_optimistic(view.recipe.evaluation), *metrics["warnings"]],
        recipe=tomli_w.dumps(view.recipe.as_dict()),
    )


_HEADINGS = {
    "r_precision": "R-prec.",
    "map_at_r": "MAP@R",
    "nmi": "NMI",
    "f1": "F1",
    "purity": "purity",
}


_PROTOCOLS = {"ncm": "class means", "zero_shot": "zero-shot"}


def _heading(name: str) -> str:
    stem, _, number = name.rpartition("_")
    if stem.endswith("_top"):
        return f"{_PROTOCOLS[stem.removesuffix('_top')]}, top-{number}"
    if name.startswith(("recall_at_", "precision_at_")):
        return f"{'Recall' if name.startswith('recall') else 'P'}@{number}"
    return f"{_HEADINGS[stem]}, {number} per class" if stem in _HEADINGS else _HEADINGS.get(name, name)


def _how_chosen(table: EvaluationTable) -> str:
    where = "the test images" if table.select_on == "test" else "held-out training classes"
    return f", chosen by {table.select} on {where}" if table.select else ""


def _optimistic(table: EvaluationTable) -> Iterator[str]:
    if table.select_on == "test":
        yield (
            f'the epoch was chosen by {table.select} on the test images themselves ([evaluation] select_on = "test"), '
            "so that the numbers after training are too good for unseen images"
        )


def _metrics_table(view: View, metrics: Mapping[str, Any]) -> ReportTable:
    phases = [phase for phase in PHASES if phase in metrics]
    names = list(metrics["after"])
    compared = [phase for phase in phases if phase != "training"]  # on other images
    best = {name: max(metrics[phase].get(name, 0) for phase in compared) for name in names}
    rows = [
        [
            Cell(PHASES[phase]),
            *(_percent(metrics[phase].get(name), best[name] if phase in compared else -1) for name in names),
        ]
        for phase in phases
    ]
    apart = view.queries == "query"
    how = "Every query is searched in the gallery" if apart else "Every test image is searched among all others"
    caption = f"{how} by cosine similarity; k-means has as many clusters as classes{' of queries' * apart}."
    if view.tested_training is not None:
        sampled = "" if view.tested_training == "train" else f", {len(view.images(view.tested_training)):,} of them,"
        caption += f" The row of the training images{sampled} shows what is lost on unseen ones."
    return ReportTable(
        f"Retrieval and clustering {'of the queries' if apart else 'on the test images'}",
        ["%", *(_heading(name) for name in names)],
        rows,
        caption,
    )


_SPLITS = {
    "train": "training",
    "validation": "held-out training classes",
    "test": "test",
    "query": "queries",
    "gallery": "gallery",
    SAMPLE: "training images that are tested",
}


def _images_table(view: View) -> ReportTable:
    table = counts(view)
    rows = [
        [Cell(text), *(Cell(f"{table[name][what]:,}") for what in ("images", "classes"))]
        for name, text in _SPLITS.items()
        if name in table
    ]
    return ReportTable("Images", ["", "images", "classes"], rows)


def _percent(value: float | None, best: float) -> Cell:
    return Cell("") if value is None else Cell(f"{100 * value:.1f}", best=value == best)


def _paper_tables(recipe: Recipe, metrics: Mapping[str, Any]) -> Iterator[ReportTable]:
    """What the recipe says of a paper, and the values of its table beside this run's."""
    if recipe.paper is None:
        return
    try:
        place, values = printed(recipe.paper.table), quoted(recipe.paper, recipe.data.name)
    except (ConfigError, UnknownNameError):  # the paper's file has changed since the run
        place, values = None, []
    entries = {key: value for key, value in recipe.paper.model_dump().items() if value}
    if place is not None:
        entries |= {
            "paper": f"{place[0].authors} ({place[0].year}). {place[0].title}. {place[0].url}",
            "table": f"{recipe.paper.table}: {place[1].title}",
        }
        entries["note"] = ". ".join(filter(None, (recipe.paper.note, place[1].note)))
        entries = {key: value for key, value in entries.items() if value and key not in ("row", "column")}
    rows = [[Cell(key), Cell(str(value))] for key, value in entries.items()]
    yield ReportTable("What the paper reports, on its own data", ["", ""], rows)
    if values:
        rows = [
            [
                Cell(f"{value.row}, {value.heading}, {value.column}"),
                _percent(value.value, -1),
                _percent(metrics.get(value.phase, {}).get(value.metric), -1),
            ]
            for value in values
        ]
        yield ReportTable(
            "The paper's values beside this run's",
            ["%", "paper", "this run"],
            rows,
            ""
            if is_full(recipe.paper.table, recipe.data.name)
            else f"The paper's are of its own data, this run's of {recipe.data.name}.",
        )


def _versions_table(metrics: Mapping[str, Any]) -> ReportTable:
    rows = [[Cell(name), Cell(version)] for name, version in metrics["versions"].items()]
    return ReportTable("Versions", ["package", "version"], rows)
