"""Clusters of a folder's images: a table, and a contact sheet for each."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ..data import image_files
from ..errors import ConfigError
from ..evaluation import kmeans
from ..evaluation.figures import contact_sheet
from ..files import write_atomically
from .embedding import Embedded
from .pictures import PictureReader, as_png

SHEET = 60  # images of a cluster on its contact sheet


def check_clusters(clusters: int, folder: Path) -> None:
    """Refuses a number of clusters that the image files of a folder cannot have; none of them is opened.

    Raises:
        ConfigError: fewer than 1 cluster or more than image files.
    """
    if clusters < 1:
        raise ConfigError(f"--clusters {clusters}: wanted 1 or more")
    _check_most(clusters, len(image_files(folder)), folder)


def _check_most(clusters: int, images: int, folder: Path) -> None:
    if clusters > images > 0:
        raise ConfigError(f"--clusters {clusters}: wanted from 1 to the {images} images of {folder}")


def sort_into_clusters(embedded: Embedded, clusters: int) -> list[int]:
    """The cluster of every image by k-means; clusters are numbered by size, the largest first.

    Raises:
        ConfigError: more clusters than images.
    """
    _check_most(clusters, len(embedded.paths), embedded.folder)
    unordered = kmeans(embedded.embeddings, clusters).cpu()
    sizes = torch.bincount(unordered, minlength=clusters)
    rank = sizes.argsort(descending=True, stable=True).argsort()
    numbers: list[int] = rank[unordered].tolist()
    return numbers


def write_clusters(place: Path, embedded: Embedded, numbers: list[int], channels: int) -> None:
    """Writes ``clusters.csv`` and a contact sheet for each cluster, whose older ones it replaces.

    Args:
        place: the folder to write; created where it is missing.
        embedded: the images.
        numbers: the cluster of each.
        channels: what the images are read as: 1 (gray) or 3 (color).
    """
    place.mkdir(parents=True, exist_ok=True)
    for old in place.glob("cluster-*.png"):
        old.unlink()
    points = embedded.embeddings.cpu()
    labels = torch.tensor(numbers)
    distances = torch.zeros(len(numbers))
    reader = PictureReader(channels)
    for number in sorted(set(numbers)):
        members = torch.where(labels == number)[0]
        center = points[members].mean(0)
        distances[members] = (points[members] - center).norm(dim=1)
        order = members[distances[members].argsort()].tolist()
        some = f", the {SHEET} nearest to its center" if len(order) > SHEET else ", nearest to its center first"
        figure = contact_sheet(
            f"cluster {number}: {len(order)} images{some}",
            [reader(embedded.folder / embedded.paths[index]) for index in order[:SHEET]],
        )
        write_atomically(place / f"cluster-{number:03d}.png", as_png(figure))
    reader.warn("the contact sheets have")
    write_atomically(place / "clusters.csv", lambda path: _write_table(path, embedded.paths, numbers, distances))


def _write_table(path: Path, paths: Sequence[str], numbers: list[int], distances: Tensor) -> None:
    # Bytes of a name that are no UTF-8 go back to what they are on the disk.
    with path.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "cluster", "distance_to_centre"])
        for name, number, distance in zip(paths, numbers, distances.tolist(), strict=True):
            writer.writerow([name, number, f"{distance:.6f}"])
