"""The report of a run: its figures and tables on one page."""

from __future__ import annotations

import base64
import io
import re
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import ConfigError, UnknownNameError, needs_extra, one_line
from ..evaluation import Evaluation, figures
from ..evaluation.fonts import short_name
from ..evaluation.metrics import title_of
from ..files import write_atomically, write_text
from ..recipe import Recipe, is_full, printed, quoted
from ..report import ReportFigure, ReportTable, draw, percent, render
from .checkpoint import load
from .evaluation import confusions, counts, nearest, recall_by_class
from .records import CURVE, VALIDATION, Series, loss_series, metric_series
from .stages import Stages
from .view import View

with needs_extra("train", "a report"):
    import tomli_w
    from markupsafe import Markup
    from matplotlib.figure import Figure
    from PIL import Image

PHASES = {
    "raw": "raw pixels",
    "frozen": "frozen trunk",
    "pca": "frozen trunk, PCA",
    "before": "untrained network",
    "after": "trained network",
    "training": "trained network, training images",
    "learned_metric": "trained network, learned metric",
    "shortlist": "trained network, learned metric on a shortlist",
}
WORST = 10  # classes in a table
_PICTURE = 96  # pixels of a picture in a table, twice its displayed size


def figures_of_run(view: View, stages: Stages, metrics: Mapping[str, Any]) -> Iterator[ReportFigure]:
    """Draw the figures that every run has: losses, curves, similarities, projections and nearest neighbors."""
    table, queries, few = view.recipe.evaluation, view.queries, view.recipe.evaluation.figures == "few"
    losses = (module for stage in stages for module in stage.loss.modules())
    terms = [name for module in losses for name in getattr(module, "_record_these_stats", [])]
    if series := loss_series(view.folder, [name for name in terms if name.endswith(("_loss", "_value"))]):
        caption = f"{', '.join(series).capitalize()}: in every iteration, and smoothed."
        yield draw("The loss and its terms", lambda: figures.loss_curves(series), caption)
    kind, gallery_kind = ("test images", "test images") if queries == "test" else ("queries", "gallery images")
    panels: dict[str, Series] = {}
    for metric in filter(None, dict.fromkeys(["recall_at_1", "map_at_r", table.select])):
        if curves := metric_series(view.folder, metric):
            names = {VALIDATION: table.validated_on, CURVE: kind}
            panels[title_of(metric)] = {names[name]: curve for name, curve in curves.items()}
    if panels and not few:
        images = f"the {kind} themselves" if table.select_on == "test" else f"{table.validated_on} alone"
        chosen = "The last epoch is tested."
        if table.select is not None:
            chosen = f"The epoch is chosen by {title_of(table.select)} on {images}."
        yield draw("Metrics over the epochs", lambda: figures.epoch_curves(panels), chosen)
    if not few:
        phases = [phase for phase in ("raw", "before", "after", "training") if phase in metrics]
        by_k = {PHASES[phase]: {k: metrics[phase][f"recall_at_{k}"] for k in table.recall_at} for phase in phases}
        caption = f"The share of {kind} with an image of their class among the K nearest."
        yield draw("Recall@K before and after training", lambda: figures.recall_curve(by_k), caption)
    test, labels = view.embeddings(queries), view.true_labels(queries)
    compared = {kind: (test, labels)}
    if (training := view.tested_training) is not None:
        compared = {"training images": (view.embeddings(training), view.true_labels(training)), **compared}
    caption = "Retrieval is easier where the two lie further apart; the legends give mean and standard deviation."
    title = "Similarities of positive and negative pairs"
    yield draw(title, lambda: figures.similarity_distributions(compared), caption)

    def projected() -> Figure:
        parts = {"after training": (test, labels)}
        if table.baselines:
            before = load(view.checkpoint("before"), view.device, view.identity)
            parts = {"before training": (before["embeddings"], labels), **parts}
        return figures.projections(parts, view.splits[queries].class_names, seed=view.seed)

    if not few:
        yield draw(f"The embeddings of {kind} in two dimensions: t-SNE", projected, "Colored by class.")
    yield draw(
        f"Queries and their nearest {gallery_kind}",
        lambda: _gallery(view, nearest(view, queries)),
        "Half of the queries have a wrong nearest image, where available, of the worst classes first. Frames: green "
        "(✓) for the query's class, red (✗) for another. Numbers: Euclidean distances.",
        photographs=True,
    )
    if not few:
        caption = "Four of each of some classes, augmented as in training."
        yield draw("Training images as the network saw them", lambda: _batch(view), caption, photographs=True)


