"""Clusters of embeddings: k-means where their number is known, HDBSCAN where it is not; their table and sheets."""

from __future__ import annotations

import csv
import dataclasses
import functools
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import HDBSCAN, MiniBatchKMeans

from ..errors import ConfigError
from ..evaluation import default_neighbors, kmeans
from ..evaluation.figures import some_of
from ..evaluation.sheets import CELL, contact_sheet
from ..files import write_atomically
from .collection import class_of
from .embedding import Embedded
from .pictures import PictureReader

AUTO = "auto"
NOISE = -1  # the number of images that HDBSCAN puts in no cluster
SMALLEST = 5  # images of a cluster of HDBSCAN, at least
LARGE = 1_000_000_000  # images x clusters x dimensions above which k-means goes by minibatches
DENSE = 8000  # images that HDBSCAN compares with each other: 8 s and 1.3 GB; of more, this number is drawn
SHEET = 60  # images of a cluster on its contact sheet
_BATCH, _PASSES = 4096, 5  # of k-means with minibatches
_TABLE = "clusters.csv"
_COLUMNS = ["path", "cluster", "distance_to_center", "class", "cluster_class", "cluster_share", "sheet"]

Number = int | str
"""How many clusters, or :data:`AUTO`."""
SheetProgress = Callable[[int, int], None]
"""Called with how many sheets are drawn, and how many there will be."""


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Images that lie together; ``number`` counts from 0, the largest first, and is -1 for images in no cluster."""

    number: int
    members: list[int]  # numbers of images, the nearest to the center first
    name: str = ""  # the class that most of its images have
    share: float | None = None  # of its images that have this class; None where there are no classes
    shares: tuple[tuple[str, float], ...] = ()  # its most frequent classes, at most three

    @property
    def title(self) -> str:
        """Its size, and its class where there is one."""
        images = f"{len(self.members)} image{'s' * (len(self.members) != 1)}"
        what = f"no cluster (noise): {images}" if self.number == NOISE else f"cluster {self.number}: {images}"
        return what if self.share is None else f"{what}, {self.share:.0%} {self.name or '(no folder)'}"


@dataclasses.dataclass(frozen=True)
class Grouping:
    """All clusters of a folder's images; those in no cluster come last and have no distance."""

    embedded: Embedded
    method: str
    numbers: NDArray[np.int64]  # the cluster of each image
    distances: NDArray[np.float32]  # of each image from its cluster's center
    clusters: list[Cluster]


def check_clusters(clusters: Number, smallest: int | None, images: int, where: str) -> None:
    """Refuse a number of clusters that images cannot have."""
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
    """Return the clusters of images, numbered by size.

    K-means is that of the evaluation (:func:`pml_ext.evaluation.kmeans`) up to a billion images x clusters x
    dimensions. Above that it takes minibatches of 4,096 images and passes five times over all of them
    (:class:`sklearn.cluster.MiniBatchKMeans`).

    ``"auto"`` is :class:`sklearn.cluster.HDBSCAN`, which leaves images out that lie in no cluster. It compares up to
    8,000 images with each other; of a larger collection it sees 8,000 drawn at random, and each of the others goes
    where the nearest of these is.

    Args:
        embedded: the images.
        clusters: how many, or ``"auto"``.
        smallest: with ``"auto"``, images that a cluster has at least; 5 by default.

    Raises:
        ConfigError: more clusters than images, or wrong settings.
    """
    images, dimensions = embedded.embeddings.shape
    check_clusters(clusters, smallest, images, str(embedded.folder))
    if not isinstance(clusters, int):
        unordered = _by_density(embedded, smallest or SMALLEST)
        method = "HDBSCAN" + f" of {DENSE} images, drawn at random; the others by their nearest" * (images > DENSE)
    elif images * clusters * dimensions > LARGE:
        search = MiniBatchKMeans(clusters, batch_size=_BATCH, max_iter=_PASSES, n_init=1, random_state=0)
        unordered, method = search.fit_predict(embedded.embeddings.cpu().numpy()), "k-means with minibatches"
    else:
        unordered, method = kmeans(embedded.embeddings, clusters).cpu().numpy(), "k-means"
    numbers = _by_size(unordered.astype(np.int64))
    distances = _distances(embedded.embeddings.cpu().numpy(), numbers)
    return Grouping(embedded, method, numbers, distances, _clusters(numbers, distances, embedded.classes))


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
    """Number clusters from 0, the largest first, without gaps; numbers below 0 stay."""
    sizes = np.bincount(unordered[unordered >= 0], minlength=1)
    rank = np.empty(len(sizes), dtype=np.int64)
    rank[np.argsort(-sizes, kind="stable")] = np.arange(len(sizes))
    return np.asarray(np.where(unordered < 0, NOISE, rank[unordered.clip(0)]), dtype=np.int64)


def _distances(points: NDArray[np.float32], numbers: NDArray[np.int64]) -> NDArray[np.float32]:
    distances = np.full(len(points), np.nan, dtype=np.float32)
    order = np.argsort(numbers, kind="stable")
    for members in np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1):
        if numbers[members[0]] == NOISE:
            continue
        center = points[members].mean(0, dtype=np.float64).astype(np.float32)
        distances[members] = np.linalg.norm(points[members] - center, axis=1)
    return distances


def _clusters(numbers: NDArray[np.int64], distances: NDArray[np.float32], classes: Sequence[str]) -> list[Cluster]:
    order = np.lexsort((np.nan_to_num(distances), numbers))  # by cluster, then from the center outwards
    there, starts = np.unique(numbers[order], return_index=True)
    known, clusters = any(classes), []
    for number, part in zip(there.tolist(), np.split(order, starts[1:]), strict=True):
        members = part.tolist()
        if not known:
            clusters.append(Cluster(number, members))
            continue
        counts = Counter(classes[member] for member in members)
        shares = tuple((name, count / len(members)) for name, count in counts.most_common(3))
        clusters.append(Cluster(number, members, *shares[0], shares))
    return sorted(clusters, key=lambda cluster: (cluster.number == NOISE, cluster.number))


