"""Near-duplicates: images whose embeddings are within a radius, and the groups that these pairs make.

**The radius** is a Euclidean distance of embeddings of length 1: 0.1 by default, a cosine similarity of 0.995. How near
an image and its copy are depends on the network, and one that maps whole classes to a point has them all in one group:
look at some groups, and choose a smaller radius then.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import ConfigError
from .faiss_index import FaissIndex
from .index import Gallery

RADIUS = 0.1
_TILE, _PAIRS = 2048, 1 << 18  # images that are compared with as many at a time; pairs whose distance is
Pairs = NDArray[np.int64]


def check_radius(radius: float | None) -> None:
    """Refuses a radius that is none.

    Raises:
        ConfigError: it is NaN or not above 0.
    """
    if radius is not None and not radius > 0:
        raise ConfigError(f"--radius {radius:g}: wanted a distance above 0, of embeddings of length 1 at most 2")


def duplicate_groups(held: Gallery, radius: float) -> list[list[int]]:
    """Images that are within a radius of one another, directly or over others of the group.

    An index by faiss finds the pairs with its own effort, so that it may miss some; else each image is compared with
    each: 10,000 take less than a second, and time grows with the square of their number.

    Args:
        held: the index.
        radius: above 0.

    Returns:
        Groups of two or more, the largest first; numbers of images, in their order.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    points = held.embedded.embeddings
    count = len(points)
    groups = np.arange(count)
    pairs = _near(points, radius) if held.faiss is None else _near_by_faiss(held.faiss, points, radius)
    for ends in pairs:
        joined = groups[ends]
        joined = joined[:, joined[0] != joined[1]]
        if joined.shape[1]:
            graph = coo_array((np.ones(joined.shape[1], dtype=bool), (joined[0], joined[1])), shape=(count, count))
            groups = connected_components(graph, directed=False)[1][groups]
    order = np.argsort(groups, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(groups[order])) + 1)
    several = [part.tolist() for part in parts if len(part) > 1]
    return sorted(several, key=lambda part: (-len(part), part[0]))


def _near(points: Tensor, radius: float) -> Iterator[Pairs]:
    """Pairs ``[2, P]`` within a radius, of all images with all."""
    for start in range(0, len(points), _TILE):
        some = points[start : start + _TILE]
        for other in range(start, len(points), _TILE):
            # |x - y|^2 = 2 - 2 x.y for length 1, a little more generous than float32's rounding; then exactly
            near = (some @ points[other : other + _TILE].T) >= 1 - radius**2 / 2 - 1e-5
            yield _within(points, radius, near.nonzero().T + torch.tensor([[start], [other]], device=points.device))


def _near_by_faiss(index: FaissIndex, points: Tensor, radius: float) -> Iterator[Pairs]:
    for start in range(0, len(points), _TILE):
        first, second = index.within(points[start : start + _TILE], radius)
        yield _within(points, radius, torch.stack([first + start, second]).to(points.device))


def _within(points: Tensor, radius: float, ends: Tensor) -> Pairs:
    ends = ends[:, ends[0] != ends[1]]
    near = [(points[one] - points[other]).norm(dim=1) <= radius for one, other in _parts(ends)]
    return ends[:, torch.cat(near)].cpu().numpy()  # type: ignore[no-any-return]


def _parts(ends: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Some pairs at a time, so that memory does not grow with their number."""
    count = ends.shape[1]
    return [
        (ends[0, start : start + _PAIRS], ends[1, start : start + _PAIRS]) for start in range(0, max(1, count), _PAIRS)
    ]
