"""Figures of a run's report."""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from pml_ext.errors import one_line
from pml_ext.evaluation import Evaluation
from pml_ext.evaluation.listed import scores_of_pairs, scores_of_triplets
from pml_ext.evaluation.metrics import headline_metric, title_of

from ..records import CURVE, VALIDATION, Series, loss_series, metric_series
from ..report import ReportFigure, draw, figures, short_name
from ..training import NoLabelsError, Stages, View, load, nearest
from .findings import has_answer, recall_by_class
from .verdict import is_trained, phase_titles, shown_phases


def figures_of_run(view: View, stages: Stages, metrics: Mapping[str, Any]) -> Iterator[ReportFigure]:
    """Draw the figures that every run has."""
    few = view.recipe.evaluation.figures == "few"
    yield from _loss_figures(view, stages)
    if not few:
        yield from _metric_figures(view, metrics)
    yield _similarity_figure(view)
    if view.data.listed is not None:  # the others are by class
        return
    if not few:
        yield draw(
            f"The embeddings of {_tested_images(view)} in two dimensions: t-SNE",
            lambda: _projections(view, is_trained(metrics)),
            "Colored by class.",
        )
    if view.data.has_vectors:  # nothing to look at
        return
    searched = "test images" if view.queries == "test" else "gallery images"
    if bool(has_answer(view).any()):
        yield draw(
            f"Queries and their nearest {searched}",
            lambda: _gallery(view, nearest(view, view.queries)),
            "Half of the queries have a wrong nearest image if enough do; the worst classes come first. "
            "Frames: green (✓) for the query's class, red (✗) for another. Numbers: Euclidean distances.",
            keeps_colors=True,
        )
    if not few and is_trained(metrics):
        yield draw(
            "Training images as the network saw them",
            lambda: _batch(view),
            "Four of each of some classes, augmented as in training.",
            keeps_colors=True,
        )


def _tested_images(view: View) -> str:
    return f"test {view.data.noun}" if view.queries == "test" else "queries"


def _loss_figures(view: View, stages: Stages) -> Iterator[ReportFigure]:
    terms: list[str] = []
    for stage in stages:
        for module in stage.loss.modules():
            recorded = getattr(module, "_record_these_stats", [])
            terms += [name for name in recorded if name.endswith(("_loss", "_value"))]
    series = loss_series(view.folder, terms)
    if series:
        yield draw(
            "The loss and its terms",
            lambda: figures.loss_curves(series),
            f"{', '.join(series).capitalize()}: in every iteration, and smoothed.",
        )


def _metric_figures(view: View, metrics: Mapping[str, Any]) -> Iterator[ReportFigure]:
    """Draw metrics over the epochs, and Recall@K before and after training."""
    table = view.recipe.evaluation
    tested = _tested_images(view)
    names = {VALIDATION: table.validated_on, CURVE: tested}
    panels: dict[str, Series] = {}
    shown = ["recall_at_1", "map_at_r"] if view.data.listed is None else [headline_metric(metrics["after"])]
    for metric in dict.fromkeys([*shown, table.select or shown[0]]):
        panel = {names[name]: curve for name, curve in metric_series(view.folder, metric).items()}
        if panel:
            panels[title_of(metric)] = panel
    if panels:
        chosen = "The last epoch is tested."
        if table.select is not None:
            images = f"the {tested} themselves" if table.select_on == "test" else f"{table.validated_on} alone"
            chosen = f"The epoch is chosen by {title_of(table.select)} on {images}."
        yield draw("Metrics over the epochs", lambda: figures.epoch_curves(panels), chosen)
    if view.data.listed is not None:
        return

    title = "Recall@K before and after training"
    titles = phase_titles(view.data.noun)
    phases = ["raw", "before", "after", "training"]
    if not is_trained(metrics):
        title = "Recall@K"
        titles = shown_phases(metrics)
        phases = list(titles)
    tested_phases = [phase for phase in phases if phase in metrics]
    by_phase = {
        titles[phase]: {k: metrics[phase][f"recall_at_{k}"] for k in table.recall_at} for phase in tested_phases
    }
    yield draw(
        title,
        lambda: figures.recall_curve(by_phase),
        f"The share of {tested} with one of their own class among the K nearest.",
    )


