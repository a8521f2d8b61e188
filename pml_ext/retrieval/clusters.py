"""Clusters of embeddings: k-means where their number is known, HDBSCAN where it is not; their table and sheets."""

from __future__ import annotations

import csv
import dataclasses
import functools
import os
import re
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps
from torch import Tensor

from ..collection import Embedded, Numbers, Vectors, class_of
from ..errors import ConfigError, counted
from ..evaluation import kmeans, nearest_of
from ..evaluation.fonts import drawable, font_file, short_name
from ..evaluation.sampling import sample_indices
from ..files import write_atomically
from .pictures import PictureReader

AUTO = "auto"
NOISE = -1  # the number of images that HDBSCAN puts in no cluster
SMALLEST = 5  # images of a cluster of HDBSCAN, at least
DENSE = 8000  # images that HDBSCAN compares with each other: 8 s and 1.3 GB; of more, this number is drawn
SPARSE = 4000  # images up to which a tree takes no longer than a matrix of their distances, and no memory
SHEET = 60  # images of a cluster on its contact sheet
SHEETS = 100  # clusters that have one
CELL = 108  # pixels from one picture of a sheet to the next
_ROW, _GAP, _TITLE, _CAPTION = 10, 6, 30, 16
_LETTERS = 15  # of a caption
_INK = "#1a202c"
_TABLE = "clusters.csv"
_COLUMNS = ["path", "cluster", "distance_to_center", "class", "sheet"]

Number = int | str
"""How many clusters, or :data:`AUTO`."""


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
        images = counted(len(self.members), "image")
        what = f"no cluster (noise): {images}" if self.number == NOISE else f"cluster {self.number}: {images}"
        return what if self.share is None else f"{what}, {self.share:.0%} {self.name or '(no folder)'}"


@dataclasses.dataclass(frozen=True)
class Grouping:
    """All clusters of a folder's images; those in no cluster come last and have no distance."""

    embedded: Embedded
    method: str
    numbers: Numbers  # the cluster of each image
    distances: Vectors  # of each image from its cluster's center
    clusters: list[Cluster]


def check_clusters(clusters: Number, smallest: int | None) -> None:
    """Refuse a number of clusters that no images can have."""
    if clusters != AUTO and (not isinstance(clusters, int) or clusters < 1):
        raise ConfigError(f"--clusters {clusters}: wanted 1 or more, or auto")
    if smallest is not None and (clusters != AUTO or smallest < 2):
        raise ConfigError(f"--smallest {smallest}: wanted 2 or more images, with --clusters auto")


def group(embedded: Embedded, clusters: Number, smallest: int | None = None) -> Grouping:
    """Return the clusters of images, numbered by size.

    K-means is that of the evaluation, :func:`pml_ext.evaluation.kmeans`. ``"auto"`` is
    :class:`sklearn.cluster.HDBSCAN`, which leaves images out that lie in no cluster. It compares up to 8,000 images
    with each other; of more it sees 8,000 drawn at random, and each of the others goes where the nearest of these is.

    ``smallest``: with ``"auto"``, images that a cluster has at least; 5 by default.
    """
    check_clusters(clusters, smallest)
    images, least = len(embedded.paths), clusters if isinstance(clusters, int) else smallest or SMALLEST
    if images < least:
        raise ConfigError(f"--clusters {clusters}: wanted {least} images or more; {embedded.folder} has {images}")
    if isinstance(clusters, int):
        unordered, method = kmeans(embedded.embeddings, clusters).cpu().numpy(), "k-means"
    else:
        unordered = _by_density(embedded.embeddings.cpu().float(), least)
        method = "HDBSCAN"
        if images > DENSE:
            method += f" of {DENSE} images, drawn at random; the others by their nearest"
    sizes = np.bincount(unordered[unordered >= 0], minlength=1)
    rank = np.argsort(np.argsort(-sizes, kind="stable"))  # the inverse of the order
    numbers = np.where(unordered < 0, NOISE, rank[unordered.clip(0)]).astype(np.int64)
    points, classes = embedded.embeddings.cpu().numpy(), embedded.classes
    distances, found = np.full(images, np.nan, dtype=np.float32), []
    order = np.argsort(np.where(numbers == NOISE, images, numbers), kind="stable")
    for part in np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1):
        number = int(numbers[part[0]])
        if number != NOISE:
            center = points[part].mean(0, dtype=np.float64).astype(np.float32)
            distances[part] = np.linalg.norm(points[part] - center, axis=1)
            part = part[np.argsort(distances[part], kind="stable")]
        counts = Counter(classes[member] for member in part.tolist())
        shares = tuple((name, count / len(part)) for name, count in counts.most_common(3)) if any(classes) else ()
        name, share = shares[0] if shares else ("", None)
        found.append(Cluster(number, part.tolist(), name, share, shares))
    return Grouping(embedded, method, numbers, distances, found)


def _by_density(points: Tensor, smallest: int) -> Numbers:
    from sklearn.cluster import HDBSCAN  # 90 MB, and a second, that other uses of clusters do without

    drawn = sample_indices(len(points), DENSE, seed=0)
    algorithm = "ball_tree" if len(drawn) <= SPARSE else "brute"
    search = HDBSCAN(min_cluster_size=smallest, algorithm=algorithm, copy=True)
    labels = np.asarray(search.fit_predict(points[drawn].numpy()), dtype=np.int64)
    if len(drawn) == len(points):
        return labels
    _, nearest = nearest_of(points, 1, points[drawn])
    return np.asarray(labels[nearest[:, 0].cpu().numpy()])


# Table and contact sheets


