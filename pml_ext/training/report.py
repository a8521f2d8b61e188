"""The report of a run: its figures and tables on one page."""

from __future__ import annotations

import base64
import contextlib
import io
import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data import LabeledImages
from ..errors import ConfigError, UnknownNameError, needs_extra, one_line
from ..evaluation import Evaluation, figures
from ..evaluation.fonts import short_name
from ..evaluation.listed import scores_of_pairs, scores_of_triplets
from ..evaluation.metrics import SMALLER_IS_BETTER, headline_metric, title_of
from ..files import write_atomically, write_text
from ..networks.pretrained import is_pretrained
from ..recipe import Recipe, is_full, printed, quoted
from ..recipe.papers import Quoted
from ..report import ReportFigure, ReportTable, draw, percent, render
from .checkpoint import load
from .evaluation import confusions, counts, nearest, recall_by_class
from .records import CURVE, VALIDATION, Series, loss_series, metric_series
from .stages import Stages
from .view import NoLabelsError, View

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
    "head": "head, trunk frozen",
    "blocks": "last blocks",
    "after": "trained network",
    "features": "trained network, features before the head",
    "training": "trained network, training images",
    "learned_metric": "trained network, learned metric",
    "shortlist": "trained network, learned metric on a shortlist",
}
_PHASES_OF_VECTORS = {
    "raw": "raw vectors",
    "pca": "raw vectors, PCA",
    "before": "untrained head",
    "after": "trained head",
    "training": "trained head, training vectors",
    "learned_metric": "trained head, learned metric",
    "shortlist": "trained head, learned metric on a shortlist",
}
STAGES = ("head", "blocks")  # phases before the whole network trains
_WITHOUT_FINE_TUNING = "Train without its last stage (--images FOLDER without --fine-tune) to keep that."
WORST = 10  # classes in a table
_PICTURE = 96  # pixels of a picture in a table, twice its displayed size


def phase_titles(noun: str) -> dict[str, str]:
    """Return the titles of phases by name, for a run of ``"images"`` or ``"vectors"``."""
    return _PHASES_OF_VECTORS if noun == "vectors" else PHASES


def figures_of_run(view: View, stages: Stages, metrics: Mapping[str, Any]) -> Iterator[ReportFigure]:
    """Draw the figures that every run has: losses, curves, similarities, projections; of images, nearest neighbors."""
    few = view.recipe.evaluation.figures == "few"
    yield from _loss_figures(view, stages)
    if not few:
        yield from _metric_figures(view, metrics)
    yield _similarity_figure(view)
    if view.listed is not None:  # the others are by class
        return
    if not few:
        title = f"The embeddings of {_tested_images(view)} in two dimensions: t-SNE"
        yield draw(title, lambda: _projections(view), "Colored by class.")
    if view.takes_vectors:  # nothing to look at
        return
    if view.queries == "test":
        searched = "test images"
    else:
        searched = "gallery images"
    yield draw(
        f"Queries and their nearest {searched}",
        lambda: _gallery(view, nearest(view, view.queries)),
        "Half of the queries have a wrong nearest image, where available, of the worst classes first. Frames: green "
        "(✓) for the query's class, red (✗) for another. Numbers: Euclidean distances.",
        photographs=True,
    )
    if not few:
        caption = "Four of each of some classes, augmented as in training."
        yield draw("Training images as the network saw them", lambda: _batch(view), caption, photographs=True)


def _tested_images(view: View) -> str:
    if view.queries == "test":
        return f"test {view.noun}"
    return "queries"


def _loss_figures(view: View, stages: Stages) -> Iterator[ReportFigure]:
    """Draw the loss and its recorded terms over the iterations, if there are records."""
    terms = []
    for stage in stages:
        for module in stage.loss.modules():
            recorded = getattr(module, "_record_these_stats", [])
            for name in recorded:
                if name.endswith(("_loss", "_value")):
                    terms.append(name)
    series = loss_series(view.folder, terms)
    if series:
        caption = f"{', '.join(series).capitalize()}: in every iteration, and smoothed."
        yield draw("The loss and its terms", lambda: figures.loss_curves(series), caption)


