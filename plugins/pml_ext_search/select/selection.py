"""Selections of images: the most distinct, outliers, and nearest to class centers.

Distances are Euclidean, in float64. Among equal ones, to 12 digits of the square, the first path comes first.
"""

import dataclasses
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from pml_ext.errors import ConfigError, DataError
from pml_ext.evaluation import inverted_lists, nearest_of
from pml_ext_train.retrieval import Numbers

from ..collection.embedded import Embedded
from ..open_set.open_set import Classes, Distances

SelectionKind = Literal["distinct", "outliers", "central"]
NEIGHBORS = 5  # rank of the neighbor that decides, so that four copies do not hide an outlier

_ROWS = 8192  # vectors that are converted to float64 at a time
_CANDIDATES = 1024  # for the next most distinct image, between two passes over all of them
_CHECKED = 512  # possible outliers whose exact distances are computed at a time
_ROUNDING = 1e-4  # of squared distances in float32, at most
_DIGITS = 12


@dataclasses.dataclass(frozen=True)
class Rows:
    """Selected vectors by their row, and the distance by which each was selected."""

    rows: Numbers
    distances: Distances


@dataclasses.dataclass(frozen=True)
class ListedImages:
    """Images of a folder, or vectors of a file, in an order."""

    embedded: Embedded
    rows: list[int]  # of ``embedded``

    @property
    def paths(self) -> list[str]:
        """The paths of the images, or ids of vectors."""
        return [self.embedded.paths[row] for row in self.rows]

    @property
    def classes(self) -> list[str]:
        """The classes of the images, empty without one."""
        classes = self.embedded.classes
        return [classes[row] for row in self.rows]


@dataclasses.dataclass(frozen=True)
class Selection(ListedImages):
    """Selected images."""

    kind: SelectionKind
    ranks: list[int]  # from 1; of "central", in the image's class
    distances: list[float | None]  # None for the first of "distinct"
    covered: float | None = None  # "distinct": the greatest distance of an image to the nearest selected one
    without_class: int = 0  # "central": images that are left out

    def as_json(self) -> dict[str, Any]:
        """What ``select --json`` prints."""
        selected = []
        for rank, path, name, distance in zip(self.ranks, self.paths, self.classes, self.distances, strict=True):
            selected.append({"rank": rank, "path": path, "class": name, "distance": distance})
        return {
            "folder": str(self.embedded.folder),
            "kind": self.kind,
            "images": len(self.embedded.paths),
            "covered": self.covered,
            "without_class": self.without_class,
            "selected": selected,
        }


def select(embedded: Embedded, count: int, kind: SelectionKind = "distinct") -> Selection:
    """The selected images of a folder, or vectors of a file.

    ``count`` is per class for ``"central"``, which without classes takes all images as one.
    """
    if count < 1:
        raise ConfigError(f"-n {count}: wanted 1 or more")
    points = embedded.embeddings
    if kind == "distinct":
        found, covered = most_distinct(points, count)
        ranks = [*range(1, len(found.rows) + 1)]
        return Selection(embedded, found.rows.tolist(), kind, ranks, [None, *found.distances[1:].tolist()], covered)
    if kind == "outliers":
        if len(points) < 2:
            raise DataError(f"{embedded.folder}: one image; outliers need at least two")
        found = outliers(points, count)
        ranks = [*range(1, len(found.rows) + 1)]
        return Selection(embedded, found.rows.tolist(), kind, ranks, found.distances.tolist())
    names = np.array(embedded.classes)
    have_class = np.flatnonzero(names != "")
    if not len(have_class):
        have_class = np.arange(len(names))
    _, numbers = np.unique(names[have_class], return_inverse=True)
    found = nearest_to_centers(points[have_class], numbers, count)
    _, starts, sizes = np.unique(numbers[found.rows], return_index=True, return_counts=True)
    places = np.arange(len(found.rows)) - np.repeat(starts, sizes)
    return Selection(
        embedded,
        have_class[found.rows].tolist(),
        kind,
        (places + 1).tolist(),
        found.distances.tolist(),
        without_class=len(names) - len(have_class),
    )