def figures_of_components(view: View, stages: Stages) -> Iterator[ReportFigure]:
    """Draw the figures of the run's components that have a method ``figures(run)``."""
    for part in stages.parts():
        name = type(part).__name__
        try:
            for title, figure in dict(view.call(part, "figures") or {}).items():
                yield draw(str(title), lambda figure=figure: figure, owner=f"{name}: ")  # type: ignore[misc]
        except (Exception, SystemExit) as error:  # raised by a component's code
            yield ReportFigure(f"Figures of {name}", problem=one_line(error))


def _gallery(view: View, result: Evaluation) -> Figure:
    """Draw eight queries, half of them failures, with the nearest images of a search and their distances."""
    queries, shown = view.images(view.queries), view.images(view.gallery_of(view.queries))
    order = torch.randperm(len(queries), generator=torch.Generator().manual_seed(view.seed))
    wrong = ~result.right[:, :1].any(dim=1)
    failures, successes = order[wrong[order]].tolist(), order[~wrong[order]].tolist()
    rank = {name: place for place, name in enumerate(recall_by_class(view))}
    failures.sort(key=lambda query: rank[str(queries.class_names[queries.labels[query]])])
    rows = []
    for query in [*failures[:4], *successes][:8]:
        label = int(queries.labels[query])
        rows.append([(queries.image(query), f"query\n{short_name(queries.class_names[label])}", figures.GRAY)])
        for index, distance in zip(result.indices[query].tolist(), result.distances[query].tolist(), strict=True):
            other = int(shown.labels[index])
            caption = f"{distance:.2f}\n{short_name(queries.class_names[other])}"
            rows[-1].append(figures.answer(shown.image(index), caption, other == label))
    return figures.gallery(rows)


def _batch(view: View) -> Figure:
    """Draw four augmented training images of each of six classes."""
    images, generator = view.training_images, np.random.default_rng(view.seed)
    rows = []
    with torch.random.fork_rng([]):
        torch.manual_seed(view.seed)
        for label in generator.permutation(np.unique(images.labels))[:6].tolist():
            members = generator.permutation(np.flatnonzero(images.labels == label))[:4].tolist()
            name = short_name(images.class_names[label])
            rows.append([(_as_bytes(images[member][0]), name, figures.GRAY) for member in members])
    # two classes side by side
    return figures.gallery([[*chain(*rows[start : start + 2])] for start in range(0, len(rows), 2)])


def _as_bytes(image: Tensor) -> Tensor:
    """Return a network's input as uint8, its minimum black and its maximum white."""
    low, high = image.min(), image.max()
    return ((image - low) / (high - low).clamp(min=1e-6) * 255).to(torch.uint8)


def write_run_report(view: View, stages: Stages, metrics: Mapping[str, Any], warn: Callable[[str], None]) -> None:
    """Write ``report.html`` of a finished run, whose tested weights are loaded, and its figures in ``figures/``."""
    begun = time.perf_counter()
    drawn = [*figures_of_run(view, stages, metrics), *figures_of_components(view, stages)]
    for figure in drawn:
        name = re.sub(r"[^a-z0-9]+", "-", figure.title.lower()).strip("-")
        place = view.folder / "figures" / f"{name}.png"
        if figure.problem:
            warn(f"the figure {figure.title!r} is left out of the report: {figure.problem}")
            place.unlink(missing_ok=True)  # of an earlier report
        else:
            write_atomically(place, lambda path, png=figure.png: path.write_bytes(png))  # type: ignore[misc]
    drawing = time.perf_counter() - begun
    trained, tested = ({*view.images(split).labels.tolist()} for split in ("train", view.queries))
    sizes = [[name, f"{each['images']:,}", f"{each['classes']:,}"] for name, each in counts(view).items()]
    images = ReportTable("Images", ["split", "images", "classes"], sizes)
    kind, _, path = view.recipe.data.name.partition(":")
    text = render(
        "report",
        title=metrics["recipe"],
        recipe=view.recipe,
        metrics=metrics,
        seen=bool(trained & tested),
        setback=setback(view.recipe, metrics),
        run=shlex.quote(str(view.folder)),
        photos=shlex.quote(path) if kind == "folder" else "FOLDER",
        phases=dict(metrics["seconds"], figures=drawing),
        tables=[metrics_table(view, metrics), *class_tables(view), images],
        figures=drawn,
        appendix=[*paper_tables(view.recipe, metrics)],
        settings=tomli_w.dumps(view.recipe.as_dict()),
    )
    write_text(view.folder / "report.html", text)


