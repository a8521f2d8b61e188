"""Clusters of embeddings: by k-means or first neighbors; their table and contact sheets."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from pml_ext.errors import ConfigError, counted
from pml_ext.evaluation import kmeans, nearest_of, sample_indices
from pml_ext_train.data import CLUSTERS_COLUMNS, CLUSTERS_TABLE, listed_sheets, table_text
from pml_ext_train.files import write_atomically, write_text
from pml_ext_train.report import CELL, PictureReader, contact_sheet
from pml_ext_train.retrieval import Numbers, Vectors

from ..collection.embedded import Embedded
from .first_neighbors import first_neighbor_partitions

AUTO = "auto"
REST = -1  # the number of the images that are in no group
COMPARED = 20_000  # most images whose first neighbors are looked for; larger sets are sampled
SHEET = 60  # maximum images on a cluster's contact sheet
SHEETS = 100  # maximum number of contact sheets, without that of the rest

Number = int | str
"""How many clusters, or :data:`AUTO`."""


@dataclasses.dataclass(frozen=True)
class Cluster:
    """A cluster of images; ``number`` counts from 0 by decreasing size, and is :data:`REST` for the rest."""

    number: int
    members: list[int]  # image numbers, nearest to the center first; of the rest, group after group
    name: str = ""  # the most frequent class
    share: float | None = None  # fraction of its images in this class; None without classes
    shares: tuple[tuple[str, float], ...] = ()  # name and fraction of the three most frequent classes

    @property
    def is_rest(self) -> bool:
        """Whether it is no group, but the images of too small groups."""
        return self.number == REST

    @property
    def title(self) -> str:
        """The cluster's size, and its most frequent class, if any."""
        what = f"{'rest' if self.is_rest else f'cluster {self.number}'}: {counted(len(self.members), 'image')}"
        if self.share is None:
            return what
        return f"{what}, {self.share:.0%} {self.name or '(no folder)'}"


@dataclasses.dataclass(frozen=True)
class Grouping:
    """All clusters of a folder's images, the largest first and the rest last."""

    embedded: Embedded
    method: str
    numbers: Numbers  # the cluster of each image; REST for one that is not grouped
    distances: Vectors  # distance of each image to its cluster's center; NaN for one that is not grouped
    clusters: list[Cluster]
    other_numbers: tuple[int, ...] = ()  # with "auto", of clusters in the finer and the coarser partitions

    @property
    def rest(self) -> int:
        """How many images are in no group."""
        return sum(len(each.members) for each in self.clusters if each.is_rest)

    def joined(self, joins: Iterable[Sequence[int]]) -> Grouping:
        """The grouping with some groups joined, one join after another; each keeps its smallest number."""
        parts = {each.number: np.sort(each.members) for each in self.clusters}
        for numbers in joins:
            unknown = [number for number in numbers if number not in parts or number == REST]
            if unknown or len(set(numbers)) < len(numbers):
                shown = "-".join(map(str, numbers))
                raise ConfigError(f"joined={shown}: there are no such groups to join; find the clusters again")
            members = np.concatenate([parts.pop(number) for number in numbers])
            parts[min(numbers)] = np.sort(members)
        return _grouping(self.embedded, self.method, parts, self.other_numbers)


def check_clusters(clusters: Number, min_size: int = 1) -> None:
    """Raise ConfigError for an invalid number of clusters, or of images in a cluster."""
    if clusters != AUTO and (not isinstance(clusters, int) or clusters < 1):
        raise ConfigError(f"--clusters {clusters}: wanted 1 or more, or auto")
    if min_size < 1:
        raise ConfigError(f"--min-size {min_size}: wanted 1 or more")


def group(embedded: Embedded, clusters: Number, chosen: Sequence[int] | None = None, min_size: int = 1) -> Grouping:
    """Clusters of images, numbered by decreasing size.

    A number runs k-means. ``"auto"`` is the second partition by first neighbors, or the only one. Above 20,000 images,
    a random sample is clustered, and each other image joins its nearest one. With ``chosen``, only these images, by
    number, are grouped. Images of clusters with fewer than ``min_size`` go to the rest.
    """
    check_clusters(clusters, min_size)
    images = np.arange(len(embedded.paths)) if chosen is None else np.asarray(chosen, dtype=np.int64)
    points = embedded.embeddings if chosen is None else embedded.embeddings[images]
    other_numbers: tuple[int, ...] = ()
    if isinstance(clusters, int):
        if len(images) < clusters:
            raise ConfigError(
                f"--clusters {clusters}: wanted {clusters} images or more; {embedded.folder} has {len(images)}"
            )
        method = "k-means"
        labels = kmeans(points, clusters).cpu().numpy()
    else:
        method, labels, other_numbers = _by_first_neighbors(points.cpu().float())
    order = np.argsort(labels, kind="stable")
    groups = np.split(images[order], np.flatnonzero(np.diff(labels[order])) + 1)
    groups.sort(key=len, reverse=True)
    parts = dict(enumerate(members for members in groups if len(members) >= min_size))
    small = groups[len(parts) :]
    if small:
        parts[REST] = np.concatenate(small)
    return _grouping(embedded, method, parts, other_numbers)