def _similarity_figure(view: View) -> ReportFigure:
    title = "Similarities of positive and negative pairs"
    splits = {f"training {view.data.noun}": view.data.tested_training, _tested_images(view): view.queries}
    drawn = {name: split for name, split in splits.items() if split is not None}
    if view.data.listed is not None:
        caption = f"Of the listed {view.data.unit}; the legends give mean and standard deviation."
        scores = {name: _listed_scores(view, split) for name, split in drawn.items()}
        return draw(title, lambda: figures.listed_distributions(scores), caption)
    caption = "Retrieval is easier where the two lie further apart; the legends give mean and standard deviation."
    compared = {name: (view.embeddings(split), view.true_labels(split)) for name, split in drawn.items()}
    return draw(title, lambda: figures.similarity_distributions(compared), caption)


def _listed_scores(view: View, split: str) -> tuple[Any, Any]:
    """Return the similarities of a split's positive and negative listed pairs."""
    tuples = view.images(split).tuples
    assert tuples is not None
    if tuples.same is None:
        return scores_of_triplets(view.embeddings(split), tuples)
    scores = scores_of_pairs(view.embeddings(split), tuples)
    same = tuples.same.numpy()
    return scores[same], scores[~same]


def _projections(view: View, is_trained: bool) -> Figure:
    labels = view.true_labels(view.queries)
    parts = {}
    if is_trained and view.recipe.evaluation.baselines:
        before = load(view.checkpoint("before"), view.device, view.identity)
        parts["before training"] = (before["embeddings"], labels)
    title = "after training" if is_trained else _tested_images(view)
    parts[title] = (view.embeddings(view.queries), labels)
    return figures.projections(parts, view.splits[view.queries].class_names, seed=view.seed, noun=view.data.noun)


def figures_of_components(view: View, stages: Stages) -> Iterator[ReportFigure]:
    """Draw the figures of components with a method ``figures(run)``."""
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
    """Draw queries with their nearest images."""
    queries = view.images(view.queries)
    searched = view.images(view.data.gallery_of(view.queries))
    rows = []
    for query in _shown_queries(view, result):
        label = int(queries.labels[query])
        row = [(queries.image(query), f"query\n{short_name(queries.class_names[label])}", figures.GRAY)]
        nearest_images = zip(result.indices[query].tolist(), result.distances[query].tolist(), strict=True)
        for index, distance in nearest_images:
            if index < 0:  # no more images outside of the query's group
                break
            other = int(searched.labels[index])
            row.append(
                figures.answer(
                    searched.image(index), f"{distance:.2f}\n{short_name(queries.class_names[other])}", other == label
                )
            )
        rows.append(row)
    return figures.gallery(rows)


def _shown_queries(view: View, result: Evaluation) -> list[int]:
    """Return eight answerable queries, four of them failures, worst classes first."""
    queries = view.images(view.queries)
    order = torch.randperm(len(queries), generator=torch.Generator().manual_seed(view.seed))
    order = order[has_answer(view)[order]]
    wrong = ~result.right[:, :1].any(dim=1)
    failures: list[int] = order[wrong[order]].tolist()
    successes: list[int] = order[~wrong[order]].tolist()
    rank = {name: place for place, name in enumerate(recall_by_class(view))}
    failures.sort(key=lambda query: rank[str(queries.class_names[queries.labels[query]])])
    return [*failures[:4], *successes][:8]


def _batch(view: View) -> Figure:
    images = view.data.training_images
    generator = np.random.default_rng(view.seed)
    rows = []
    with torch.random.fork_rng([]):
        torch.manual_seed(view.seed)
        for label in generator.permutation(np.unique(images.labels))[:6].tolist():
            members = generator.permutation(np.flatnonzero(images.labels == label))[:4].tolist()
            name = short_name(images.class_names[label])
            augmented = [images[member][0] for member in members]  # by random numbers
            rows.append([(_as_bytes(image), name, figures.GRAY) for image in augmented])
    pairs_of_rows = [list(chain(*rows[start : start + 2])) for start in range(0, len(rows), 2)]
    return figures.gallery(pairs_of_rows)


def _as_bytes(image: Tensor) -> Tensor:
    low = image.min()
    high = image.max()
    return ((image - low) / (high - low).clamp(min=1e-6) * 255).to(torch.uint8)
