"""Embeddings in two dimensions: all of them, classes that are chosen, images in their places."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import needs_extra
from .drawing import GRAY, ORANGE, directions, new_figure, note, some_of

with needs_extra("train", "a figure"):
    from matplotlib.figure import Figure
    from matplotlib.offsetbox import AnnotationBbox, OffsetImage
    from matplotlib.patches import Rectangle

ONE_POINT = 1e-5  # extent of unit vectors that are one point but for rounding

_METHODS = {"pca": "principal components", "tsne": "t-SNE"}


def projections(
    parts: Mapping[str, tuple[Tensor, Tensor]],
    class_names: Sequence[str] = (),
    method: Literal["pca", "tsne"] = "tsne",
    max_items: int = 300,
    seed: int = 0,
) -> Figure:
    """Normalized embeddings in two dimensions, colored by class, one panel per part.

    Embeddings that have collapsed to one point are drawn as one, by either method, and the panel says so.

    Args:
        parts: ``{title: (embeddings [N, D], labels [N])}``; parts of one length show the same rows.
        class_names: names by label, for a legend where there are at most 20 classes.
        method: principal components, or t-SNE with them as its start.
        max_items: the largest number of rows per part; a larger part is sampled at random.
        seed: of that draw and of t-SNE.
    """
    figure = new_figure(5.2 * len(parts) + 1.0, 4.9)
    panels = np.atleast_1d(figure.subplots(1, len(parts)))
    for axes, (title, (embeddings, labels)) in zip(panels, parts.items(), strict=True):
        chosen = some_of(len(labels), max_items, seed)
        points = directions(embeddings.detach()[chosen]).numpy()
        classes, colors = np.unique(labels.cpu().numpy()[chosen], return_inverse=True)
        if collapsed := bool(np.ptp(points, axis=0).max() <= ONE_POINT):
            flat = np.zeros((len(points), 2), dtype=np.float32)  # t-SNE would divide by a spread of 0
            note(axes, "all images lie on one point")
        else:
            flat = flattened(points, method, seed)
        few = len(classes) <= 20
        palette = "tab10" if len(classes) <= 10 else "tab20" if few else "turbo"
        drawn = axes.scatter(flat[:, 0], flat[:, 1], c=colors, cmap=palette, s=9, alpha=0.85, linewidths=0)
        if few and len(class_names) and axes is panels[-1]:
            handles = drawn.legend_elements(num=list(range(len(classes))))[0]
            names = [str(class_names[label]) for label in classes]
            axes.legend(handles, names, frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
        axes.set(xticks=[], yticks=[])
        how = "collapsed" if collapsed else _METHODS[method]
        axes.set_title(f"{title}\n{len(flat)} images of {len(classes)} classes, {how}", fontsize=10)
        axes.spines[:].set_visible(False)
    return figure


MARKERS = "osD^vP*X"


def chosen_classes(
    embeddings: Tensor, labels: Tensor, class_names: Sequence[str] = (), classes: int = 4, seed: int = 0
) -> Figure:
    """Normalized embeddings of some classes by their two greatest principal components, a marker for each class.

    Args:
        embeddings: ``[N, D]``.
        labels: ``[N]``.
        class_names: names by label.
        classes: how many are drawn at random, at most 8; those that there are, if fewer.
        seed: of that draw.

    Raises:
        ValueError: another number of classes.
    """
    if not 1 <= classes <= len(MARKERS):
        raise ValueError(f"chosen_classes draws from 1 to {len(MARKERS)} classes, not {classes}")
    known = labels.cpu().unique()  # type: ignore[no-untyped-call]
    drawn = known[some_of(len(known), classes, seed)].tolist()
    chosen = torch.isin(labels.cpu(), torch.tensor(drawn))
    points, of = directions(embeddings.detach().cpu()[chosen]).numpy(), labels.cpu()[chosen].numpy()
    figure = new_figure(6.4, 4.6)
    axes = figure.subplots()
    if len(points) < 2 or bool(np.ptp(points, axis=0).max() <= ONE_POINT):
        flat = np.zeros((len(points), 2), dtype=np.float32)
        note(axes, "all images lie on one point")
    else:
        from sklearn.decomposition import PCA

        flat = PCA(2, random_state=seed).fit_transform(points)
    for marker, label in zip(MARKERS, drawn, strict=False):
        mine = flat[of == label]
        name = str(class_names[label]) if len(class_names) else str(label)
        axes.scatter(mine[:, 0], mine[:, 1], marker=marker, s=26, alpha=0.8, linewidths=0, label=name)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    axes.set(xlabel="first component", ylabel="second component")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def image_map(
    embeddings: Tensor, image: Callable[[int], Tensor], enlarged: int = 2, max_items: int = 1000, seed: int = 0
) -> Figure:
    """Images at the places that t-SNE gives their normalized embeddings, and the fullest regions of it, enlarged.

    Args:
        embeddings: ``[N, D]``.
        image: gives the image of an index, uint8 ``[C, H, W]``.
        enlarged: how many regions, a ninth of the map's sides each.
        max_items: the largest number of images; more are sampled at random.
        seed: of that draw and of t-SNE.
    """
    chosen = some_of(len(embeddings), max_items, seed)
    flat = flattened(directions(embeddings.detach().cpu()[chosen]).numpy(), "tsne", seed)
    flat = (flat - flat.min(axis=0)) / np.maximum(np.ptp(flat, axis=0), 1e-12)
    figure = new_figure(9.0 + 4.5 * bool(enlarged), 9.0)
    grid = figure.add_gridspec(max(1, enlarged), 2 if enlarged else 1, width_ratios=[2, 1] if enlarged else [1])
    whole = figure.add_subplot(grid[:, 0])
    pictures = [_small(image(int(index))) for index in chosen]
    _place(whole, flat, pictures, 14)
    whole.set_title(f"{len(flat)} images, t-SNE", fontsize=10)
    cells = np.minimum((flat * 9).astype(int), 8)
    counts = np.zeros((9, 9), dtype=int)
    np.add.at(counts, (cells[:, 0], cells[:, 1]), 1)
    fullest = np.argsort(-counts, axis=None, kind="stable")[:enlarged]
    for row, cell in enumerate(fullest):
        corner = np.array(np.unravel_index(cell, counts.shape)) / 9
        inside = ((flat >= corner) & (flat <= corner + 1 / 9)).all(axis=1)
        axes = figure.add_subplot(grid[row, 1])
        near = [picture for picture, wanted in zip(pictures, inside, strict=True) if wanted]
        _place(axes, (flat[inside] - corner) * 9, near, 34)
        axes.set_title(f"region {row + 1}", fontsize=10)
        whole.add_patch(Rectangle(tuple(corner), 1 / 9, 1 / 9, fill=False, edgecolor=ORANGE, linewidth=1.6, zorder=5))
        whole.text(
            corner[0], corner[1], str(row + 1), color="white", backgroundcolor=ORANGE, fontsize=9, va="top", zorder=6
        )
    return figure


def _small(image: Tensor) -> NDArray[np.uint8]:
    """A picture of 48 pixels at most, ``[H, W, 3]``."""
    scale = min(1.0, 48 / max(image.shape[-2:]))
    if scale < 1:
        from torchvision.transforms.v2.functional import resize  # takes a second

        image = resize(image, [max(1, round(side * scale)) for side in image.shape[-2:]], antialias=True)
    return image.detach().cpu().expand(3, -1, -1).permute(1, 2, 0).numpy()  # type: ignore[no-any-return]


def _place(axes: Any, flat: NDArray[np.float32], pictures: Sequence[NDArray[np.uint8]], size: int) -> None:
    """Pictures at their places in a square from 0 to 1, their longer side of ``size`` points."""
    axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), xticks=[], yticks=[])
    axes.spines[:].set_color(GRAY)
    for (x, y), picture in zip(flat, pictures, strict=True):
        box = OffsetImage(picture, zoom=size / max(picture.shape[:2]))
        axes.add_artist(AnnotationBbox(box, (x, y), frameon=False, pad=0))


def flattened(points: NDArray[np.float32], method: str, seed: int = 0) -> NDArray[np.float32]:
    """Points in two dimensions, ``[N, 2]``: by t-SNE, or by principal components, which up to 10 points have anyway.

    Args:
        points: ``[N, D]``, not all alike.
        method: ``"tsne"`` or ``"pca"``.
        seed: of either.
    """
    if method == "tsne" and len(points) > 10:
        from sklearn.manifold import TSNE
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

        tsne = TSNE(perplexity=min(30, (len(points) - 1) / 3), init="pca", max_iter=400, random_state=seed)
        with threadpool_limits(1):  # so few points keep one thread busy; more wait for each other 400 times
            return tsne.fit_transform(points)  # type: ignore[no-any-return]
    from sklearn.decomposition import PCA

    return PCA(2, random_state=seed).fit_transform(points)  # type: ignore[no-any-return]