def _metric_figures(view: View, metrics: Mapping[str, Any]) -> Iterator[ReportFigure]:
    """Draw metrics over the epochs, if a run tests between them, and Recall@K before and after training."""
    table = view.recipe.evaluation
    tested = _tested_images(view)
    names = {VALIDATION: table.validated_on, CURVE: tested}
    panels: dict[str, Series] = {}
    shown = ["recall_at_1", "map_at_r"] if view.listed is None else [headline_metric(metrics["after"])]
    for metric in dict.fromkeys([*shown, table.select or shown[0]]):
        panel = {}
        for name, curve in metric_series(view.folder, metric).items():
            panel[names[name]] = curve
        if panel:
            panels[title_of(metric)] = panel
    if panels:
        chosen = "The last epoch is tested."
        if table.select is not None:
            if table.select_on == "test":
                images = f"the {tested} themselves"
            else:
                images = f"{table.validated_on} alone"
            chosen = f"The epoch is chosen by {title_of(table.select)} on {images}."
        yield draw("Metrics over the epochs", lambda: figures.epoch_curves(panels), chosen)
    if view.listed is not None:
        return

    by_phase: dict[str, dict[int, float]] = {}
    for phase in ("raw", "before", "after", "training"):
        if phase in metrics:
            recalls = {}
            for k in table.recall_at:
                recalls[k] = metrics[phase][f"recall_at_{k}"]
            by_phase[phase_titles(view.noun)[phase]] = recalls
    caption = f"The share of {tested} with another of their class among the K nearest."
    yield draw("Recall@K before and after training", lambda: figures.recall_curve(by_phase), caption)


def _similarity_figure(view: View) -> ReportFigure:
    """Draw the similarities of positive and negative pairs, of training and of tested images."""
    caption = "Retrieval is easier where the two lie further apart; the legends give mean and standard deviation."
    title = "Similarities of positive and negative pairs"
    if view.listed is not None:
        parts = {_tested_images(view): _listed_scores(view, view.queries)}
        if view.tested_training is not None:
            parts = {f"training {view.noun}": _listed_scores(view, view.tested_training), **parts}
        caption = f"Of the listed {view.unit}; the legends give mean and standard deviation."
        return draw(title, lambda: figures.listed_distributions(parts), caption)
    compared = {}
    if view.tested_training is not None:
        training = view.tested_training
        compared[f"training {view.noun}"] = (view.embeddings(training), view.true_labels(training))
    compared[_tested_images(view)] = (view.embeddings(view.queries), view.true_labels(view.queries))
    return draw(title, lambda: figures.similarity_distributions(compared), caption)


def _listed_scores(view: View, split: str) -> tuple[Any, Any]:
    """Return the cosine similarities of the positive and of the negative pairs that a split lists."""
    tuples = view.images(split).tuples
    assert tuples is not None
    if tuples.same is None:
        return scores_of_triplets(view.embeddings(split), tuples)
    scores = scores_of_pairs(view.embeddings(split), tuples)
    same = tuples.same.numpy()
    return scores[same], scores[~same]


def _projections(view: View) -> Figure:
    """Draw the embeddings of the tested images before and after training in two dimensions."""
    labels = view.true_labels(view.queries)
    parts = {}
    if view.recipe.evaluation.baselines:
        before = load(view.checkpoint("before"), view.device, view.identity)
        parts["before training"] = (before["embeddings"], labels)
    parts["after training"] = (view.embeddings(view.queries), labels)
    return figures.projections(parts, view.splits[view.queries].class_names, seed=view.seed, noun=view.noun)


def figures_of_components(view: View, stages: Stages) -> Iterator[ReportFigure]:
    """Draw the figures of the run's components that have a method ``figures(run)``."""
    for part in stages.parts():
        name = type(part).__name__
        try:
            for title, figure in dict(view.call(part, "figures") or {}).items():
                yield draw(str(title), lambda figure=figure: figure, owner=f"{name}: ")  # type: ignore[misc]
        except NoLabelsError:  # there is no figure by labels of listed pairs or triplets
            continue
        except (Exception, SystemExit) as error:  # raised by a component's code
            yield ReportFigure(f"Figures of {name}", problem=one_line(error))


