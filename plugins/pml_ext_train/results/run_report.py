"""The report of a run on one page."""

import base64
import contextlib
import io
import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from markupsafe import Markup
from PIL import Image

from pml_ext.errors import ConfigError, UnknownNameError
from pml_ext.evaluation.listed import scores_of_pairs, scores_of_triplets
from pml_ext.evaluation.metrics import SMALLER_IS_BETTER, headline_metric, title_of

from ..data import LabeledImages
from ..files import DamagedError, read_json, write_atomically, write_text
from ..recipe import Quoted, Recipe, is_full, printed, quoted
from ..records import CHOICE
from ..report import ReportFigure, ReportTable, percent, render, short_name
from ..training import Stages, View, nearest
from .figures import figures_of_components, figures_of_run
from .findings import confusions, counts, recall_by_class
from .measurements import tables_of
from .verdict import (
    better_features,
    data_of,
    delivered_phase,
    gain_of_fine_tuning,
    headline,
    is_trained,
    path_of_data,
    phase_titles,
    setback,
    shown_phases,
)

WORST = 10  # classes in a table
_PICTURE = 96  # pixels of a picture in a table, twice its displayed size


def write_run_report(view: View, stages: Stages, metrics: Mapping[str, Any], warn: Callable[[str], None]) -> None:
    """Write ``report.html`` and ``figures/``; the tested weights are loaded."""
    parts = _parts_without_test(view, metrics)
    if view.data.labeled:
        parts |= _parts_of_test(view, stages, metrics, warn)
    write_text(view.folder / "report.html", render("report", **parts))