def metrics_table(view: View, metrics: Mapping[str, Any]) -> ReportTable:
    """Return one row per metric and one column per phase; the best value on the tested images is bold."""
    phases = [phase for phase in PHASES if phase in metrics]
    if view.frozen and {"none": "frozen", "pca": "pca"}.get(view.recipe.model.embedder) in phases:
        phases.remove("after")  # nothing was trained: identical to another phase
    rows = []
    for name in metrics["after"]:
        if name == "precision_at_1" and "recall_at_1" in metrics["after"]:
            continue  # the same
        best = max(metrics[phase].get(name, 0) for phase in phases if phase != "training")  # on other images
        values = ((phase, metrics[phase].get(name)) for phase in phases)
        cells = (percent(value, bold=phase != "training" and value == best) for phase, value in values)
        rows.append([title_of(name), *cells])
    apart, training = view.queries == "query", view.tested_training
    searched = "query is searched in the gallery" if apart else "test image is searched among all others"
    caption = f"Every {searched} by cosine similarity; k-means has as many clusters as classes{' of queries' * apart}."
    if training is not None:
        sampled = "" if training == "train" else f", {len(view.images(training)):,} of them,"
        caption += f" The column of the training images{sampled} shows how much is lost on new ones."
    where = "of the queries" if apart else "on the test images"
    named = {"after": "head" if view.frozen else "fine-tuned network"} if "frozen" in metrics else {}  # pretrained
    columns = ["%", *((PHASES | named)[phase] for phase in phases)]
    return ReportTable(f"Retrieval and clustering {where}", columns, rows, caption)


def setback(recipe: Recipe, metrics: Mapping[str, Mapping[str, float]]) -> str:
    """Say that training left the network behind the untrained one, or behind its frozen trunk; empty if it did not.

    By the recipe's ``evaluation.select``, else by Recall@1. ``metrics`` are by phase and metric.
    """
    frozen = recipe.model.freeze == "trunk"
    if frozen and recipe.model.embedder in ("none", "pca"):  # nothing is trained
        return ""
    name = recipe.evaluation.select or "recall_at_1"
    untrained = {phase: metrics[phase][name] for phase in ("before", "frozen") if name in metrics.get(phase, ())}
    phase = max(untrained, key=lambda phase: untrained[phase], default=None)
    if phase is None or not metrics["after"][name] < untrained[phase]:  # NaN is not behind
        return ""
    trained = "head" if frozen else "trained network"
    after, before = percent(metrics["after"][name]), percent(untrained[phase])
    numbers = f"{title_of(name)} is {after} %, and {before} % before training"
    return f"The {trained} is behind the {PHASES[phase]}: {numbers}."


def class_tables(view: View) -> Iterator[ReportTable]:
    """Return the worst classes by Recall@1, with a picture and a wrong answer, and the most frequent confusions."""
    by_class = recall_by_class(view)
    worst = [[name, percent(value), *_confused_images(view, name)] for name, value in [*by_class.items()][:WORST]]
    more = f"The {len(worst)} worst of {len(by_class)} classes; metrics.json has all." if len(by_class) > WORST else ""
    yield ReportTable("Recall@1 by class, the worst first", ["%", "Recall@1", "a query", "taken for"], worst, more)
    if found := confusions(view):
        rows = [[f"{query} taken for {other}", str(count)] for query, other, count in found]
        yield ReportTable("The most frequent confusions", ["", "times"], rows)


def _confused_images(view: View, name: str) -> list[str]:
    """Return pictures of a query of a class and of the image that it was taken for: the most frequent wrong class."""
    queries, others = view.images(view.queries), view.images(view.gallery_of(view.queries))
    result = nearest(view, view.queries)
    own = [number for number, label in enumerate(queries.labels) if str(queries.class_names[label]) == name]
    wrong = [(number, int(result.indices[number, 0])) for number in own if not bool(result.right[number, 0])]
    if not wrong:
        return [_picture(queries.image(own[0]), name), ""]
    often = Counter(others.labels[other] for _, other in wrong).most_common(1)[0][0]
    query, other = next(pair for pair in wrong if others.labels[pair[1]] == often)
    taken = str(others.class_names[often])
    return [_picture(queries.image(query), name), Markup("{} {}").format(_picture(others.image(other), taken), taken)]


def _picture(image: Tensor, name: str) -> Markup:
    """Return a small picture of an image, uint8 ``[C, H, W]``, for a table."""
    shown, buffer = Image.fromarray(image.expand(3, -1, -1).permute(1, 2, 0).cpu().numpy()), io.BytesIO()
    shown.thumbnail((_PICTURE, _PICTURE))
    shown.save(buffer, "PNG")
    source = f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
    return Markup('<img class="photographs" alt="{}" src="{}">').format(name, source)


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
        own = [percent(metrics.get(value.phase, {}).get(value.metric)) for value in values]
        named = [(f"{value.row}, {value.heading}, {value.column}", percent(value.value)) for value in values]
        rows = [[*each, cell] for each, cell in zip(named, own, strict=True)]
        caption = f"The paper's are of its own data, this run's of {recipe.data.name}."
        caption = "" if is_full(recipe.paper.table, recipe.data.name) else caption
        yield ReportTable("The paper's values beside this run's", ["%", "paper", "this run"], rows, caption)