def _gallery(view: View, result: Evaluation) -> Figure:
    """Draw eight queries, half of them failures, with the nearest images of a search and their distances."""
    queries = view.images(view.queries)
    searched = view.images(view.gallery_of(view.queries))
    rows = []
    for query in _shown_queries(view, result):
        label = int(queries.labels[query])
        row = [(queries.image(query), f"query\n{short_name(queries.class_names[label])}", figures.GRAY)]
        nearest_images = zip(result.indices[query].tolist(), result.distances[query].tolist(), strict=True)
        for index, distance in nearest_images:
            if index < 0:  # no more images outside of the query's group
                break
            other = int(searched.labels[index])
            caption = f"{distance:.2f}\n{short_name(queries.class_names[other])}"
            row.append(figures.answer(searched.image(index), caption, other == label))
        rows.append(row)
    return figures.gallery(rows)


def _shown_queries(view: View, result: Evaluation) -> list[int]:
    """Return eight queries at random, four of them with a wrong nearest image, the worst classes first."""
    queries = view.images(view.queries)
    order = torch.randperm(len(queries), generator=torch.Generator().manual_seed(view.seed))
    wrong = ~result.right[:, :1].any(dim=1)
    failures: list[int] = order[wrong[order]].tolist()
    successes: list[int] = order[~wrong[order]].tolist()
    rank = {name: place for place, name in enumerate(recall_by_class(view))}
    failures.sort(key=lambda query: rank[str(queries.class_names[queries.labels[query]])])
    return [*failures[:4], *successes][:8]


def _batch(view: View) -> Figure:
    """Draw four augmented training images of each of six classes, two classes side by side."""
    images = view.training_images
    generator = np.random.default_rng(view.seed)
    rows = []
    with torch.random.fork_rng([]):
        torch.manual_seed(view.seed)
        for label in generator.permutation(np.unique(images.labels))[:6].tolist():
            members = generator.permutation(np.flatnonzero(images.labels == label))[:4].tolist()
            name = short_name(images.class_names[label])
            row = []
            for member in members:
                image = images[member][0]  # augmented by random numbers
                row.append((_as_bytes(image), name, figures.GRAY))
            rows.append(row)
    pairs_of_rows = []
    for start in range(0, len(rows), 2):
        pairs_of_rows.append(list(chain(*rows[start : start + 2])))
    return figures.gallery(pairs_of_rows)


def _as_bytes(image: Tensor) -> Tensor:
    """Return a network's input as uint8, its minimum black and its maximum white."""
    low = image.min()
    high = image.max()
    return ((image - low) / (high - low).clamp(min=1e-6) * 255).to(torch.uint8)


def write_run_report(view: View, stages: Stages, metrics: Mapping[str, Any], warn: Callable[[str], None]) -> None:
    """Write ``report.html`` of a finished run, whose tested weights are loaded, and its figures in ``figures/``."""
    begun = time.perf_counter()
    drawn = [*figures_of_run(view, stages, metrics), *figures_of_components(view, stages)]
    for figure in drawn:
        _write_figure(view, figure, warn)
    drawing_seconds = time.perf_counter() - begun

    trained_classes = set(view.images("train").labels.tolist())
    tested_classes = set(view.images(view.queries).labels.tolist())
    of_test = class_tables(view) if view.listed is None else [wrong_tuples_table(view)]
    ahead = better_features(metrics, view.folder, view.recipe)
    notes = [setback(view.recipe, metrics), ahead]
    by_features = " --by features" if ahead else ""
    text = render(
        "report",
        title=metrics["recipe"],
        recipe=view.recipe,
        metrics=metrics,
        seen=bool(trained_classes & tested_classes),
        headline=headline_of_listed(view, metrics),
        notes=[text for text in notes if text],
        gain=gain_of_fine_tuning(view.recipe, metrics),
        run=shlex.quote(str(view.folder)),
        data=_data_of(view.recipe),
        noun=view.noun,
        raw_title=phase_titles(view.noun)["raw"],
        by_features=by_features,
        phases=dict(metrics["seconds"], figures=drawing_seconds),
        tables=[metrics_table(view, metrics), *of_test, _images_table(view)],
        figures=drawn,
        appendix=list(paper_tables(view.recipe, metrics)),
        settings=tomli_w.dumps(view.recipe.as_dict()),
    )
    write_text(view.folder / "report.html", text)


