"""Figures of a run, drawn without matplotlib's global state; names from data are never taken for mathtext."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import needs_extra
from .drawing import BLUE, GRAY, ORANGE, RIGHT, WRONG, PlainFigure, clean, directions, new_figure, note, some_of
from .fonts import short_name
from .maps import ONE_POINT, chosen_classes, image_map, projections
from .neighbors import matrix_under

with needs_extra("train", "a figure"):
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

if TYPE_CHECKING:
    from ..pml import BaseDistance

__all__ = [
    "chosen_classes",
    "epoch_curves",
    "galleries",
    "gallery",
    "image_map",
    "loss_curves",
    "projections",
    "recall_curve",
    "similarity_distributions",
    "sweep_curve",
]

_SHOWN = 220  # pixels of the longer side of a small picture at most, twice what it is drawn with
Series = Mapping[str, tuple[Sequence[int], Sequence[float]]]


class _Board:
    """Small pictures with captions and frames in rows, on one pair of axes: one for each would take longest of all.

    Args:
        rows: of pictures.
        columns: of pictures.
        lines: of a caption, at most.
    """

    def __init__(self, rows: int, columns: int, lines: int = 2) -> None:
        self.above = 0.12 * lines + 0.12  # the room over a picture, in inches
        self.width, self.height = 1.08 * columns + 0.1, (1 + self.above) * rows + 0.1
        self.figure = PlainFigure(figsize=(self.width, self.height), dpi=110)
        self.axes = self.figure.add_axes((0, 0, 1, 1))  # in inches, from the top left corner
        self.axes.set_axis_off()

    def show(self, row: int, column: int, image: Tensor, caption: str = "", color: str | None = None) -> None:
        """Puts a picture into its place.

        Args:
            row: from 0, the uppermost.
            column: from 0.
            image: uint8 ``[C, H, W]``; a large one is made smaller first.
            caption: above it.
            color: of its frame and its caption; None for no frame.
        """
        left, top = 0.06 + 1.08 * column, self.above + (1 + self.above) * row
        height, width = image.shape[-2:]
        scale = 1 / max(height, width)
        right, bottom = left + width * scale, top + height * scale
        if max(height, width) > _SHOWN:
            from torchvision.transforms.v2.functional import resize  # takes a second

            image = resize(image, [max(1, round(_SHOWN * side * scale)) for side in (height, width)], antialias=True)
        pixels = image.detach().cpu().permute(1, 2, 0).numpy()
        gray = pixels.shape[2] == 1
        limits: dict[str, Any] = {"cmap": "gray", "vmin": 0, "vmax": 255} if gray else {}
        self.axes.imshow(
            pixels[..., 0] if gray else pixels, interpolation="nearest", extent=(left, right, bottom, top), **limits
        )
        self.axes.text(left + 0.5, top - 0.03, caption, fontsize=6.5, color=color, ha="center", va="bottom")
        if color is not None:
            frame = Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor=color, linewidth=3)
            self.axes.add_patch(frame)

    def done(self) -> Figure:
        """The figure with all that was shown."""
        self.axes.set(xlim=(0, self.width), ylim=(self.height, 0), aspect="auto")
        return self.figure


def loss_curves(series: Series) -> Figure:
    """The loss and its terms over the iterations, each in a panel of its own, smoothed beside what was recorded.

    Args:
        series: ``{name: (iterations, values)}``.
    """
    count = max(1, len(series))
    figure = new_figure(min(3.2 * count + 0.6, 13), 2.9)
    panels = np.atleast_1d(figure.subplots(1, count))
    for axes, (name, (iterations, values)) in zip(panels, series.items(), strict=False):
        axes.plot(iterations, values, color=BLUE, alpha=0.3, linewidth=0.8)
        axes.plot(iterations, _smoothed(values), color=BLUE, linewidth=1.6)
        axes.set(title=name, xlabel="iteration")
        clean(axes)
    return figure


def _smoothed(values: Sequence[float]) -> NDArray[np.float64]:
    """A running mean over a twentieth of the curve, shorter at its ends."""
    width = max(1, len(values) // 20)
    window = np.ones(width)
    return np.convolve(values, window, "same") / np.convolve(np.ones(len(values)), window, "same")


def epoch_curves(panels: Mapping[str, Series]) -> Figure:
    """Metrics over the epochs, a panel per metric and a line per set of images.

    Args:
        panels: ``{metric: {images: (epochs, values)}}``, values as fractions.
    """
    figure = new_figure(3.8 * len(panels) + 0.4, 3.2)
    row = np.atleast_1d(figure.subplots(1, len(panels)))
    for axes, (metric, curves) in zip(row, panels.items(), strict=True):
        for (label, (epochs, values)), style in zip(curves.items(), ("o-", "s--", "^:"), strict=False):
            color = BLUE if style == "o-" else ORANGE
            axes.plot(epochs, [100 * value for value in values], style, color=color, markersize=3.5, label=label)
        axes.set(title=f"{metric}, %", xlabel="epoch")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend(frameon=False, fontsize=8)
        clean(axes)
    return figure


def recall_curve(curves: Mapping[str, Mapping[int, float]], ylabel: str = "Recall@K, %") -> Figure:
    """Recall@K, or precision@K, over K.

    Args:
        curves: ``{label: {K: value}}``, values as fractions.
        ylabel: what the values are.
    """
    figure = new_figure(5.2, 3.4)
    axes = figure.subplots()
    styles = zip((GRAY, ORANGE, BLUE, RIGHT), ("s:", "^--", "o-", "d-."), strict=True)
    for (label, curve), (color, style) in zip(curves.items(), styles, strict=False):
        axes.plot(list(curve), [100 * value for value in curve.values()], style, color=color, label=label)
    ks = sorted({k for curve in curves.values() for k in curve})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ks, [str(k) for k in ks])
    axes.minorticks_off()
    axes.set(xlabel="K", ylabel=ylabel)
    axes.legend(frameon=False)
    clean(axes)
    return figure


def similarity_distributions(
    parts: Mapping[str, tuple[Tensor, Tensor]],
    max_items: int = 1000,
    seed: int = 0,
    learned: Mapping[str, BaseDistance] | None = None,
) -> Figure:
    """Distributions of the cosine similarities of positive and negative pairs, a panel for each part.

    Where all values of a part are alike (embeddings that have collapsed to one point), the panel says so.

    Args:
        parts: ``{title: (embeddings [N, D], labels [N])}``.
        max_items: the largest number of rows per part; a larger part is sampled at random.
        seed: of that draw.
        learned: of these parts the values of a learned metric are shown instead, which have a scale of their own.
    """
    learned = learned or {}
    figure = new_figure(4.6 * len(parts), 3.2)
    panels = np.atleast_1d(figure.subplots(1, len(parts), sharex=not learned, sharey=not learned))
    for axes, (title, (embeddings, labels)) in zip(panels, parts.items(), strict=True):
        chosen = some_of(len(labels), max_items, seed)
        points, classes = embeddings.detach().float()[chosen], labels.cpu()[chosen]
        if title in learned:
            similarity = matrix_under(learned[title], points).cpu()
        else:
            points = directions(points)
            similarity = (points @ points.T).clamp(-1, 1)
        above = torch.ones_like(similarity, dtype=torch.bool).triu(1)
        same = classes[:, None] == classes
        low, high = float(similarity.min()), float(similarity.max()) if title in learned else 1.0
        alike = high - low <= ONE_POINT * max(1.0, abs(high))  # no range for the bins of a histogram
        if alike:
            note(axes, f"all pairs have the value {high:.3g}")
        for mask, color, name in ((same & above, BLUE, "positive"), (~same & above, ORANGE, "negative")):
            values = similarity[mask].numpy()
            if not len(values):
                continue
            label = f"{name}: {values.mean():.2f} ± {values.std():.2f}"
            if alike:
                axes.axvline(high, color=color, alpha=0.55, linewidth=4, label=label)
            else:
                heights, edges = np.histogram(values, bins=80, range=(low, high), density=True)
                axes.stairs(heights, edges, fill=True, color=color, alpha=0.55, label=label)
        axes.set(title=title, xlabel="learned score" if title in learned else "cosine similarity")
        axes.legend(frameon=False, loc="best", fontsize=8)
        clean(axes)
    panels[0].set_ylabel("density")
    return figure


def sweep_curve(curves: Mapping[str, Mapping[float, Sequence[float]]], xlabel: str) -> Figure:
    """Metrics over the values of a swept setting: means, and the values of every seed.

    Args:
        curves: ``{metric: {value: [result of each seed]}}``, results as fractions.
        xlabel: the setting.
    """
    figure = new_figure(3.6 * len(curves) + 0.4, 3.2)
    panels = np.atleast_1d(figure.subplots(1, len(curves)))
    for axes, (title, points) in zip(panels, curves.items(), strict=True):
        values = sorted(points)
        places = range(len(values))
        for place, value in zip(places, values, strict=True):
            results = [100 * result for result in points[value]]
            axes.plot([place] * len(results), results, ".", color=GRAY, alpha=0.6)
        axes.plot(places, [100 * float(np.mean(points[value])) for value in values], "o-", color=BLUE)
        axes.set_xticks(list(places), [f"{value:g}" for value in values])
        axes.set(title=f"{title}, %", xlabel=xlabel)
        clean(axes)
    return figure


def gallery(
    rows: Sequence[tuple[int, Sequence[int]]],
    labels: Sequence[int],
    image: Callable[[int], Tensor],
    class_names: Sequence[str] = (),
    distances: Sequence[Sequence[float | str]] | None = None,
    *,
    answer_labels: Sequence[int] | None = None,
    answer_image: Callable[[int], Tensor] | None = None,
) -> Figure:
    """Queries and their nearest images: right ones framed green with a tick, wrong ones red with a cross.

    Args:
        rows: for each query its index, then the indices of its nearest images.
        labels: the label of every image.
        image: gives the image of an index, uint8 ``[C, H, W]``.
        class_names: names by label.
        distances: from the query to each of its nearest images, in the order of ``rows``; or texts that say more.
        answer_labels: the label of every image of the gallery, where that is not the set of the queries.
        answer_image: likewise, gives one of its images.
    """
    answer_labels = labels if answer_labels is None else answer_labels
    answer_image = answer_image or image
    board = _Board(len(rows), max(len(nearest) for _, nearest in rows) + 1)
    for row, (query, nearest) in enumerate(rows):
        board.show(row, 0, image(query), f"query\n{_name(class_names, labels[query])}", GRAY)
        for place, index in enumerate(nearest):
            right = answer_labels[index] == labels[query]
            distance = distances[row][place] if distances is not None else ""
            distance = distance if isinstance(distance, str) else f"{distance:.2f}"
            title = f"{'✓' if right else '✗'} {distance}".rstrip() + f"\n{_name(class_names, answer_labels[index])}"
            board.show(row, place + 1, answer_image(index), title, RIGHT if right else WRONG)
    return board.done()


def galleries(
    rows: Sequence[tuple[str, Path, Sequence[tuple[Path, str, bool | None]]]], image: Callable[[Path], Tensor]
) -> Figure:
    """Queries and their answers from files, one row per query: right ones green, wrong ones red, unknown ones gray.

    Args:
        rows: the query's caption and path, and path, caption and rightness (None: unknown) of every answer, whose
            name stands below its caption.
        image: reads a file, uint8 ``[C, H, W]``.
    """
    captions = [text for caption, _, answers in rows for text in (caption, *(f"{each[1]}\n" for each in answers))]
    lines = 1 + max(text.count("\n") for text in captions)
    board = _Board(len(rows), max(len(answers) for _, _, answers in rows) + 1, lines)
    for row, (caption, query, answers) in enumerate(rows):
        if query.is_file():
            board.show(row, 0, image(query), caption, BLUE)
        for place, (path, text, right) in enumerate(answers):
            mark = "" if right is None else "✓ " if right else "✗ "
            color = GRAY if right is None else RIGHT if right else WRONG
            board.show(row, place + 1, image(path), f"{mark}{text}\n{short_name(path.name)}", color)
    return board.done()


def _name(class_names: Sequence[str], label: int | str) -> str:
    return short_name(str(class_names[int(label)]) if len(class_names) else str(label))
