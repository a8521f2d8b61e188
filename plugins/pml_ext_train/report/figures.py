"""Figures of runs and embeddings, without matplotlib's global state."""

import itertools
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.markers import MarkerStyle
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from numpy.typing import NDArray
from torch import Tensor

from pml_ext.evaluation.neighbors import distance_matrix
from pml_ext.evaluation.sampling import sample_indices as sample_indices

from .fonts import drawable, font_families
from .pictures import THUMBNAIL
from .projection import COLORS, ONE_POINT, SHAPES, flattened, mark, unit_rows_on_cpu

if TYPE_CHECKING:
    from pml_ext.pml import BaseDistance

BLUE = "#2b6cb0"
ORANGE = "#dd6b20"
GRAY = "#718096"
RIGHT = "#2f9e44"
WRONG = "#e03131"
_COLORS = (BLUE, ORANGE, GRAY, RIGHT, "#805ad5", "#d53f8c", "#319795", "#744210")
_LINES = ("o-", "s--", "^:", "d-.")
_MARKERS = "os^D"  # indexed by a class's marker number
_LEGEND = 10  # largest number of classes in a legend
_LEGEND_INSIDE = 4  # largest number of curves whose legend is drawn inside of the panels
Parts = Mapping[str, tuple[Tensor, Tensor]]
Series = Mapping[str, tuple[Sequence[float], Sequence[float]]]
Cell = tuple[Tensor, str, str]  # image, uint8 [C, H, W]; caption; color of frame and caption


class PlainFigure(Figure):  # type: ignore[misc]
    """A figure with literal texts: no mathtext or control characters."""

    def draw(self, renderer: Any) -> None:
        """Draw the figure with literal texts."""
        for text in self.findobj(Text):
            text.set_parse_math(False)
            text.set_text(drawable(text.get_text()))
            if not text.get_text().isascii():
                text.set_fontfamily(font_families())
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"Glyph \d+ .*missing from")
            super().draw(renderer)


def subplots(width: float, count: int, height: float = 3.2, **shared: Any) -> tuple[Figure, Any]:
    """Return a figure, sized in inches, and a row of axes."""
    figure = PlainFigure(figsize=(width, height), dpi=110, layout="constrained")
    return figure, np.atleast_1d(figure.subplots(1, max(1, count), **shared))


def label_axes(axes: Any, legend: bool = False, **labels: Any) -> None:
    """Set labels, grid and legend of axes."""
    axes.set(**labels)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    if legend:
        axes.legend(fontsize=8, loc="best", framealpha=0.8, edgecolor="none")


def _note(axes: Any, text: str) -> None:
    axes.text(0.5, 0.9, text, transform=axes.transAxes, ha="center", va="top", fontsize=9, color=GRAY)