def _write_figure(view: View, figure: ReportFigure, warn: Callable[[str], None]) -> None:
    """Write a figure's file; warn of one that could not be drawn, and delete that of an earlier report."""
    name = re.sub(r"[^a-z0-9]+", "-", figure.title.lower()).strip("-")
    place = view.folder / "figures" / f"{name}.png"
    if figure.problem:
        warn(f"the figure {figure.title!r} is left out of the report: {figure.problem}")
        place.unlink(missing_ok=True)
    else:
        write_atomically(place, lambda path: path.write_bytes(figure.png))


def _images_table(view: View) -> ReportTable:
    """Return the numbers of images and classes of each split."""
    listed = "classes" if view.listed is None else view.listed.kind
    rows = []
    for name, numbers in counts(view).items():
        rows.append([name, f"{numbers['images']:,}", f"{numbers[listed]:,}"])
    return ReportTable(view.noun.capitalize(), ["split", view.noun, listed], rows)


def headline_of_listed(view: View, metrics: Mapping[str, Any]) -> str:
    """Return a sentence on the test of listed pairs or triplets; "" where images have labels."""
    if view.listed is None:
        return ""
    name = headline_metric(metrics["after"])
    if view.listed.kind == "pairs":
        text = "Of two test pairs, one the same and one not, the one that is the same is more similar in"
    else:
        text = "The anchor is more similar to the positive than to the negative in"
    of = "cases" if view.listed.kind == "pairs" else "the test triplets"
    text = f"{text} {percent(metrics['after'][name])} % of {of}"
    if "raw" not in metrics:
        return f"{text}."
    return f"{text}; by {phase_titles(view.noun)['raw']} in {percent(metrics['raw'][name])} %."


def metrics_table(view: View, metrics: Mapping[str, Any]) -> ReportTable:
    """Return one row per metric and one column per phase; the best value on the tested images is bold."""
    phases = [phase for phase in phase_titles(view.noun) if phase in metrics]
    untrained = {"none": "raw" if view.takes_vectors else "frozen", "pca": "pca"}
    if view.frozen and untrained.get(view.recipe.model.embedder) in phases:
        phases.remove("after")  # nothing was trained: identical to the other phase
    rows = []
    for name in metrics["after"]:
        if name == "precision_at_1" and "recall_at_1" in metrics["after"]:
            continue  # the same
        rows.append([title_of(name), *_cells(metrics, name, phases)])

    titles = dict(phase_titles(view.noun))
    if "frozen" in metrics:  # the trunk is pretrained
        if view.frozen:
            titles["after"] = "head"
        else:
            titles["after"] = "fine-tuned network"
    columns = ["%"]
    for phase in phases:
        columns.append(titles[phase])
    if view.queries == "query":
        where = "of the queries"
    else:
        where = f"on the test {view.noun}"
    subject = "Retrieval and clustering" if view.listed is None else view.listed.kind.capitalize()
    return ReportTable(f"{subject} {where}", columns, rows, _metrics_caption(view))


def _cells(metrics: Mapping[str, Any], name: str, phases: list[str]) -> list[str]:
    """Return a metric's value in each phase, the best in bold."""
    tested_phases = [phase for phase in phases if phase != "training"]  # of the same images
    values = [metrics[phase][name] for phase in tested_phases if name in metrics[phase]]
    best = min(values) if name in SMALLER_IS_BETTER else max(values)
    cells = []
    for phase in phases:
        value = metrics[phase].get(name)
        is_best = phase != "training" and value == best
        cells.append(percent(value, bold=is_best))
    return cells


def _metrics_caption(view: View) -> str:
    if view.listed is not None:
        caption = f"The listed {view.unit} of the test, by cosine similarity."
        if view.listed.kind == "pairs" and view.tested_training is not None:
            caption += " The threshold is the best one on training pairs, chosen anew in each column."
        return caption
    if view.queries == "query":
        caption = "Every query is searched in the gallery by cosine similarity; "
        caption += "k-means has as many clusters as classes of queries."
    else:
        caption = f"Every test {view.noun[:-1]} is searched among all others by cosine similarity; "
        caption += "k-means has as many clusters as classes."
    training = view.tested_training
    if training is None:
        return caption
    sampled = ""
    if training != "train":
        sampled = f", {len(view.images(training)):,} of them,"
    return f"{caption} The column of the training {view.noun}{sampled} shows how much is lost on new ones."