# Table and contact sheets


class Clusters(dict[str, int]):
    """The cluster of every path."""

    def __init__(self, grouping: Grouping, sheets: dict[int, Path]) -> None:
        super().__init__(zip(grouping.embedded.paths, grouping.numbers.tolist(), strict=True))
        self.grouping, self.sheets = grouping, sheets

    @property
    def clusters(self) -> list[Cluster]:
        """All clusters, the largest first; images in no cluster come last."""
        return self.grouping.clusters

    def as_json(self) -> dict[str, Any]:
        """Return everything as JSON has it."""
        grouping, embedded = self.grouping, self.grouping.embedded
        columns = embedded.paths, embedded.classes, grouping.numbers.tolist(), grouping.distances.tolist()
        return {
            "folder": str(embedded.folder),
            "method": grouping.method,
            "clusters": [
                {
                    "cluster": cluster.number,
                    "images": len(cluster.members),
                    "class": cluster.name if cluster.share is not None else None,
                    "share": cluster.share,
                    "classes": dict(cluster.shares),
                    "nearest": [embedded.paths[member] for member in cluster.members[:3]],
                    "sheet": str(self.sheets[cluster.number]) if cluster.number in self.sheets else None,
                }
                for cluster in grouping.clusters
            ],
            "images": [
                {"path": path, "class": name, "cluster": number, "distance": distance if number != NOISE else None}
                for path, name, number, distance in zip(*columns, strict=True)
            ],
        }


def write_clusters(
    place: Path, grouping: Grouping, channels: int, sheets: int = 100, progress: SheetProgress | None = None
) -> Clusters:
    """Write ``clusters.csv`` and the largest clusters' contact sheets, in place of those that an older table lists.

    Raises:
        ConfigError: a file that an earlier table does not list has the name of the table or of a sheet; nothing is
            written then.
    """
    chosen = sorted(grouping.clusters, key=lambda cluster: -len(cluster.members))[:sheets]
    drawn = {cluster.number: place / _sheet_name(cluster.number) for cluster in chosen}
    earlier = _earlier_sheets(place / _TABLE)
    for path in drawn.values():
        if path.name not in earlier and path.exists():
            raise _foreign(path)
    place.mkdir(parents=True, exist_ok=True)
    for name in earlier:
        (place / name).unlink(missing_ok=True)
    write_atomically(place / _TABLE, functools.partial(_write_table, grouping=grouping, sheets=drawn))
    reader = PictureReader(channels)
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:  # Pillow decodes without Python's lock
        for done, cluster in enumerate(chosen, start=1):
            sheet = _draw_sheet(grouping, cluster, reader, pool)
            write_atomically(drawn[cluster.number], functools.partial(sheet.save, format="PNG"))
            if progress is not None:
                progress(done, len(chosen))
    reader.warn("the contact sheets have")
    return Clusters(grouping, drawn)


def _sheet_name(number: int) -> str:
    return "noise.png" if number == NOISE else f"cluster-{number:03d}.png"


def _foreign(path: Path) -> ConfigError:
    return ConfigError(f"{path} was not written by an earlier pml-ext cluster; type -o FOLDER for another folder")


def _earlier_sheets(table: Path) -> set[str]:
    """Return the names of the contact sheets that an earlier table lists."""
    if not table.exists():
        return set()
    try:
        with table.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            rows = csv.DictReader(file)
            if rows.fieldnames != _COLUMNS:
                raise ValueError("other columns")
            listed = {row["sheet"] or "" for row in rows}
            return {name for name in listed if re.fullmatch(r"noise\.png|cluster-\d{3,}\.png", name)}
    except (OSError, ValueError, csv.Error):
        raise _foreign(table) from None


def _write_table(path: Path, grouping: Grouping, sheets: Mapping[int, Path]) -> None:
    embedded = grouping.embedded
    about = {cluster.number: cluster for cluster in grouping.clusters}
    # Bytes of a name that are no UTF-8 go back to what they are on the disk.
    with path.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = csv.writer(file)
        writer.writerow(_COLUMNS)
        columns = embedded.paths, grouping.numbers.tolist(), grouping.distances.tolist(), embedded.classes
        for name, number, distance, own in zip(*columns, strict=True):
            cluster = about[number]
            share = f"{cluster.share:.4f}" if cluster.share is not None else ""
            sheet = _sheet_name(number) if number in sheets else ""
            apart = f"{distance:.6f}" if number != NOISE else ""
            writer.writerow([name, number, apart, own, cluster.name, share, sheet])


def _draw_sheet(grouping: Grouping, cluster: Cluster, reader: PictureReader, pool: ThreadPoolExecutor) -> Any:
    """Draw a contact sheet as a Pillow image; images of other classes than the cluster's are framed red."""
    embedded, shown = grouping.embedded, cluster.members[:SHEET]
    title = cluster.title
    if cluster.number != NOISE:
        some = len(cluster.members) > SHEET
        title += f", the {SHEET} nearest to its center" if some else ", nearest to its center first"
    files = [embedded.folder / embedded.paths[member] for member in shown]
    pictures = list(pool.map(lambda file: reader.image(file, CELL), files))
    if cluster.share is None:
        return contact_sheet(title, pictures)
    names = [class_of(embedded.paths[member]) for member in shown]
    return contact_sheet(title, pictures, names, [cluster.number != NOISE and name != cluster.name for name in names])