def _plot_percent(axes: Any, curves: Series, labels: Sequence[str]) -> None:
    for label, (xs, values) in curves.items():
        number = labels.index(label)
        color = _COLORS[number % len(_COLORS)]
        style = _LINES[(number + number // len(_COLORS)) % len(_LINES)]  # the 9th curve has the 1st color, 2nd style
        percent = [100 * value for value in values]
        axes.plot(xs, percent, style, color=color, markersize=3.5, label=label)


def loss_curves(series: Series) -> Figure:
    """Draw ``{name: (iterations, values)}``, a panel each, with a running mean over 5 %."""
    width = min(3.4 * max(1, len(series)), 13)
    figure, panels = subplots(width, len(series))
    for axes, (name, (iterations, values)) in zip(panels, series.items(), strict=False):
        window = np.ones(max(1, len(values) // 20))
        sums = np.convolve(values, window, "same")
        counts = np.convolve(np.ones(len(values)), window, "same")  # the window is shorter at the ends
        smoothed = sums / counts
        axes.plot(iterations, values, color=BLUE, alpha=0.3, linewidth=0.8)
        axes.plot(iterations, smoothed, color=BLUE, linewidth=1.6)
        label_axes(axes, title=name, xlabel="iteration")
    return figure


def epoch_curves(panels: Mapping[str, Series]) -> Figure:
    """Draw ``{metric: {name: (epochs, fractions)}}``, a panel per metric.

    A legend of more than four names stands beside the panels.
    """
    names = list(dict.fromkeys(itertools.chain.from_iterable(panels.values())))
    is_inside = len(names) <= _LEGEND_INSIDE
    width = 3.6 * len(panels)
    height = 3.2
    if not is_inside:
        width += _width_of_legend(names)
        height = max(height, 0.5 + 0.18 * len(names))
    figure, row = subplots(width, len(panels), height)
    lines: dict[str, Any] = {}
    for axes, (metric, curves) in zip(row, panels.items(), strict=True):
        _plot_percent(axes, curves, names)
        axes.xaxis.get_major_locator().set_params(integer=True)
        label_axes(axes, legend=is_inside, title=f"{metric}, %", xlabel="epoch")
        for line in axes.lines:
            lines.setdefault(str(line.get_label()), line)
    if not is_inside:
        handles = list(lines.values())
        figure.legend(handles=handles, loc="outside right center", fontsize=8, frameon=False)
    return figure


def recall_curve(curves: Mapping[str, Mapping[int, float]]) -> Figure:
    """Draw Recall@K: ``{label: {K: fraction}}``."""
    figure, (axes,) = subplots(3.6 + _width_of_legend(curves), 1)
    series = {label: (list(curve), list(curve.values())) for label, curve in curves.items()}
    _plot_percent(axes, series, list(series))
    ks = sorted(set().union(*curves.values()))
    axes.set_xscale("log" if len(ks) > 1 else "linear")
    axes.set_xticks(ks, map(str, ks))
    axes.minorticks_off()
    label_axes(axes, xlabel="K", ylabel="Recall@K, %")
    figure.legend(loc="outside right center", fontsize=8, frameon=False)
    return figure


def _width_of_legend(names: Iterable[str]) -> float:
    return 0.6 + 0.07 * max(map(len, names))


def similarity_distributions(
    parts: Parts, max_items: int = 1000, learned: "Mapping[str, BaseDistance] | None" = None
) -> Figure:
    """Draw the cosine similarities of positive and negative pairs, a panel per part.

    Args:
        parts: ``{title: (embeddings [N, D], labels [N])}``.
        max_items: rows per part; larger parts are sampled.
        learned: learned metrics by title, whose values replace the similarities.
    """
    learned = learned or {}
    figure, panels = subplots(3.6 * len(parts), len(parts), sharex=not learned, sharey=not learned)
    for axes, (title, (embeddings, labels)) in zip(panels, parts.items(), strict=True):
        chosen = sample_indices(len(labels), max_items, seed=0)
        points = embeddings.detach().float()[chosen]
        if title in learned:
            similarity = distance_matrix(learned[title], points).cpu()
            high = float(similarity.max())
            xlabel = "learned score"
        else:
            points = unit_rows_on_cpu(points)
            similarity = (points @ points.T).clamp(-1, 1)
            high = 1.0
            xlabel = "cosine similarity"
        classes = labels.cpu()[chosen]
        same = classes[:, None] == classes
        above = torch.ones_like(same).triu(1)
        _plot_histograms(axes, similarity[same & above], similarity[~same & above], float(similarity.min()), high)
        label_axes(axes, legend=True, title=title, xlabel=xlabel)
    panels[0].set_ylabel("density")
    return figure


def listed_distributions(parts: Mapping[str, tuple[Any, Any]]) -> Figure:
    """Draw ``{title: (similarities of positive pairs [P], of negative pairs [N])}``."""
    figure, panels = subplots(3.6 * len(parts), len(parts), sharex=True, sharey=True)
    for axes, (title, (positives, negatives)) in zip(panels, parts.items(), strict=True):
        known = torch.as_tensor(positives)
        others = torch.as_tensor(negatives)
        low = float(torch.cat([known, others]).min())
        _plot_histograms(axes, known, others, low, 1.0)
        label_axes(axes, legend=True, title=title, xlabel="cosine similarity")
    panels[0].set_ylabel("density")
    return figure


def _plot_histograms(axes: Any, positives: Tensor, negatives: Tensor, low: float, high: float) -> None:
    all_equal = high - low <= ONE_POINT * max(1.0, abs(high))  # a histogram would have an empty range
    if all_equal:
        _note(axes, f"all pairs have the value {high:.3g}")
    for chosen, color, name in ((positives, BLUE, "positive"), (negatives, ORANGE, "negative")):
        values = chosen.numpy()
        if not len(values):
            continue
        label = f"{name}: {values.mean():.2f} ± {values.std():.2f}"
        if all_equal:
            axes.axvline(high, color=color, alpha=0.55, linewidth=4, label=label)
        else:
            axes.hist(
                values,
                bins=80,
                range=(low, high),
                density=True,
                histtype="stepfilled",
                color=color,
                alpha=0.55,
                label=label,
            )


def projections(
    parts: Parts,
    class_names: Sequence[str] = (),
    method: Literal["pca", "tsne"] = "tsne",
    max_items: int = 300,
    seed: int = 0,
    noun: str = "images",
) -> Figure:
    """Draw normalized embeddings in two dimensions, colored by class, a panel per part.

    Args:
        parts: ``{title: (embeddings [N, D], labels [N])}``; parts of equal length show the same rows.
        class_names: names by label; the legend has the 10 most frequent.
        method: principal components, or t-SNE.
        max_items: rows per part; larger parts are sampled.
        seed: of the sample and of t-SNE.
        noun: what rows are, in titles.
    """
    legend_width = 1.1 if len(class_names) else 0.0  # in inches
    figure, panels = subplots(3.6 * len(parts) + legend_width, len(parts), 3.7)
    for axes, (title, (embeddings, labels)) in zip(panels, parts.items(), strict=True):
        chosen = sample_indices(len(labels), max_items, seed)
        classes, ranks = np.unique(labels.cpu().numpy()[chosen], return_inverse=True)
        flat = flattened(unit_rows_on_cpu(embeddings[chosen]).numpy(), method, seed)
        how = {"pca": "principal components", "tsne": "t-SNE"}[method]
        if not flat.any():
            how = "collapsed"
            _note(axes, f"all {noun} lie on one point")

        _scatter(axes, flat, ranks)
        if legend_width and axes is panels[-1]:
            names = [str(class_names[label]) for label in classes]
            _class_legend(axes, names, ranks)
        axes.set(xticks=[], yticks=[])
        axes.set_title(f"{title}\n{len(flat)} {noun} of {len(classes)} classes, {how}", fontsize=10)
        axes.spines[:].set_visible(False)
    return figure


def _scatter(axes: Any, flat: NDArray[np.float32], ranks: NDArray[np.int64]) -> None:
    of_class = _class_marks(ranks)
    marks = [of_class[rank] for rank in ranks]
    colors = [color for color, _ in marks]
    drawn = axes.scatter(*flat.T, c=colors, s=14, alpha=0.85, linewidths=0)

    shapes = [marker.get_path().transformed(marker.get_transform()) for marker in map(MarkerStyle, _MARKERS)]
    drawn.set_paths([shapes[number] for _, number in marks])


def _most_frequent(ranks: NDArray[np.int64]) -> list[int]:
    return sorted(np.bincount(ranks).argsort(kind="stable")[::-1][:_LEGEND].tolist())


def _class_marks(ranks: NDArray[np.int64]) -> list[tuple[str, int]]:
    """Return each class's color and marker; gray outside the legend."""
    classes = int(ranks.max(initial=-1)) + 1
    if classes <= len(COLORS) * SHAPES:
        return [mark(rank) for rank in range(classes)]
    marks = [(GRAY, 0)] * classes
    for place, rank in enumerate(_most_frequent(ranks)):
        marks[rank] = mark(place)
    return marks


def _class_legend(axes: Any, names: Sequence[str], ranks: NDArray[np.int64]) -> None:
    of_class = _class_marks(ranks)
    for rank in _most_frequent(ranks):
        color, number = of_class[rank]
        axes.plot([], [], label=names[rank], color=color, marker=_MARKERS[number], linestyle="", markersize=5)

    heading = f"{_LEGEND} of {len(names)} classes" if len(names) > _LEGEND else None
    axes.legend(
        title=heading,
        frameon=False,
        fontsize=8,
        title_fontsize=8,
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
    )


def _at_most(image: Tensor, side: int) -> Tensor:
    """Return an image on the CPU with sides up to ``side``."""
    scale = side / max(image.shape[-2:])
    if scale < 1:
        size = [max(1, round(scale * length)) for length in image.shape[-2:]]
        pixels = torch.nn.functional.interpolate(image[None].float(), size, mode="bilinear", antialias=True)
        image = pixels[0].round().to(image.dtype)
    return image.detach().cpu()


def answer(image: Tensor, caption: str, right: bool | None) -> Cell:
    """Return a retrieved image's cell: green tick, red cross, or gray."""
    tick, color = {None: ("", GRAY), True: ("✓ ", RIGHT), False: ("✗ ", WRONG)}[right]
    return image, tick + caption, color


def gallery(rows: Sequence[Sequence[Cell | None]]) -> Figure:
    """Draw rows of captioned thumbnails on one Axes."""
    captions = [cell[1] for cell in itertools.chain.from_iterable(rows) if cell is not None]
    most_lines = 1 + max((caption.count("\n") for caption in captions), default=0)
    above = 0.12 * (1 + most_lines)  # space above a thumbnail, in inches
    width = 1.08 * max(map(len, rows)) + 0.1
    height = (1 + above) * len(rows) + 0.1
    figure = PlainFigure(figsize=(width, height), dpi=110)
    axes = figure.add_axes((0, 0, 1, 1))  # in inches, from the top left corner
    axes.set_axis_off()
    for row_number, row in enumerate(rows):
        for column, cell in enumerate(row):
            if cell is not None:
                top = above + (1 + above) * row_number
                _draw_cell(axes, cell, left=0.06 + 1.08 * column, top=top)
    axes.set(xlim=(0, width), ylim=(height, 0), aspect="auto")
    return figure


def _draw_cell(axes: Any, cell: Cell, left: float, top: float) -> None:
    image, caption, color = cell
    scale = 1 / max(image.shape[-2:])
    right = left + scale * image.shape[-1]
    bottom = top + scale * image.shape[-2]
    pixels = _at_most(image, THUMBNAIL).expand(3, -1, -1).permute(1, 2, 0).numpy()
    axes.imshow(pixels, interpolation="nearest", extent=(left, right, bottom, top))
    axes.text(left + 0.5, top - 0.03, caption, fontsize=7.5, color=color, ha="center", va="bottom")
    frame = Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor=color, linewidth=3)
    axes.add_patch(frame)