def _data_of(recipe: Recipe) -> str:
    """Return a recipe's folder of images, or its file of vectors, for a command line, or a word for one."""
    kind, _, path = recipe.data.name.partition(":")
    if kind in ("folder", "vectors"):
        return shlex.quote(path)
    if recipe.data.listed is not None and "vectors" in recipe.data.settings:
        return shlex.quote(str(recipe.data.settings["vectors"]))
    return "FOLDER"


def better_features(metrics: Mapping[str, Mapping[str, float]], folder: Path, recipe: Recipe) -> str:
    """Say that the features before the head are ahead of the embeddings, by Recall@1; empty if they are not.

    ``folder`` is the run's, for the command that indexes images by features.
    """
    if "features" not in metrics:
        return ""
    name = headline_metric(metrics["after"])
    features = metrics["features"][name]
    embeddings = metrics["after"][name]
    if not features > embeddings:
        return ""
    numbers = f"{title_of(name)} is {percent(features)} %, and {percent(embeddings)} % of the embeddings"
    command = f"pml-ext index {shlex.quote(str(folder))} {_data_of(recipe)} --by features"
    return f"The features before the head are better than the embeddings: {numbers}. To search by them, type: {command}"


def setback(recipe: Recipe, metrics: Mapping[str, Mapping[str, float]]) -> str:
    """Say that a network is behind what it began with: untrained, its frozen trunk or the raw vectors; else empty.

    By the recipe's ``evaluation.select``; without one by Recall@1, then by MAP@R, since one may fall alone. A network
    that was trained in stages is compared with whitened features, too. ``metrics`` are by phase and metric.
    """
    if _nothing_is_learned(recipe):
        return ""
    after = metrics["after"]
    select = recipe.evaluation.select
    names = [headline_metric(after), "map_at_r"] if select is None else [select]
    for name in names:
        untrained = {}
        for phase in _phases_to_compare(recipe, metrics):
            if name in metrics.get(phase, ()):
                untrained[phase] = metrics[phase][name]
        best = max(untrained, key=lambda phase: untrained[phase], default=None)
        if best is not None and after[name] < untrained[best]:  # NaN is not behind
            return _setback_sentence(recipe, name, after[name], best, untrained[best])
    return ""


def _nothing_is_learned(recipe: Recipe) -> bool:
    """Return whether the embeddings are features as they are."""
    return recipe.model.freeze == "trunk" and recipe.model.embedder == "none"


def _phases_to_compare(recipe: Recipe, metrics: Mapping[str, Any]) -> list[str]:
    """Return the phases that a trained network should not be behind."""
    phases = ["before", "raw" if recipe.model.takes_vectors else "frozen"]
    if any(phase in metrics for phase in STAGES):
        phases.append("pca")
    return [*phases, *STAGES]


def _setback_sentence(recipe: Recipe, name: str, after: float, phase: str, before: float) -> str:
    titles = phase_titles("vectors" if recipe.model.takes_vectors else "images")
    if recipe.model.embedder == "pca":
        network = titles["pca"]
        earlier = "without whitening."
    elif phase in STAGES:
        network = "trained network"
        earlier = f"before the whole network trained. {_WITHOUT_FINE_TUNING}"
    else:
        network = "head" if recipe.model.freeze == "trunk" else "trained network"
        earlier = "before training."
    numbers = f"{title_of(name)} is {percent(after)} %, and {percent(before)} % {earlier}"
    return f"The {network} is behind the {titles[phase]}: {numbers}"


def not_compared(recipe: Recipe) -> str:
    """Say that a network was not compared with the pretrained features that it began with; empty if it was."""
    if recipe.evaluation.baselines or _nothing_is_learned(recipe):
        return ""
    if not is_pretrained(recipe.model.trunk.settings):
        return ""
    return (
        "The network was not compared with the frozen trunk, and may be behind it: the tests before training were left "
        "out. Train without --quick, or evaluation.baselines = false, to compare."
    )


