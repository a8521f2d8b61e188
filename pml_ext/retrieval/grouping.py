"""Clusters of embeddings: k-means where their number is known, HDBSCAN where it is not."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.cluster import HDBSCAN, MiniBatchKMeans

from ..errors import ConfigError
from ..evaluation import default_neighbors, kmeans
from ..evaluation.drawing import some_of
from .embedding import Embedded

AUTO = "auto"
NOISE = -1  # the number of images that HDBSCAN puts in no cluster
SMALLEST = 5  # images of a cluster of HDBSCAN, at least
LARGE = 1_000_000_000  # images x clusters x dimensions above which k-means goes by minibatches
DENSE = 8000  # images that HDBSCAN compares with each other: 8 s and 1.3 GB; of more, this number is drawn
_BATCH, _PASSES = 4096, 5
_TILE = 1 << 16

Number = int | str
"""How many clusters, or :data:`AUTO`."""


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Images that lie together.

    Args:
        number: from 0, the largest first; -1 of the images that are in no cluster.
        members: numbers of its images, the nearest to its center first; in their order for -1, which has no center.
        name: the class that most of its images have; "" where there are no classes.
        share: of its images that have this class, from 0 to 1; None where there are no classes.
        shares: its most frequent classes and their shares, at most three.
    """

    number: int
    members: list[int]
    name: str = ""
    share: float | None = None
    shares: tuple[tuple[str, float], ...] = ()

    @property
    def title(self) -> str:
        """What it is, in a line: its size, and its class where there is one."""
        images = f"{len(self.members)} image{'s' * (len(self.members) != 1)}"
        what = f"no cluster (noise): {images}" if self.number == NOISE else f"cluster {self.number}: {images}"
        return what if self.share is None else f"{what}, {self.share:.0%} {self.name or '(no folder)'}"


@dataclasses.dataclass(frozen=True)
class Grouping:
    """All clusters of a folder's images.

    Args:
        embedded: the images.
        method: what sorted them, in words.
        numbers: the cluster of each image, ``[N]``.
        distances: of each from its cluster's center, ``[N]``; NaN for images in no cluster.
        clusters: by number; images in no cluster come last.
    """

    embedded: Embedded
    method: str
    numbers: NDArray[np.int64]
    distances: NDArray[np.float32]
    clusters: list[Cluster]


def check_clusters(clusters: Number, smallest: int | None, images: int, where: str) -> None:
    """Refuses a number of clusters that images cannot have.

    Args:
        clusters: as typed.
        smallest: as typed, None where it was not.
        images: how many there are; 0 where that is not known yet.
        where: they are.

    Raises:
        ConfigError: the text says what is wanted.
    """
    if clusters == AUTO:
        if smallest is not None and smallest < 2:
            raise ConfigError(f"--smallest {smallest}: wanted 2 or more images")
        if 0 < images < (smallest or SMALLEST):
            raise ConfigError(
                f"{images} images in {where}, and a cluster has {smallest or SMALLEST} or more; type --clusters N"
            )
        return
    if not isinstance(clusters, int) or isinstance(clusters, bool):
        raise ConfigError(f"--clusters {clusters}: wanted a number, or auto")
    if smallest is not None:
        raise ConfigError(f"--smallest {smallest} goes with --clusters auto")
    if clusters < 1:
        raise ConfigError(f"--clusters {clusters}: wanted 1 or more")
    if clusters > images > 0:
        raise ConfigError(f"--clusters {clusters}: wanted from 1 to the {images} images of {where}")