def most_distinct(points: Tensor, count: int) -> tuple[Rows, float]:
    r"""The most distinct vectors, and the greatest distance of any to the nearest of them.

    The first is nearest to the mean. Each next one is the farthest from those before it,

    .. math:: s_j = \arg\max_i \min_{l < j} \lVert x_i - x_{s_l} \rVert

    with its distance to the nearest of them. The remaining distance is at most twice the optimum (Gonzalez, Clustering
    to minimize the maximum intercluster distance, 1985). Copies come last.

    Args:
        points: ``[N, D]``.
        count: how many, at most all.

    *Cost:* at most N x count x D multiplications, and 16,384 x D numbers beside the vectors.
    """
    points = points.cpu()
    count = min(count, len(points))
    nearest = torch.full((len(points),), torch.inf, dtype=torch.float64)  # squared, to the selected vectors
    center = points.mean(0, dtype=torch.float64)
    _lower(nearest, points, center[None])
    rows = [int(nearest.argmin())]
    squares = [torch.inf]
    nearest.fill_(torch.inf)
    new = rows[:]
    while True:
        _lower(nearest, points, points[new].double())
        nearest[rows] = -1  # never selected again
        farthest = float(nearest.max())
        if len(rows) == count:
            break
        if farthest == 0:
            copies = (nearest == 0).nonzero().flatten()[: count - len(rows)]
            rows += copies.tolist()
            squares += [0.0] * len(copies)
            break
        new, their_squares = _farthest(nearest, points, count - len(rows))
        rows += new
        squares += their_squares
    distances = np.sqrt(np.array(squares))
    return Rows(np.array(rows, dtype=np.int64), distances), max(farthest, 0.0) ** 0.5


def _farthest(nearest: Tensor, points: Tensor, count: int) -> tuple[list[int], list[float]]:
    """The next most distinct vectors and squared distances: all certain ones, at least one."""
    candidates = nearest.topk(min(_CANDIDATES + 1, len(nearest))).indices
    limit = -1.0  # squared distance of the farthest vector outside the candidates
    if len(candidates) > _CANDIDATES:
        limit = float(nearest[candidates[-1]])
        candidates = candidates[:-1]
    first = int(nearest.argmax())  # not all equally far vectors need be candidates
    with_first = torch.cat([candidates, torch.tensor([first])])
    candidates = torch.from_numpy(np.unique(with_first.numpy()))  # ascending
    vectors = points[candidates].double()
    left = nearest[candidates]
    place = int((candidates == first).nonzero())
    rows = []
    squares = []
    while True:
        rows.append(int(candidates[place]))
        squares.append(float(left[place]))
        left = left.minimum(_squared(vectors, vectors[place : place + 1])[:, 0])
        left[place] = -1
        place = int(left.argmax())
        if len(rows) == count or left[place] <= limit or left[place] <= 0:
            return rows, squares


def _lower(nearest: Tensor, points: Tensor, others: Tensor) -> None:
    """Lower squared distances ``[N]`` to the nearest of some other vectors ``[M, D]``."""
    for start in range(0, len(points), _ROWS):
        rows = slice(start, start + _ROWS)
        found = _squared(points[rows].double(), others).min(1).values
        nearest[rows] = nearest[rows].minimum(found)


def _squared(points: Tensor, others: Tensor) -> Tensor:
    """Squared distances ``[N, M]``, float64, rounded so that equal vectors have distance 0."""
    squares = points.square().sum(1)[:, None] + others.square().sum(1) - 2 * points @ others.T
    return squares.clamp_(min=0).round_(decimals=_DIGITS)


