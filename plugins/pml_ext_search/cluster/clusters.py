"""Clusters of embeddings: by k-means or first neighbors; their table and contact sheets."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from pml_ext.errors import ConfigError, counted
from pml_ext.evaluation import kmeans, nearest_of, sample_indices
from pml_ext_train.data import CLUSTERS_COLUMNS, CLUSTERS_TABLE, listed_sheets, table_text
from pml_ext_train.files import write_atomically, write_text
from pml_ext_train.report import CELL, PictureReader, contact_sheet
from pml_ext_train.retrieval import Numbers, Vectors

from ..collection.embedded import Embedded
from .first_neighbors import first_neighbor_partitions

AUTO = "auto"
COMPARED = 20_000  # most images whose first neighbors are looked for; larger sets are sampled
SHEET = 60  # maximum images on a cluster's contact sheet
SHEETS = 100  # maximum number of contact sheets

Number = int | str
"""How many clusters, or :data:`AUTO`."""


@dataclasses.dataclass(frozen=True)
class Cluster:
    """A cluster of images; ``number`` counts from 0 by decreasing size."""

    number: int
    members: list[int]  # image numbers, nearest to the center first
    name: str = ""  # the most frequent class
    share: float | None = None  # fraction of its images in this class; None without classes
    shares: tuple[tuple[str, float], ...] = ()  # name and fraction of the three most frequent classes

    @property
    def title(self) -> str:
        """The cluster's size, and its most frequent class, if any."""
        what = f"cluster {self.number}: {counted(len(self.members), 'image')}"
        if self.share is None:
            return what
        return f"{what}, {self.share:.0%} {self.name or '(no folder)'}"


@dataclasses.dataclass(frozen=True)
class Grouping:
    """All clusters of a folder's images."""

    embedded: Embedded
    method: str
    numbers: Numbers  # the cluster of each image; -1 for one that is not grouped
    distances: Vectors  # distance of each image to its cluster's center; NaN for one that is not grouped
    clusters: list[Cluster]
    other_numbers: tuple[int, ...] = ()  # with "auto", of clusters in the finer and the coarser partitions


def check_clusters(clusters: Number) -> None:
    """Raise ConfigError for an invalid number of clusters."""
    if clusters != AUTO and (not isinstance(clusters, int) or clusters < 1):
        raise ConfigError(f"--clusters {clusters}: wanted 1 or more, or auto")


def group(embedded: Embedded, clusters: Number, chosen: Sequence[int] | None = None) -> Grouping:
    """Clusters of images, numbered by decreasing size.

    A number runs k-means. ``"auto"`` is the second partition by first neighbors, or the only one. Above 20,000 images,
    a random sample is clustered, and each other image joins its nearest one. With ``chosen``, only these images, by
    number, are grouped.
    """
    check_clusters(clusters)
    if chosen is not None:
        return _group_of(embedded, clusters, np.asarray(chosen, dtype=np.int64))
    images = len(embedded.paths)
    if isinstance(clusters, int):
        if images < clusters:
            raise ConfigError(
                f"--clusters {clusters}: wanted {clusters} images or more; {embedded.folder} has {images}"
            )
        unordered = kmeans(embedded.embeddings, clusters).cpu().numpy()
        return _numbered_by_size(embedded, "k-means", unordered)
    points = embedded.embeddings.cpu().float()
    drawn = sample_indices(images, COMPARED, seed=0)
    partitions = first_neighbor_partitions(points[drawn])
    method = "first neighbors"
    unordered = partitions[:2][-1]
    if len(drawn) < images:
        method += f" of {COMPARED} images, drawn at random; the others by their nearest"
        _, nearest = nearest_of(points, 1, points[drawn])
        unordered = unordered[nearest[:, 0].cpu().numpy()]
    grouping = _numbered_by_size(embedded, method, unordered)
    others = [*partitions[:2][:-1], *partitions[2:]]
    numbers = tuple(int(partition.max()) + 1 for partition in others)
    return dataclasses.replace(grouping, other_numbers=numbers)


def _group_of(embedded: Embedded, clusters: Number, chosen: Numbers) -> Grouping:
    paths = [embedded.paths[number] for number in chosen.tolist()]
    part = dataclasses.replace(embedded, paths=paths, embeddings=embedded.embeddings[chosen])
    if embedded.class_names is not None:
        part = dataclasses.replace(part, class_numbers=embedded.class_numbers[chosen])
    found = group(part, clusters)
    numbers = np.full(len(embedded.paths), -1, dtype=np.int64)
    numbers[chosen] = found.numbers
    distances = np.full(len(embedded.paths), np.nan, dtype=np.float32)
    distances[chosen] = found.distances
    renumbered = [dataclasses.replace(cluster, members=chosen[cluster.members].tolist()) for cluster in found.clusters]
    return dataclasses.replace(found, embedded=embedded, numbers=numbers, distances=distances, clusters=renumbered)


def _numbered_by_size(embedded: Embedded, method: str, unordered: Numbers) -> Grouping:
    images = len(unordered)
    rank = np.argsort(np.argsort(-np.bincount(unordered), kind="stable"))  # inverse permutation
    numbers = rank[unordered].astype(np.int64)
    points = embedded.embeddings.cpu().numpy()
    classes = embedded.classes
    distances = np.empty(images, dtype=np.float32)
    found = []
    order = np.argsort(numbers, kind="stable")
    for part in np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1):
        number = int(numbers[part[0]])
        center = points[part].mean(0, dtype=np.float64).astype(np.float32)
        distances[part] = np.linalg.norm(points[part] - center, axis=1)
        members = part[np.argsort(distances[part], kind="stable")].tolist()
        counts = Counter(classes[member] for member in members)
        cluster = Cluster(number, members)
        if any(classes):
            shares = tuple((name, count / len(members)) for name, count in counts.most_common(3))
            cluster = Cluster(number, members, *shares[0], shares)
        found.append(cluster)
    return Grouping(embedded, method, numbers, distances, found)


# Table and contact sheets


class Clusters(dict[str, int]):
    """The cluster of every path, with the written ``table`` and ``sheets`` (by cluster)."""

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
    chosen = grouping.clusters[:SHEETS]  # the largest
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
    return f"cluster-{number:03d}.png"


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
        rows.append([path, number, f"{distance:.6f}", class_name, sheet])
    return table_text(CLUSTERS_COLUMNS, rows)


def _draw_sheet(grouping: Grouping, cluster: Cluster, reader: PictureReader, pool: ThreadPoolExecutor) -> Image.Image:
    embedded = grouping.embedded
    shown = cluster.members[:SHEET]
    title = f"{cluster.title}, nearest to its center first"
    files = [embedded.folder / embedded.paths[member] for member in shown]
    pictures = list(pool.map(lambda file: reader.image(file, CELL), files))
    if cluster.share is None:
        return contact_sheet(title, pictures)
    names = [embedded.class_folders.class_of(embedded.paths[member]) for member in shown]
    return contact_sheet(title, pictures, names, framed=[name != cluster.name for name in names])