def _parts_without_test(view: View, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the template's values for data without labels."""
    count = metrics["images"]["train"]["images"]
    return {
        "title": Path(path_of_data(view.recipe)).name or metrics["recipe"],
        "recipe": view.recipe,
        "metrics": metrics,
        "is_trained": is_trained(metrics),
        "run": shlex.quote(str(view.folder)),
        "data": data_of(view.recipe),
        "noun": view.data.noun,
        "settings": tomli_w.dumps(view.recipe.as_dict()),
        "measured": tables_of(metrics),
        "headline": f"{count:,} {view.data.noun} without labels, ready to be searched. Nothing was tested, because "
        "the right answers are not known.",
        "phases": metrics["seconds"],
        "notes": [],
        "gain": "",
        "by_features": "",
        "tables": [],
        "figures": [],
        "appendix": [],
    }


def _parts_of_test(
    view: View, stages: Stages, metrics: Mapping[str, Any], warn: Callable[[str], None]
) -> dict[str, Any]:
    """Write the figures; return the template's values after a test."""
    started = time.perf_counter()
    drawn = [*figures_of_run(view, stages, metrics), *figures_of_components(view, stages)]
    for figure in drawn:
        _write_figure(view, figure, warn)
    drawing_seconds = time.perf_counter() - started

    trained_classes = set(view.images("train").labels.tolist())
    tested_classes = set(view.images(view.queries).labels.tolist())
    of_test = class_tables(view) if view.data.listed is None else [wrong_tuples_table(view)]
    note = setback(view.recipe, metrics)  # the metrics already warn of better features
    return {
        "headline": headline_of_listed(view, metrics) or headline(metrics, bool(trained_classes & tested_classes)),
        "notes": [note] if note else [],
        "gain": gain_of_fine_tuning(view.recipe, metrics),
        "by_features": " --by features" if better_features(metrics, view.folder, view.recipe) else "",
        "phases": {**_seconds_of_trials(view.folder), **metrics["seconds"], "figures": drawing_seconds},
        "tables": [metrics_table(view, metrics), *of_test, _images_table(view)],
        "figures": drawn,
        "appendix": list(paper_tables(view.recipe, metrics)),
    }


def _seconds_of_trials(folder: Path) -> dict[str, float]:
    """Return the seconds of a tool's trials, if any."""
    if not (folder / CHOICE).is_file():
        return {}
    try:
        return {"trials": float(read_json(folder / CHOICE)["seconds"])}
    except (DamagedError, KeyError):  # a run of an earlier version has no time
        return {}


def _write_figure(view: View, figure: ReportFigure, warn: Callable[[str], None]) -> None:
    """Write a figure; if it could not be drawn, warn and delete an earlier one."""
    name = re.sub(r"[^a-z0-9]+", "-", figure.title.lower()).strip("-")
    place = view.folder / "figures" / f"{name}.png"
    if figure.problem:
        warn(f"the figure {figure.title!r} is left out of the report: {figure.problem}")
        place.unlink(missing_ok=True)
    else:
        write_atomically(place, lambda path: path.write_bytes(figure.png))


def _images_table(view: View) -> ReportTable:
    listed = "classes" if view.data.listed is None else view.data.listed.kind
    rows = [[name, f"{numbers['images']:,}", f"{numbers[listed]:,}"] for name, numbers in counts(view).items()]
    return ReportTable(view.data.noun.capitalize(), ["split", view.data.noun, listed], rows)


def headline_of_listed(view: View, metrics: Mapping[str, Any]) -> str:
    """Return a sentence on the test of listed tuples; empty for labels."""
    if view.data.listed is None:
        return ""
    name = headline_metric(metrics["after"])
    text = "The anchor is more similar to the positive than to the negative in {} % of the test triplets"
    if view.data.listed.kind == "pairs":
        text = "A matching test pair is more similar than another pair in {} % of cases"
    text = text.format(percent(metrics["after"][name]))
    if "raw" not in metrics:
        return f"{text}."
    return f"{text}; by {phase_titles(view.data.noun)['raw']} in {percent(metrics['raw'][name])} %."


def metrics_table(view: View, metrics: Mapping[str, Any]) -> ReportTable:
    """Return a row per metric and a column per phase; the best tested value is bold."""
    titles = shown_phases(metrics)
    phases = list(titles)
    same = {"precision_at_1"} if "recall_at_1" in metrics["after"] else ()
    rows = [[title_of(name), *_cells(metrics, name, phases)] for name in metrics["after"] if name not in same]

    if "frozen" in metrics and is_trained(metrics):  # the trunk is pretrained
        titles["after"] = "head" if view.frozen else "fine-tuned network"
        if "trained_head" in metrics:
            titles["after"] += ", head fitted again"
    delivered = delivered_phase(metrics)
    titles[delivered] = Markup("<mark>{}</mark>").format(titles[delivered])
    where = "of the queries" if view.queries == "query" else f"on the test {view.data.noun}"
    subject = "Retrieval and clustering" if view.data.listed is None else view.data.listed.kind.capitalize()
    caption = f"{_metrics_caption(view, metrics)} The underlined column is what the run delivers."
    return ReportTable(f"{subject} {where}", ["%", *titles.values()], rows, caption)


def _cells(metrics: Mapping[str, Any], name: str, phases: list[str]) -> list[str]:
    tested_phases = [phase for phase in phases if phase != "training"]  # of the same images
    values = [metrics[phase][name] for phase in tested_phases if name in metrics[phase]]
    best = min(values) if name in SMALLER_IS_BETTER else max(values)
    cells = []
    for phase in phases:
        value = metrics[phase].get(name)
        cells.append(percent(value, bold=phase != "training" and value == best))
    return cells


def _metrics_caption(view: View, metrics: Mapping[str, Any]) -> str:
    noun = view.data.noun
    training = view.data.tested_training
    if view.data.listed is not None:
        caption = f"The listed {view.data.unit} of the test, by cosine similarity."
        if view.data.listed.kind == "pairs" and training is not None:
            caption += " The threshold is the best one on training pairs, chosen anew in each column."
        return caption
    searched, classes = f"Every test {noun[:-1]} is searched among all others", "classes"
    if view.queries == "query":
        searched, classes = "Every query is searched in the gallery", "classes of queries"
    caption = f"{searched} by cosine similarity; k-means has as many clusters as {classes}.{_queries_caption(metrics)}"
    if training is None:
        return caption
    sampled = f", {len(view.images(training)):,} of them," if training != "train" else ""
    return f"{caption} The column of the training {noun}{sampled} shows how much is lost on new ones."


def _queries_caption(metrics: Mapping[str, Any]) -> str:
    titles: dict[int, list[str]] = {}
    for name, number in metrics.get("queries", {}).items():
        titles.setdefault(number, []).append(title_of(name))
    if len(titles) < 2:
        return ""
    parts = [f"{', '.join(names)} of {number:,} queries" for number, names in titles.items()]
    return f" Shares are over different numbers: {'; '.join(parts)}."


def wrong_tuples_table(view: View) -> ReportTable:
    """Return the most wrong test tuples."""
    images = view.images(view.queries)
    assert images.tuples is not None
    embeddings = view.embeddings(view.queries)
    rows: list[list[str]] = []
    if images.tuples.same is None:
        known, others = scores_of_triplets(embeddings, images.tuples)
        for number in np.argsort(known - others, kind="stable")[:WORST].tolist():
            shown = [_shown(images, item, "") for item in images.tuples.rows[number].tolist()]
            rows.append([str(len(rows) + 1), *shown, f"{known[number]:.2f}", f"{others[number]:.2f}"])
        columns = ["", "anchor", "positive", "negative", "similarity to the positive", "to the negative"]
        return ReportTable("The triplets that are most wrong", columns, rows)
    scores = scores_of_pairs(embeddings, images.tuples)
    same = images.tuples.same.numpy()
    order = np.argsort(scores, kind="stable")
    least = order[same[order]][: WORST // 2]
    most = order[~same[order]][::-1][: WORST // 2]
    for number in [*least.tolist(), *most.tolist()]:
        shown = [_shown(images, item, "") for item in images.tuples.rows[number].tolist()]
        rows.append(["the same" if same[number] else "not the same", *shown, f"{scores[number]:.2f}"])
    return ReportTable("The pairs that are most wrong", ["listed as", "", "", "similarity"], rows)


def class_tables(view: View) -> Iterator[ReportTable]:
    """Return the worst classes by Recall@1, and the most frequent confusions."""
    by_class = recall_by_class(view)
    if not by_class:  # no query has a right answer
        return
    rows = [[name, percent(value), *_confused_images(view, name)] for name, value in list(by_class.items())[:WORST]]
    caption = ""
    if len(by_class) > WORST:
        caption = f"The {len(rows)} worst of {len(by_class)} classes; metrics.json has all."
    yield ReportTable("Recall@1 by class, the worst first", ["%", "Recall@1", "a query", "taken for"], rows, caption)

    confused = [[f"{query} taken for {other}", str(count)] for query, other, count in confusions(view)]
    if confused:
        yield ReportTable("The most frequent confusions", ["", "times"], confused)


def _confused_images(view: View, name: str) -> list[str]:
    """Return a query of a class, and an image that it was taken for."""
    queries = view.images(view.queries)
    searched = view.images(view.data.gallery_of(view.queries))
    result = nearest(view, view.queries)
    labels = queries.labels.tolist()
    members = [query for query, label in enumerate(labels) if str(queries.class_names[label]) == name]
    by_wrong_label: dict[int, list[tuple[int, int]]] = {}  # queries, and their nearest images, of a wrong class
    for query in members:
        other = int(result.indices[query, 0])
        is_mistaken = other >= 0 and not bool(result.right[query, 0])  # -1: the query has no gallery
        if is_mistaken:
            by_wrong_label.setdefault(int(searched.labels[other]), []).append((query, other))
    if not by_wrong_label:
        return [_shown(queries, members[0], name), ""]
    most_frequent = max(by_wrong_label, key=lambda label: len(by_wrong_label[label]))  # the first of several
    query, other = by_wrong_label[most_frequent][0]
    wrong_name = str(searched.class_names[most_frequent])
    taken_for = Markup("{} {}").format(_shown(searched, other, wrong_name), wrong_name)
    return [_shown(queries, query, name), taken_for]


def _shown(images: LabeledImages, index: int, name: str) -> str:
    if images.vector_size is not None:
        return short_name(images.ids[index])
    shown = Image.fromarray(images.image(index).expand(3, -1, -1).permute(1, 2, 0).cpu().numpy())
    shown.thumbnail((_PICTURE, _PICTURE))
    buffer = io.BytesIO()
    shown.save(buffer, "PNG")
    return Markup('<img class="keeps-colors" alt="{}" src="{}">').format(
        name, f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
    )


def paper_tables(recipe: Recipe, metrics: Mapping[str, Any]) -> Iterator[ReportTable]:
    """Return the recipe's ``[paper]``, and the paper's values beside the run's."""
    if recipe.paper is None:
        return
    place = None
    values: list[Quoted] = []
    with contextlib.suppress(ConfigError, UnknownNameError):  # the paper's file has changed since the run
        values = quoted(recipe.paper, recipe.data.name)
        place = printed(recipe.paper.table)
    entries = recipe.paper.model_dump()
    if place is not None:
        paper, table = place
        entries |= {
            "row": "",
            "column": "",
            "table": f"{recipe.paper.table}: {table.title}",
            "paper": f"{paper.authors} ({paper.year}). {paper.title}. {paper.url}",
            "note": ". ".join(filter(None, (recipe.paper.note, table.note))),
        }
    rows = [[key, str(value)] for key, value in entries.items() if value]
    yield ReportTable("What the paper reports, on its own data", ["", ""], rows)
    if not values:
        return

    rows = []
    for value in values:
        name = f"{value.row}, {value.heading}, {value.column}"
        measured = metrics.get(value.phase, {}).get(value.metric)
        rows.append([name, percent(value.value), percent(measured)])
    other_data = f"The paper's values are on its own data, this run's on {recipe.data.name}."
    caption = "" if is_full(recipe.paper.table, recipe.data.name) else other_data
    yield ReportTable("The paper's values beside this run's", ["%", "paper", "this run"], rows, caption)