def _by_first_neighbors(points: Tensor) -> tuple[str, Numbers, tuple[int, ...]]:
    """Name of the method, the cluster of each point, and the sizes of finer and coarser partitions."""
    drawn = sample_indices(len(points), COMPARED, seed=0)
    partitions = first_neighbor_partitions(points[drawn])
    labels = partitions[:2][-1]
    others = [*partitions[:2][:-1], *partitions[2:]]
    numbers = tuple(int(partition.max()) + 1 for partition in others)
    if len(drawn) == len(points):
        return "first neighbors", labels, numbers
    _, nearest = nearest_of(points, 1, points[drawn])
    method = f"first neighbors of {COMPARED} images, drawn at random; the others by their nearest"
    return method, labels[nearest[:, 0].cpu().numpy()], numbers


def _grouping(
    embedded: Embedded, method: str, parts: Mapping[int, Numbers], other_numbers: tuple[int, ...]
) -> Grouping:
    """The clusters of images, from their members by number."""
    points = embedded.embeddings.cpu().numpy()
    classes = embedded.classes
    numbers = np.full(len(points), REST, dtype=np.int64)
    distances = np.full(len(points), np.nan, dtype=np.float32)
    found = []
    for number, part in parts.items():
        members = part
        if number != REST:
            center = points[part].mean(0, dtype=np.float64).astype(np.float32)
            numbers[part] = number
            distances[part] = np.linalg.norm(points[part] - center, axis=1)
            members = part[np.argsort(distances[part], kind="stable")]
        counts = Counter(classes[member] for member in members)
        cluster = Cluster(number, members.tolist())
        if any(classes):
            shares = tuple((name, count / len(members)) for name, count in counts.most_common(3))
            cluster = Cluster(number, members.tolist(), *shares[0], shares)
        found.append(cluster)
    found.sort(key=lambda each: (each.is_rest, -len(each.members)))
    return Grouping(embedded, method, numbers, distances, found, other_numbers)


# Table and contact sheets


class Clusters(dict[str, int]):
    """The cluster of every path, :data:`REST` for the rest, with the written ``table`` and ``sheets`` (by cluster)."""

    def __init__(self, grouping: Grouping, table: Path, sheets: dict[int, Path]) -> None:
        super().__init__(zip(grouping.embedded.paths, grouping.numbers.tolist(), strict=True))
        self.grouping = grouping
        self.table = table
        self.sheets = sheets
        self.clusters = grouping.clusters


def write_clusters(place: Path, grouping: Grouping, channels: int) -> Clusters:
    """Write ``clusters.csv`` and contact sheets of the largest clusters; replace earlier ones.

    ConfigError if a file of such a name has another origin.
    """
    chosen = [each for each in grouping.clusters if each.number < SHEETS]  # the largest, and the rest
    earlier = _earlier_sheets(place / CLUSTERS_TABLE)
    drawn = {}  # sheets by the numbers of their clusters
    for cluster in chosen:
        file = place / _sheet_name(cluster.number)
        if file.name not in earlier and file.exists():
            raise _foreign(file)
        drawn[cluster.number] = file
    place.mkdir(parents=True, exist_ok=True)
    for name in earlier:
        (place / name).unlink(missing_ok=True)
    write_text(place / CLUSTERS_TABLE, _table_of(grouping, drawn))
    reader = PictureReader(channels)
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:  # Pillow releases the GIL while decoding
        for cluster in chosen:
            sheet = _draw_sheet(grouping, cluster, reader, pool)
            write_atomically(drawn[cluster.number], functools.partial(sheet.save, format="PNG"))
    reader.warn("the contact sheets have")
    return Clusters(grouping, place / CLUSTERS_TABLE, drawn)


def _sheet_name(number: int) -> str:
    return "cluster-rest.png" if number == REST else f"cluster-{number:03d}.png"


def _foreign(path: Path) -> ConfigError:
    return ConfigError(f"{path} was not written by pml-ext cluster; type -o FOLDER to choose another folder")


def _earlier_sheets(table: Path) -> set[str]:
    if not table.exists():
        return set()
    if (sheets := listed_sheets(table)) is None:
        raise _foreign(table)
    return sheets


def _table_of(grouping: Grouping, sheets: dict[int, Path]) -> str:
    embedded = grouping.embedded
    rows = []
    columns = embedded.paths, grouping.numbers.tolist(), grouping.distances.tolist(), embedded.classes
    for path, number, distance, class_name in zip(*columns, strict=True):
        sheet = _sheet_name(number) if number in sheets else ""
        group_and_distance = ("rest", "") if number == REST else (number, f"{distance:.6f}")
        rows.append([path, *group_and_distance, class_name, sheet])
    return table_text(CLUSTERS_COLUMNS, rows)


def _draw_sheet(grouping: Grouping, cluster: Cluster, reader: PictureReader, pool: ThreadPoolExecutor) -> Image.Image:
    embedded = grouping.embedded
    shown = cluster.members[:SHEET]
    title = cluster.title if cluster.is_rest else f"{cluster.title}, nearest to its center first"
    files = [embedded.folder / embedded.paths[member] for member in shown]
    pictures = list(pool.map(lambda file: reader.image(file, CELL), files))
    if cluster.share is None:
        return contact_sheet(title, pictures)
    names = [embedded.class_folders.class_of(embedded.paths[member]) for member in shown]
    framed = [not cluster.is_rest and name != cluster.name for name in names]
    return contact_sheet(title, pictures, names, framed=framed)