def group(embedded: Embedded, clusters: Number, smallest: int | None = None) -> Grouping:
    """The clusters of images.

    K-means is that of the evaluation (:func:`pml_ext.evaluation.kmeans`) up to a billion images x clusters x
    dimensions. Above that it takes minibatches of 4,096 images and passes five times over all of them, from a start by
    k-means++ (:class:`sklearn.cluster.MiniBatchKMeans`).

    ``"auto"`` is :class:`sklearn.cluster.HDBSCAN`, which finds how many clusters there are and leaves images out that
    lie in none. It compares up to 8,000 images with each other; of a larger collection it sees 8,000 drawn at random,
    and each of the others goes where the nearest of these is.

    Args:
        embedded: the images.
        clusters: how many, or ``"auto"``.
        smallest: with ``"auto"``, images that a cluster has at least; 5 by default.

    Returns:
        Clusters, numbered by size.

    Raises:
        ConfigError: more clusters than images, or wrong settings.
    """
    images, dimensions = embedded.embeddings.shape
    check_clusters(clusters, smallest, images, str(embedded.folder))
    if not isinstance(clusters, int):
        unordered = _by_density(embedded, smallest or SMALLEST)
        method = "HDBSCAN" + f" of {DENSE} images, drawn at random; the others by their nearest" * (images > DENSE)
    elif images * clusters * dimensions > LARGE:
        unordered, method = _by_minibatches(embedded, clusters), "k-means with minibatches"
    else:
        unordered, method = kmeans(embedded.embeddings, clusters).cpu().numpy().astype(np.int64), "k-means"
    numbers = _by_size(unordered)
    distances = _distances(embedded.embeddings.cpu().numpy(), numbers)
    return Grouping(embedded, method, numbers, distances, _clusters(numbers, distances, embedded.classes))


def _by_minibatches(embedded: Embedded, clusters: int) -> NDArray[np.int64]:
    search = MiniBatchKMeans(clusters, batch_size=_BATCH, max_iter=_PASSES, n_init=1, random_state=0)
    return np.asarray(search.fit_predict(embedded.embeddings.cpu().numpy()), dtype=np.int64)


def _by_density(embedded: Embedded, smallest: int) -> NDArray[np.int64]:
    points = embedded.embeddings.cpu().float()
    drawn = some_of(len(points), DENSE, seed=0)
    search = HDBSCAN(min_cluster_size=smallest, algorithm="brute", copy=True)
    labels = np.asarray(search.fit_predict(points[drawn].numpy()), dtype=np.int64)
    if len(drawn) == len(points):
        return labels
    _, nearest = default_neighbors().search(points, 1, points[drawn])
    return np.asarray(labels[nearest[:, 0].cpu().numpy()])


def _by_size(unordered: NDArray[np.int64]) -> NDArray[np.int64]:
    """Numbers from 0, the largest cluster first, without gaps; below 0 stays."""
    sizes = np.bincount(unordered[unordered >= 0], minlength=1)
    rank = np.empty(len(sizes), dtype=np.int64)
    rank[np.argsort(-sizes, kind="stable")] = np.arange(len(sizes))
    ranked = np.where(unordered < 0, NOISE, rank[unordered.clip(0)]).astype(np.int64)
    return np.asarray(ranked)


def _distances(points: NDArray[np.float32], numbers: NDArray[np.int64]) -> NDArray[np.float32]:
    distances = np.full(len(points), np.nan, dtype=np.float32)
    inside = numbers >= 0
    if not inside.any():
        return distances
    of = torch.from_numpy(numbers[inside])
    sizes = torch.bincount(of)
    sums = torch.zeros(len(sizes), points.shape[1], dtype=torch.float64)
    places = np.flatnonzero(inside)
    for start in range(0, len(places), _TILE):
        rows = places[start : start + _TILE]
        sums.index_add_(0, of[start : start + _TILE], torch.from_numpy(points[rows]).double())
    centers = (sums / sizes[:, None]).float()
    for start in range(0, len(places), _TILE):
        rows = places[start : start + _TILE]
        offsets = torch.from_numpy(points[rows]) - centers[of[start : start + _TILE]]
        distances[rows] = offsets.norm(dim=1).numpy()
    return distances


def _clusters(numbers: NDArray[np.int64], distances: NDArray[np.float32], classes: Sequence[str]) -> list[Cluster]:
    order = np.lexsort((np.nan_to_num(distances), numbers))  # by cluster, then from the center outwards
    there, starts = np.unique(numbers[order], return_index=True)
    ends = [*starts[1:], len(order)]
    known, clusters = any(classes), []
    for number, start, end in zip(there.tolist(), starts, ends, strict=True):
        members = order[start:end].tolist()
        if not known:
            clusters.append(Cluster(number, members))
            continue
        counts = Counter(classes[member] for member in members)
        shares = tuple((name, count / len(members)) for name, count in counts.most_common(3))
        clusters.append(Cluster(number, members, *shares[0], shares))
    return sorted(clusters, key=lambda cluster: (cluster.number == NOISE, cluster.number))