def gain_of_fine_tuning(recipe: Recipe, metrics: Mapping[str, Mapping[str, float]]) -> str:
    """Say what the training of the whole network has added to the head or the last blocks.

    Empty for a run without such stages, and if there is a :func:`setback`.
    """
    phase = next((phase for phase in STAGES if phase in metrics), None)
    if phase is None or setback(recipe, metrics):
        return ""
    name = recipe.evaluation.select or headline_metric(metrics["after"])
    after = metrics["after"][name]
    before = metrics[phase][name]
    paid = "has paid" if after > before else "has added nothing"
    numbers = f"{percent(after)} % after it; {PHASES[phase]} {percent(before)} %"
    if name in metrics.get("frozen", ()):
        numbers += f", {PHASES['frozen']} {percent(metrics['frozen'][name])} %"
    return f"Training the whole network {paid}: {title_of(name)} is {numbers}."


def verdict(recipe: Recipe, metrics: Mapping[str, Mapping[str, float]], folder: Path) -> str:
    """Return sentences on what training has brought, if the metrics ask for some; ``folder`` is the run's."""
    sentences = [
        not_compared(recipe),
        setback(recipe, metrics),
        gain_of_fine_tuning(recipe, metrics),
        better_features(metrics, folder, recipe),
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def wrong_tuples_table(view: View) -> ReportTable:
    """Return the test pairs, or triplets, that are farthest from what the list says."""
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
    """Return the worst classes by Recall@1, with a picture and a wrong answer, and the most frequent confusions."""
    by_class = recall_by_class(view)
    rows = []
    for name, value in list(by_class.items())[:WORST]:
        rows.append([name, percent(value), *_confused_images(view, name)])
    caption = ""
    if len(by_class) > WORST:
        caption = f"The {len(rows)} worst of {len(by_class)} classes; metrics.json has all."
    yield ReportTable("Recall@1 by class, the worst first", ["%", "Recall@1", "a query", "taken for"], rows, caption)

    confused = []
    for query, other, count in confusions(view):
        confused.append([f"{query} taken for {other}", str(count)])
    if confused:
        yield ReportTable("The most frequent confusions", ["", "times"], confused)


def _confused_images(view: View, name: str) -> list[str]:
    """Return a query of a class and the image that it was taken for, of the most frequent wrong class.

    Images are pictures, vectors are ids.
    """
    queries = view.images(view.queries)
    searched = view.images(view.gallery_of(view.queries))
    result = nearest(view, view.queries)
    members = []  # queries of the class
    by_wrong_label: dict[int, list[tuple[int, int]]] = {}  # queries, and their nearest images, of a wrong class
    for query, label in enumerate(queries.labels.tolist()):
        if str(queries.class_names[label]) != name:
            continue
        members.append(query)
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
    """Return the picture of an image of a class, or the id of a vector, for a table."""
    if images.vector_size is not None:
        return short_name(images.ids[index])
    return _picture(images.image(index), name)


def _picture(image: Tensor, name: str) -> Markup:
    """Return a small picture of an image, uint8 ``[C, H, W]``, for a table."""
    shown = Image.fromarray(image.expand(3, -1, -1).permute(1, 2, 0).cpu().numpy())
    shown.thumbnail((_PICTURE, _PICTURE))
    buffer = io.BytesIO()
    shown.save(buffer, "PNG")
    source = f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
    return Markup('<img class="photographs" alt="{}" src="{}">').format(name, source)


def paper_tables(recipe: Recipe, metrics: Mapping[str, Any]) -> Iterator[ReportTable]:
    """Return the recipe's ``[paper]``, and the values of the paper's table beside the run's."""
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
        entries["row"] = ""
        entries["column"] = ""
        entries["table"] = f"{recipe.paper.table}: {table.title}"
        entries["paper"] = f"{paper.authors} ({paper.year}). {paper.title}. {paper.url}"
        entries["note"] = ". ".join(filter(None, (recipe.paper.note, table.note)))
    rows = [[key, str(value)] for key, value in entries.items() if value]
    yield ReportTable("What the paper reports, on its own data", ["", ""], rows)
    if not values:
        return

    rows = []
    for value in values:
        name = f"{value.row}, {value.heading}, {value.column}"
        measured = metrics.get(value.phase, {}).get(value.metric)
        rows.append([name, percent(value.value), percent(measured)])
    caption = ""
    if not is_full(recipe.paper.table, recipe.data.name):
        caption = f"The paper's are of its own data, this run's of {recipe.data.name}."
    yield ReportTable("The paper's values beside this run's", ["%", "paper", "this run"], rows, caption)