class Clusters(dict[str, int]):
    """The cluster of every path; ``table`` and ``sheets``, by cluster, are the files that were written."""

    def __init__(self, grouping: Grouping, table: Path, sheets: dict[int, Path]) -> None:
        super().__init__(zip(grouping.embedded.paths, grouping.numbers.tolist(), strict=True))
        self.grouping, self.table, self.sheets = grouping, table, sheets
        self.clusters = grouping.clusters


def write_clusters(place: Path, grouping: Grouping, channels: int) -> Clusters:
    """Write ``clusters.csv`` and the largest clusters' contact sheets, in place of those that an older table lists.

    A ConfigError says that another file has one of the names; nothing is written then.
    """
    chosen = sorted(grouping.clusters, key=lambda cluster: -len(cluster.members))[:SHEETS]
    drawn = {cluster.number: place / _sheet_name(cluster.number) for cluster in chosen}
    earlier = _earlier_sheets(place / _TABLE)
    if foreign := [path for path in drawn.values() if path.name not in earlier and path.exists()]:
        raise _foreign(foreign[0])
    place.mkdir(parents=True, exist_ok=True)
    for name in earlier:
        (place / name).unlink(missing_ok=True)
    write_atomically(place / _TABLE, functools.partial(_write_table, grouping=grouping, sheets=drawn))
    reader = PictureReader(channels)
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:  # Pillow decodes without Python's lock
        for cluster in chosen:
            sheet = _draw_sheet(grouping, cluster, reader, pool)
            write_atomically(drawn[cluster.number], functools.partial(sheet.save, format="PNG"))
    reader.warn("the contact sheets have")
    return Clusters(grouping, place / _TABLE, drawn)


def _sheet_name(number: int) -> str:
    return "noise.png" if number == NOISE else f"cluster-{number:03d}.png"


def _foreign(path: Path) -> ConfigError:
    return ConfigError(f"{path} was not written by an earlier pml-ext cluster; type -o FOLDER for another folder")


def _earlier_sheets(table: Path) -> set[str]:
    """Return the names of the contact sheets that an earlier table lists."""
    if not table.exists():
        return set()
    with table.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        if file.readline().strip() != ",".join(_COLUMNS):
            raise _foreign(table)
        listed = {row[-1] for row in csv.reader(file)}
    return {name for name in listed if re.fullmatch(r"noise\.png|cluster-\d{3,}\.png", name)}


def _write_table(path: Path, grouping: Grouping, sheets: dict[int, Path]) -> None:
    # Bytes of a name that are no UTF-8 go back to what they are on the disk.
    with path.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer, embedded = csv.writer(file), grouping.embedded
        writer.writerow(_COLUMNS)
        columns = embedded.paths, grouping.numbers.tolist(), grouping.distances.tolist(), embedded.classes
        for name, number, distance, own in zip(*columns, strict=True):
            apart = f"{distance:.6f}" if number != NOISE else ""
            writer.writerow([name, number, apart, own, _sheet_name(number) if number in sheets else ""])


def _draw_sheet(grouping: Grouping, cluster: Cluster, reader: PictureReader, pool: ThreadPoolExecutor) -> Image.Image:
    """Draw a contact sheet; images of other classes than the cluster's are framed red."""
    embedded, shown = grouping.embedded, cluster.members[:SHEET]
    title = cluster.title if cluster.number == NOISE else f"{cluster.title}, nearest to its center first"
    files = [embedded.folder / embedded.paths[member] for member in shown]
    pictures = list(pool.map(lambda file: reader.image(file, CELL), files))
    if cluster.share is None:
        return contact_sheet(title, pictures)
    names = [class_of(embedded.paths[member]) for member in shown]
    return contact_sheet(title, pictures, names, [cluster.number != NOISE and name != cluster.name for name in names])


def contact_sheet(
    title: str, images: Sequence[Image.Image], captions: Sequence[str] = (), strange: Sequence[bool] = ()
) -> Image.Image:
    """Draw images below a title in rows of ten, each in a cell of :data:`CELL` pixels; ``strange`` ones red."""
    from ..evaluation.figures import GRAY, WRONG

    below = _CAPTION if captions else 0
    rows = -(-len(images) // _ROW)
    sheet = Image.new("RGB", (_ROW * CELL + _GAP, _TITLE + rows * (CELL + below) + _GAP), "white")
    draw = ImageDraw.Draw(sheet)
    _write(draw, (_GAP + 2, 7), drawable(title.replace("\n", " ")), 14, _INK)
    side = CELL - _GAP
    for place, image in enumerate(images):
        row, column = divmod(place, _ROW)
        left, top = _GAP + column * CELL, _TITLE + row * (CELL + below)
        shown = image.convert("RGB")
        shown.thumbnail((side, side))
        if max(shown.size) < side:  # a drawing of a few pixels is enlarged, with its pixels
            shown = ImageOps.contain(shown, (side, side), Image.Resampling.NEAREST)
        corner = left + (side - shown.width) // 2, top + (side - shown.height) // 2
        sheet.paste(shown, corner)
        odd = bool(strange) and strange[place]
        if odd:
            ends = corner[0] + shown.width - 1, corner[1] + shown.height - 1
            draw.rectangle((*corner, *ends), outline=WRONG, width=3)
        if captions:
            _write(draw, (left, top + side + 1), short_name(captions[place], _LETTERS), 11, WRONG if odd else GRAY)
    return sheet


def _write(draw: ImageDraw.ImageDraw, corner: tuple[int, int], text: str, size: int, color: str) -> None:
    font = _font(font_file(text), size)
    draw.text((corner[0], corner[1] + size), text, fill=color, font=font, anchor="ls")


_font = functools.cache(ImageFont.truetype)
