"""The files of a comparison: JSON, CSV, Markdown, LaTeX, and a page with points, curves and queries side by side."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pml_ext.tool import (
    CURVE,
    VALIDATION,
    DataError,
    ReportFigure,
    ReportTable,
    Series,
    View,
    checkpoint,
    choose_device,
    draw,
    figures,
    load_recipe,
    metric_series,
    nearest,
    one_line,
    percent,
    render,
    short_name,
    title_of,
    write_csv,
    write_json,
    write_text,
)

from .comparing import Group

QUERIES = 8  # drawn side by side


def write_comparison(
    out: Path,
    groups: Sequence[Group],
    result: Mapping[str, Any],
    latex: bool = False,
    device: str = "auto",
    data: Path | None = None,
) -> Path:
    """Write ``comparison.json``, ``.csv``, ``.md`` and ``.html``, and with ``latex`` ``.tex``; return the page."""
    write_json(out / "comparison.json", result)
    about, keys = ["recipe", "trials", "seconds", "selection"], ("mean", "std", "low", "high")
    rows: list[list[Any]] = [[*about, "metric", "seeds", *keys, "values", "marks", "errors"]]
    for row, metric in itertools.product(result["recipes"], result["metrics"]):
        mine = row[metric]
        listed = [" ".join(map(str, mine["values"])), "; ".join(row["marks"]), "; ".join(row["errors"].values())]
        rows.append([*map(row.get, about), metric, len(mine["values"]), *map(mine.get, keys), *listed])
    write_csv(out / "comparison.csv", rows)
    shown = [rows_table(result), *([differences_table(result)] if result["differences"] else [])]
    lines = [f"# Comparison: {result['phase']}, %", ""]
    for each in shown:
        lines += [f"| {' | '.join(row)} |" for row in (each.columns, ["---"] * len(each.columns), *each.rows)]
        lines += ["", each.caption, ""]
    lines += [f"- {sentence}" for sentence in [*result["sentences"], *remarks(result)]]
    write_text(out / "comparison.md", "\n".join(lines) + "\n")
    if latex:
        write_text(out / "comparison.tex", latex_table(shown[0]))
    tables, drawn = _queries(groups, result, choose_device(device), data)
    panels = {title_of(metric): curves for metric in result["metrics"] if (curves := _curves(groups, metric))}
    if panels:
        caption = "On validation images, or on test images where the recipe tests epochs; means over the seeds."
        drawn.insert(0, draw("Metrics over the epochs", lambda: figures.epoch_curves(panels), caption))
    more = [*tables, *map(tuning_table, result.get("tuning", ()))]
    title, notes = f"Comparison of {len(groups)} recipes", remarks(result)
    page = render("comparison", title=title, result=result, remarks=notes, tables=shown, more=more, figures=drawn)
    write_text(out / "comparison.html", page)
    return out / "comparison.html"


def rows_table(result: Mapping[str, Any]) -> ReportTable:
    """Return a row per recipe: means with their 95 % intervals, and the values that its paper prints."""
    metrics, rows = result["metrics"], []
    printed = [name for name in metrics if any(row[name]["paper"] for row in result["recipes"])]
    for row in result["recipes"]:
        cells = [f"{row['recipe']} *" if row["marks"] else row["recipe"], str(len(row["seeds"]))]
        cells += [_interval(row[name]) for name in metrics]
        cells += [", ".join(dict.fromkeys(each["text"] for each in row[name]["paper"])) for name in printed]
        seconds = "" if row["seconds"] is None else f"{row['seconds']:.1f}"
        rows.append([*cells, str(row["trials"]), seconds, row["selection"]])
    columns = ["recipe", "seeds", *map(title_of, metrics), *(f"{title_of(name)} in the paper" for name in printed)]
    caption = "Mean over the seeds and its 95 % interval by Student's t, cut at 0 and 100; training seconds of one run."
    if any(not each["same_data"] for row in result["recipes"] for name in printed for each in row[name]["paper"]):
        caption += " The papers' values are of their own data and networks."
    return ReportTable("Rows", [*columns, "trials", "seconds", "selection"], rows, caption)


def differences_table(result: Mapping[str, Any]) -> ReportTable:
    """Return a row per recipe and metric: the paired difference from the baseline, and its tests."""
    rows = []
    for row in result["differences"]:
        for metric in result["metrics"]:
            mine = row[metric]
            better = [mine[key] for key in ("better", "better_low", "better_high")]
            improvement = "" if None in better else "{:.2f} [{:.2f}, {:.2f}]".format(*better)
            more = "" if mine["p"] is None else "> 1000" if mine["wanted"] is None else str(mine["wanted"])
            tests = ["" if mine[key] is None else f"{mine[key]:.3g}" for key in ("p", "p_holm", "p_permutation")]
            about = [row["recipe"], title_of(metric), str(mine["pairs"]), _interval(mine, "+")]
            rows.append([*about, *tests, improvement, more])
    columns = ["difference from the baseline", "metric", "pairs", "difference"]
    columns += ["p", "p, Holm", "p, permutation", "P(better)", "pairs wanted"]
    caption = (
        f"Differences from {result['differences_from']}, paired by seed, in points. p: paired t-test; Holm-corrected "
        "over the rows; by sign flips. P(better): share of seeds above the baseline, with a bootstrap interval, or "
        "Clopper-Pearson's where all seeds agree. Last: pairs that show such a difference with a probability of 80 %."
    )
    return ReportTable("Differences", columns, rows, caption)


def tuning_table(about: Mapping[str, Any]) -> ReportTable:
    """Return a study's trials, with ranges, importance and best values in the caption."""

    def cell(value: Any) -> str:
        return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)

    rows = []
    for each in about["trials"]:
        values = [each["value"], each["seconds"], *map(each["values"].get, about["ranges"])]
        rows.append([str(each["number"]), each["state"], *map(cell, values)])
    texts = [
        f"{name.capitalize()}: " + ", ".join(f"{key} {cell(value)}" for key, value in about[name].items())
        for name in ("best", "importance")
        if about[name]
    ]
    ranges = (
        f"{key} " + ", ".join(f"{name} {value}" for name, value in each.items() if value)
        for key, each in about["ranges"].items()
    )
    chosen = f"by {title_of(about['metric'])} of {about['chosen on']}"
    sampler = f"{about['sampler']} sampler, {about['pruner']} pruner, {chosen}"
    caption = ". ".join([*texts, f"Ranges: {'; '.join(ranges)}", sampler]) + "."
    columns = ["trial", "state", "value", "seconds", *about["ranges"]]
    return ReportTable(f"Trials of {about['recipe']}", columns, rows, caption)


