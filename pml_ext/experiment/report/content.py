"""Tables and texts of a run's report, and its writing as one HTML file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jinja2
import tomli_w
from markupsafe import Markup

from ...errors import ConfigError, UnknownNameError
from ...evaluation.metrics import metrics_of
from ...files import write_atomically, write_text
from ..evaluation import counts
from ..recipe import Recipe, is_full, printed, quoted
from ..recipe.schema import TOP
from ..stages import Stages
from ..view import View
from .figures import PHASES, figures_of_components, figures_of_run

_PROTOCOLS = {"ncm": "class means", "zero_shot": "zero-shot"}


class ReportTable(NamedTuple):
    """A table with a title, columns, rows of cells, and a caption below it."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""


def write_run_report(view: View, stages: Stages, metrics: Mapping[str, Any], warn: Callable[[str], None]) -> None:
    """Write ``report.html`` of a finished run, and its figures as PNG files in ``figures/``.

    Args:
        view: of the run, with the tested weights in its networks.
        stages: of the run.
        metrics: contents of ``metrics.json``.
        warn: called with a line per figure that could not be drawn.
    """
    figures = [*figures_of_run(view, stages, metrics), *figures_of_components(view, stages)]
    for figure in figures:
        place = view.folder / "figures" / figure.file_name
        if figure.problem:
            warn(f"the figure {figure.title!r} is left out of the report: {figure.problem}")
            place.unlink(missing_ok=True)  # of an earlier report
        else:
            write_atomically(place, lambda path, png=figure.png: path.write_bytes(png))  # type: ignore[misc]
    seconds, table, warnings = metrics["seconds"], view.recipe.evaluation, list(metrics["warnings"])
    chosen = f", chosen by {table.select} on held-out training classes" if table.select else ""
    if table.select_on == "test":
        chosen = f", chosen by {table.select} on the test images"
        warnings.insert(
            0,
            f'the epoch was chosen by {table.select} on the test images themselves ([evaluation] select_on = "test"), '
            "so that the numbers after training are too good for unseen images",
        )
    images = ([name, f"{each['images']:,}", f"{each['classes']:,}"] for name, each in counts(view).items())
    environment = jinja2.Environment(loader=jinja2.PackageLoader("pml_ext.experiment.report", "."), autoescape=True)
    text = environment.get_template("report.html.jinja").render(
        title=metrics["recipe"],
        subtitle=f"{view.recipe.description}. Seed {metrics['seed']}, {metrics['device']}, "
        f"{seconds['train']:.1f} s of training and {seconds['test']:.1f} s of testing, epoch {metrics['best_epoch']} "
        f"of {view.recipe.schedule.epochs}{chosen}.",
        tables=[metrics_table(view, metrics), ReportTable("Images", ["split", "images", "classes"], [*images])],
        figures=figures,
        appendix=[
            *paper_tables(view.recipe, metrics),
            ReportTable("Versions", ["package", "version"], [*metrics["versions"].items()]),
        ],
        warnings=warnings,
        recipe=tomli_w.dumps(view.recipe.as_dict()),
    )
    write_text(view.folder / "report.html", text)


def metrics_table(view: View, metrics: Mapping[str, Any]) -> ReportTable:
    """Return one row per metric and one column per phase; the best value on the tested images is bold."""
    table, phases = view.recipe.evaluation, [phase for phase in PHASES if phase in metrics]
    titles = {
        each.name: each.title for each in metrics_of(table.recall_at, table.precision_at, table.clusters_per_class)
    }
    titles |= {f"{prefix}_top_{k}": f"{text}, top-{k}" for prefix, text in _PROTOCOLS.items() for k in TOP}
    rows = []
    for name in metrics["after"]:
        best = max(metrics[phase].get(name, 0) for phase in phases if phase != "training")  # on other images
        values = ((phase, metrics[phase].get(name)) for phase in phases)
        cells = (_percent(value, bold=phase != "training" and value == best) for phase, value in values)
        rows.append([titles.get(name, name), *cells])
    apart, training = view.queries == "query", view.tested_training
    searched = "query is searched in the gallery" if apart else "test image is searched among all others"
    caption = f"Every {searched} by cosine similarity; k-means has as many clusters as classes{' of queries' * apart}."
    if training is not None:
        sampled = "" if training == "train" else f", {len(view.images(training)):,} images of them,"
        caption += f" The column of the training classes{sampled} shows how much is lost on unseen ones."
    where = "of the queries" if apart else "on the test images"
    return ReportTable(f"Retrieval and clustering {where}", ["%", *(PHASES[phase] for phase in phases)], rows, caption)


def _percent(value: float | None, bold: bool = False) -> str:
    text = "" if value is None else f"{100 * value:.1f}"
    return Markup("<b>{}</b>").format(text) if bold else text


def paper_tables(recipe: Recipe, metrics: Mapping[str, Any]) -> Iterator[ReportTable]:
    """Return the recipe's ``[paper]``, and the values of the paper's table beside the run's."""
    if recipe.paper is None:
        return
    try:
        place, values = printed(recipe.paper.table), quoted(recipe.paper, recipe.data.name)
    except (ConfigError, UnknownNameError):  # the paper's file has changed since the run
        place, values = None, []
    entries = recipe.paper.model_dump()
    if place is not None:
        paper, table = place
        entries |= {"row": "", "column": "", "table": f"{recipe.paper.table}: {table.title}"}
        entries |= {"paper": f"{paper.authors} ({paper.year}). {paper.title}. {paper.url}"}
        entries["note"] = ". ".join(filter(None, (recipe.paper.note, table.note)))
    rows = [[key, str(value)] for key, value in entries.items() if value]
    yield ReportTable("What the paper reports, on its own data", ["", ""], rows)
    if values:
        rows = [
            [
                f"{value.row}, {value.heading}, {value.column}",
                _percent(value.value),
                _percent(metrics.get(value.phase, {}).get(value.metric)),
            ]
            for value in values
        ]
        own = is_full(recipe.paper.table, recipe.data.name)
        caption = "" if own else f"The paper's are of its own data, this run's of {recipe.data.name}."
        yield ReportTable("The paper's values beside this run's", ["%", "paper", "this run"], rows, caption)
