"""Clusters of a folder's images on the disk: a table, and contact sheets of the largest."""

from __future__ import annotations

import csv
import functools
import os
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..evaluation.sheets import CELL, contact_sheet
from ..files import write_atomically
from .embedding import class_of
from .grouping import NOISE, Cluster, Grouping
from .pictures import PictureReader

SHEET = 60  # images of a cluster on its contact sheet
SHEETS = 100  # clusters that have one, by default
_EXAMPLES = 3
_TABLE = "clusters.csv"
_COLUMNS = ["path", "cluster", "distance_to_center", "class", "cluster_class", "cluster_share", "sheet"]

Progress = Callable[[int, int], None]
"""Called with how many sheets are drawn, and how many there will be."""


class Clusters(dict[str, int]):
    """The cluster of every path, with what is known of each cluster.

    Args:
        grouping: what was grouping.
        sheets: the contact sheet of each cluster that has one.
    """

    def __init__(self, grouping: Grouping, sheets: dict[int, Path]) -> None:
        super().__init__(zip(grouping.embedded.paths, grouping.numbers.tolist(), strict=True))
        self.grouping, self.sheets = grouping, sheets

    @property
    def clusters(self) -> list[Cluster]:
        """All clusters, the largest first; images in no cluster come last."""
        return self.grouping.clusters

    def as_json(self) -> dict[str, Any]:
        """All that is known, of what JSON has."""
        grouping, embedded = self.grouping, self.grouping.embedded
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
                    "nearest": [embedded.paths[member] for member in cluster.members[:_EXAMPLES]],
                    "sheet": str(self.sheets[cluster.number]) if cluster.number in self.sheets else None,
                }
                for cluster in grouping.clusters
            ],
            "images": [
                {"path": path, "class": name, "cluster": number, "distance": distance if number != NOISE else None}
                for path, name, number, distance in zip(
                    embedded.paths,
                    embedded.classes,
                    grouping.numbers.tolist(),
                    grouping.distances.tolist(),
                    strict=True,
                )
            ],
        }


def write_clusters(
    place: Path, grouping: Grouping, channels: int, sheets: int = SHEETS, progress: Progress | None = None
) -> Clusters:
    """Write ``clusters.csv`` and the largest clusters' contact sheets, in place of those that an older table lists.

    Args:
        place: the folder to write; created where it is missing.
        grouping: the clusters.
        channels: what the images are read as: 1 (gray) or 3 (color).
        sheets: how many clusters have a sheet, at most.
        progress: hears how many are drawn.

    Raises:
        ConfigError: a file that an earlier table does not list has the name of the table or of a sheet; nothing is
            written then.
    """
    chosen = sorted(grouping.clusters, key=lambda cluster: -len(cluster.members))[:sheets]
    drawn = {cluster.number: place / _sheet_name(cluster.number) for cluster in chosen}
    table = place / _TABLE
    earlier = _earlier_sheets(table)
    for path in drawn.values():
        if path.name not in earlier and path.exists():
            raise ConfigError(
                f"{path} was not written by an earlier pml-ext cluster; type -o FOLDER for another folder"
            )
    place.mkdir(parents=True, exist_ok=True)
    for name in earlier:
        (place / name).unlink(missing_ok=True)
    write_atomically(table, functools.partial(_write_table, grouping=grouping, sheets=drawn))
    reader = PictureReader(channels)
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:  # Pillow decodes without Python's lock
        for done, cluster in enumerate(chosen, start=1):
            sheet = draw_sheet(grouping, cluster, reader, pool)
            write_atomically(drawn[cluster.number], functools.partial(sheet.save, format="PNG"))
            if progress is not None:
                progress(done, len(chosen))
    reader.warn("the contact sheets have")
    return Clusters(grouping, drawn)


def _sheet_name(number: int) -> str:
    return "noise.png" if number == NOISE else f"cluster-{number:03d}.png"


def _earlier_sheets(table: Path) -> set[str]:
    """Return the names of the contact sheets that an earlier table in the folder lists.

    Raises:
        ConfigError: the file of that name is no table of clusters.
    """
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
        raise ConfigError(
            f"{table} was not written by an earlier pml-ext cluster; type -o FOLDER for another folder"
        ) from None


def draw_sheet(grouping: Grouping, cluster: Cluster, reader: PictureReader, pool: ThreadPoolExecutor) -> Any:
    """The contact sheet of a cluster, a Pillow image: its class, and images of other classes framed red.

    Args:
        grouping: of all images.
        cluster: one of it.
        reader: reads them, and remembers what cannot be read.
        pool: that reads.
    """
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
    strange = [cluster.number != NOISE and name != cluster.name for name in names]
    return contact_sheet(title, pictures, names, strange)


def _write_table(path: Path, grouping: Grouping, sheets: Mapping[int, Path]) -> None:
    embedded = grouping.embedded
    about = {cluster.number: cluster for cluster in grouping.clusters}
    # Bytes of a name that are no UTF-8 go back to what they are on the disk.
    with path.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = csv.writer(file)
        writer.writerow(_COLUMNS)
        rows = zip(
            embedded.paths, grouping.numbers.tolist(), grouping.distances.tolist(), embedded.classes, strict=True
        )
        for name, number, distance, own in rows:
            cluster = about[number]
            share = f"{cluster.share:.4f}" if cluster.share is not None else ""
            sheet = _sheet_name(number) if number in sheets else ""
            writer.writerow(
                [name, number, f"{distance:.6f}" if number != NOISE else "", own, cluster.name, share, sheet]
            )