def remarks(result: Mapping[str, Any]) -> list[str]:
    """Return a text for each unequal setting and each failed run."""
    marks = [f"* {row['recipe']}: {mark}" for row in result["recipes"] for mark in row["marks"]]
    failed = [f"{name} failed: {text}" for row in result["recipes"] for name, text in row["errors"].items()]
    return [*marks, *failed]


def latex_table(table: ReportTable) -> str:
    """Return a table for LaTeX with the package booktabs."""
    escape = str.maketrans({letter: f"\\{letter}" for letter in "&%$#_{}"})
    lines = [" & ".join(cell.translate(escape) for cell in row) + r" \\" for row in (table.columns, *table.rows)]
    lines = [rf"\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}", r"\toprule", lines[0], r"\midrule", *lines[1:]]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _interval(about: Mapping[str, float | None], sign: str = "") -> str:
    mean, low, high = (percent(about[key], sign) for key in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]" if low else mean


def _curves(groups: Sequence[Group], metric: str) -> Series:
    """Return epochs and means over the seeds of a metric that the runs recorded between epochs, by group."""
    curves = {}
    for group in groups:
        series = [metric_series(folder, metric) for folder in group.folders.values()]
        found = [each.get(VALIDATION) or each.get(CURVE) for each in series]
        known = [each for each in found if each is not None and found[0] is not None and each[0] == found[0][0]]
        if known and len(known[0][0]) > 1:
            curves[group.name] = known[0][0], np.mean([values for _, values in known], axis=0).tolist()
    return curves


def _queries(
    groups: Sequence[Group], result: Mapping[str, Any], device: str, data: Path | None
) -> tuple[list[ReportTable], list[ReportFigure]]:
    """Return how often one row finds a query that the baseline misses, and such queries with each row's nearest image.

    The first seed of each row is searched, by Euclidean distance of the embeddings.
    """
    found: dict[str, tuple[Any, Any]] = {}  # by row: whether the nearest image is correct, and its index
    first: View | None = None
    problems = []
    for group in (each for each in groups if each.folders):
        seed, folder = min(group.folders.items())
        try:
            recipe = load_recipe(str(folder / "recipe.toml"))
            view = View(recipe, folder, seed, device, data)
            state = checkpoint.load(view.checkpoint("model"), view.device, view.identity)
            view.check_listing(state.get("listing"))
            view.trunk.load_state_dict(state["trunk"])
            view.embedder.load_state_dict(state["embedder"])
            searched = nearest(view, view.queries)
            first = first or view
            if not np.array_equal(view.images(view.queries).labels, first.images(first.queries).labels):
                raise DataError("its test images are others")
            found[group.name] = searched.right[:, 0].cpu(), searched.indices[:, 0].cpu()
        except Exception as error:  # moved data or a damaged file: draw the page without the row
            problem = str(error) if isinstance(error, DataError) else one_line(error)
            problems.append(ReportFigure(f"Queries of {group.name}", problem=problem))
    if first is None or len(found) < 2:
        return [], problems
    base = result["differences_from"] if result["differences_from"] in found else next(iter(found))
    mine = found[base][0]
    rows = [
        [name, *(str(int(each.sum())) for each in (right & ~mine, mine & ~right, right & mine))]
        for name, (right, _) in found.items()
        if name != base
    ]
    caption = f"Queries whose nearest image is right, of {len(mine):,}; the first seed of each row, beside {base}."
    table = ReportTable("Queries", ["row", "found here alone", "found by the baseline alone", "by both"], rows, caption)
    finders = torch.stack([right for right, _ in found.values()]).sum(dim=0)
    split = torch.minimum(finders, len(found) - finders)
    order = torch.randperm(len(split), generator=torch.Generator().manual_seed(0))
    chosen = order[split[order].argsort(descending=True, stable=True)][:QUERIES].tolist()
    view = first

    def side_by_side() -> Any:
        queries, gallery, cells = view.images(view.queries), view.images(view.gallery_of(view.queries)), []
        for query in chosen:
            name = short_name(queries.class_names[queries.labels[query]])
            cells.append([(queries.image(query), f"query\n{name}", figures.GRAY)])
            for number, (right, indices) in enumerate(found.values(), start=1):
                image = gallery.image(int(indices[query]))
                cells[-1].append(figures.answer(image, f"{number}", bool(right[query])))
        return figures.gallery(cells)

    legend = "; ".join(f"{number}: {name}" for number, name in enumerate(found, start=1))
    caption = f"The nearest image by each row, of queries about which the rows differ most. {legend}."
    return [table], [draw("The same queries side by side", side_by_side, caption, photographs=True), *problems]
