"""What all figures share: no global state of matplotlib's, colors, and texts that are never taken for mathtext."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from ..errors import needs_extra
from .fonts import DEFAULT, drawable, families_of

with needs_extra("train", "a figure"):
    from matplotlib.figure import Figure
    from matplotlib.text import Text

BLUE, ORANGE, GRAY = "#2b6cb0", "#dd6b20", "#718096"
RIGHT, WRONG = "#2f9e44", "#e03131"


class PlainFigure(Figure):  # type: ignore[misc]
    """A figure whose texts may come from data: no mathtext, no control characters, fonts of any script.

    What no installed font has is drawn as a box, without a warning for each.
    """

    def draw(self, renderer: Any) -> None:
        """Draws the figure, its texts as they are."""
        for text in self.findobj(Text):
            text.set_parse_math(False)
            text.set_text(drawable(text.get_text()))
            if (families := families_of(text.get_text())) != [DEFAULT]:
                text.set_fontfamily(families)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"Glyph \d+ .*missing from")
            super().draw(renderer)


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of a size in inches."""
    return PlainFigure(figsize=(width, height), dpi=110, layout="constrained")


def clean(axes: Any) -> None:
    """Leaves two of the four lines around a panel, and a faint grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)


def note(axes: Any, text: str) -> None:
    """Says in a panel why there is so little in it."""
    axes.text(0.5, 0.9, text, transform=axes.transAxes, ha="center", va="top", fontsize=9, color=GRAY)


def some_of(count: int, most: int, seed: int) -> Tensor:
    """Numbers from 0 to ``count``, at most ``most`` of them, drawn at random, in rising order."""
    if count <= most:
        return torch.arange(count)
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:most].sort().values


def directions(points: Tensor) -> Tensor:
    """Rows of length 1, on the CPU; in float64 meanwhile, where lengths of collapsed embeddings do not overflow."""
    if points.ndim != 2:
        raise ValueError(f"embeddings of the shape {list(points.shape)}, wanted [N, D]")
    return torch.nn.functional.normalize(points.cpu().double()).float()
