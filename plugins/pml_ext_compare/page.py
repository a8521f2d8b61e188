"""The files of a comparison: JSON, CSV, Markdown, LaTeX, and a page."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pml_ext.distributed import choose_device
from pml_ext.evaluation import title_of
from pml_ext_train.files import write_json, write_text, writing
from pml_ext_train.records import metric_by_epoch, write_csv
from pml_ext_train.report import ReportFigure, ReportTable, draw, epoch_curves, render

from .groups import Group
from .queries import compare_queries
from .tables import best_first, differences_table, latex_table, markdown_table, remarks, rows_table, tuning_table

_ROW_COLUMNS = ("recipe", "trials", "seconds", "selection")
_METRIC_COLUMNS = ("mean", "std", "low", "high")
Curves = dict[str, tuple[list[int], list[float]]]  # epochs and values, by name of the row


def write_comparison(
    out: Path,
    groups: Sequence[Group],
    result: Mapping[str, Any],
    latex: bool = False,
    device: str = "auto",
    data: Path | None = None,
) -> Path:
    """Write the comparison as JSON, CSV, Markdown, HTML, and LaTeX if asked; return the page."""
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    tables = [rows_table(result)]
    if result["differences"]:
        tables.append(differences_table(result))

    write_json(out / "comparison.json", result)
    write_csv(out / "comparison.csv", _csv_rows(result))
    write_text(out / "comparison.md", _markdown(result, tables))
    if latex:
        write_text(out / "comparison.tex", latex_table(tables[0]))

    query_tables, query_figures = compare_queries(groups, result, choose_device(device), data)
    tuning_tables = [tuning_table(study) for study in result.get("tuning", ())]
    rows = {metric: [row for row in result["recipes"] if row[metric]["values"]] for metric in result["metrics"]}
    drawn = {metric: best_first(with_values, metric) for metric, with_values in rows.items() if with_values}
    html = render(
        "comparison",
        title=f"Comparison of {len(groups)} recipes",
        result=result,
        drawn=drawn,
        remarks=remarks(result),
        tables=tables,
        more=[*query_tables, *tuning_tables],
        figures=[*_curve_figures(groups, result["metrics"]), *query_figures],
    )
    page = out / "comparison.html"
    write_text(page, html)
    return page


def _csv_rows(result: Mapping[str, Any]) -> list[list[Any]]:
    columns = [*_ROW_COLUMNS, "metric", "seeds", *_METRIC_COLUMNS, "values", "unequal_settings", "errors"]
    rows: list[list[Any]] = [columns]
    for row in result["recipes"]:
        about_row = [row[key] for key in _ROW_COLUMNS]
        unequal_settings = "; ".join(row["unequal_settings"])
        errors = "; ".join(row["errors"].values())
        for metric in result["metrics"]:
            about_metric = [row[metric][key] for key in _METRIC_COLUMNS]
            values = row[metric]["values"]
            texts = [" ".join(map(str, values)), unequal_settings, errors]
            rows.append([*about_row, metric, len(values), *about_metric, *texts])
    return rows


def _markdown(result: Mapping[str, Any], tables: Sequence[ReportTable]) -> str:
    lines = [f"# Comparison: {result['phase']}, %", ""]
    for table in tables:
        lines += [*markdown_table(table), "", table.caption, ""]
    if result["best"]:
        lines += [result["best"], ""]
    lines += [f"- {sentence}" for sentence in (*result["sentences"], *remarks(result))]
    return "\n".join(lines) + "\n"


def _curve_figures(groups: Sequence[Group], metrics: Sequence[str]) -> list[ReportFigure]:
    found = []
    for images in ("validation", "test"):
        by_title = {title_of(metric): curves_of(groups, metric, images) for metric in metrics}
        panels = {title: curves for title, curves in by_title.items() if curves}
        if panels:
            title = f"Metrics of {images} images over the epochs"
            found.append(draw(title, functools.partial(epoch_curves, panels), "Means over the seeds and folds."))
    return found


def curves_of(groups: Sequence[Group], metric: str, images: str) -> Curves:
    """Epochs and mean values of a metric by group, if it was recorded between epochs.

    ``images``: ``"validation"`` or ``"test"``.
    """
    curves: Curves = {}
    for group in groups:
        recorded = [metric_by_epoch(Path(run["folder"]), metric) for run in group.all_runs()]
        by_run = [of_run[images] for of_run in recorded if images in of_run]
        if not by_run:
            continue
        epochs, _ = by_run[0]
        same_epochs = [series for series in by_run if series[0] == epochs]
        if len(epochs) > 1:
            curves[group.name] = epochs, np.mean([values for _, values in same_epochs], axis=0).tolist()
    return curves