def outliers(points: Tensor, count: int, neighbors: int = NEIGHBORS) -> Rows:
    """The vectors farthest from their k-th nearest other one, with this distance.

    Ramaswamy, Rastogi and Shim, Efficient algorithms for mining outliers from large data sets, 2000. The result is
    exact: faiss gives upper bounds, and exact distances are computed until no other vector can be farther.

    Args:
        points: ``[N, D]``, two or more.
        count: how many, at most all.
        neighbors: k, at most N - 1. An outlier with fewer than k copies is still found.

    *Cost:* N x 20,000 x D multiplications at most, and N x D for each of the first vectors.
    """
    points = points.cpu()
    count = min(count, len(points))
    neighbors = min(neighbors, len(points) - 1)
    bounds = _bounds(points, neighbors) + _ROUNDING
    order = torch.argsort(bounds, descending=True, stable=True)
    squares = torch.empty(0, dtype=torch.float64)
    least = 0.0  # squared distance of the last selected vector so far
    for start in range(0, len(points), _CHECKED):
        if bounds[order[start]] <= least:
            break
        squares = torch.cat([squares, _to_kth_nearest(points, order[start : start + _CHECKED], neighbors, least)])
        if len(squares) >= count:
            least = float(squares.topk(count).values[-1])
    checked = order[: len(squares)].numpy()
    first = np.lexsort((checked, -squares.numpy()))[:count]
    return Rows(checked[first], np.sqrt(squares.numpy()[first]))


def _bounds(points: Tensor, neighbors: int) -> Tensor:
    """Upper bounds of squared distances to the k-th nearest other vectors, ``[N]``."""
    rows = np.ascontiguousarray(points.float().numpy())
    lists = inverted_lists(rows)
    if lists is None:
        found, _ = nearest_of(points, neighbors + 1, points)
        return found[:, -1].double().square()
    squared, _ = lists.search(rows, neighbors + 1)
    squared[squared > 4] = 4  # the maximum for length 1; faiss gives a large number if it finds fewer than k
    return torch.from_numpy(squared[:, -1]).double()


def _to_kth_nearest(points: Tensor, chosen: Tensor, neighbors: int, least: float) -> Tensor:
    """Squared distances of rows to their k-th nearest other vector, exact from ``least`` on.

    A vector is dropped once k others are nearer than that (Bay and Schwabacher, Mining distance-based outliers in near
    linear time with randomization and a simple pruning rule, 2003).
    """
    found = torch.empty(len(chosen), dtype=torch.float64)
    left = torch.arange(len(chosen))
    vectors = points[chosen].double()
    nearest = torch.empty(len(chosen), 0, dtype=torch.float64)
    for start in range(0, len(points), _ROWS):
        squares = _squared(vectors, points[start : start + _ROWS].double())
        rows = chosen[left]
        inside = ((rows >= start) & (rows < start + squares.shape[1])).nonzero().flatten()
        squares[inside, rows[inside] - start] = torch.inf
        nearest = torch.cat([nearest, squares], 1)
        nearest = nearest.topk(min(neighbors, nearest.shape[1]), largest=False).values
        to_last = nearest[:, -1]
        found[left] = to_last
        if nearest.shape[1] == neighbors:
            may_be_first = to_last >= least
            left = left[may_be_first]
            vectors = vectors[may_be_first]
            nearest = nearest[may_be_first]
    return found


def nearest_to_centers(points: Tensor, numbers: Numbers, count: int) -> Rows:
    """The vectors of each class nearest to its center, class after class, nearest first.

    Args:
        points: ``[N, D]``, of length 1; a center is their normalized mean.
        numbers: the class of each, ``[N]``, from 0.
        count: how many of each class, at most all.
    """
    points = points.cpu()
    labels = torch.from_numpy(numbers)
    centers = Classes(points, numbers, int(labels.max()) + 1).centers
    squares = np.empty(len(points))
    for start in range(0, len(points), _ROWS):
        rows = slice(start, start + _ROWS)
        difference = points[rows].double() - centers[labels[rows]]
        squares[rows] = difference.square().sum(1).round(decimals=_DIGITS).numpy()
    order = np.lexsort((squares, numbers))  # stable
    _, starts, sizes = np.unique(numbers[order], return_index=True, return_counts=True)
    ranks = np.arange(len(order)) - np.repeat(starts, sizes)
    chosen = order[ranks < count]
    return Rows(chosen, np.sqrt(squares[chosen]))
