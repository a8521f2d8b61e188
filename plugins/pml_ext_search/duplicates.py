"""Copies among images, in three groups: of the same bytes, of the same pixels, and near ones by their vectors."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from pml_ext.tool import ConfigError, DataError, Numbers, open_image, path_bytes, read_image, sample_indices, sha256_of

from .copies import Embed, fit_metric
from .embedded import Embedded
from .near_pairs import Pairs, components, forest, shortest_pairs

Kind = Literal["exact", "same", "near"]
KINDS: tuple[Kind, ...] = ("exact", "same", "near")
_SAME = 0.1  # distance within which pixels are compared
_EQUAL = 1e-3  # distance of vectors that are equal but for rounding
_OF_OTHERS = 0.5  # the radius among vectors without images, over the median distance to the nearest other one
_SAMPLE = 200  # vectors whose nearest other ones are looked for
_TURNED = (5, 6, 7, 8)  # orientations of EXIF by which width and height change places
_ORIENTATION = 0x0112


@dataclasses.dataclass(frozen=True)
class Copy:
    """An image of a group. Of an image in a shard there is only its path, and of a vector its id."""

    path: str
    distance: float  # from the largest image of the group
    bytes: int | None
    width: int | None  # upright
    height: int | None


@dataclasses.dataclass(frozen=True)
class Group:
    """Images that are copies of each other: the largest first, then by distance from it."""

    kind: Kind
    images: list[Copy]
    pairs: list[tuple[str, str, float]]  # the shortest pairs that connect the group, nearest first

    @property
    def largest(self) -> str:
        """The image of the most pixels; of equal ones that of the most bytes, then the oldest."""
        return self.images[0].path


@dataclasses.dataclass(frozen=True)
class Duplicates:
    """The groups of a collection: exact ones first, groups of many images first.

    An image is a copy in one group only: of exact copies, the largest image alone is compared further.
    """

    groups: list[Group]
    radius: float  # maximum distance of near copies
    nearest_other: float | None  # median distance of an image to the nearest one beyond the radius, of a sample
    images: int
    made_up: int  # copies of a sample, by which the radius was chosen; 0 if it was given, or chosen by the vectors

    def of_kind(self, kind: Kind) -> list[Group]:
        """Return the groups of a kind."""
        return [group for group in self.groups if group.kind == kind]

    def as_json(self) -> dict[str, Any]:
        """Return what ``--json`` prints."""
        groups = []
        for group in self.groups:
            images = [dataclasses.asdict(image) for image in group.images]
            groups.append({"kind": group.kind, "largest": group.largest, "images": images, "pairs": group.pairs})
        return {
            "radius": self.radius,
            "nearest_other": self.nearest_other,
            "made_up_copies": self.made_up,
            "groups": groups,
        }


def find_duplicates(embedded: Embedded, embed: Embed | None, radius: float | None = None) -> Duplicates:
    """Return the copies among images.

    Near copies are images within a radius in the metric of :func:`pml_ext_search.copies.fit_metric`, and what such
    pairs connect. Images of the same pixels are those of equal size and pixels among the nearest.

    Vectors without image files are compared as they are, and within half of the median distance of a vector to its
    nearest other one, over a sample of 200.

    Args:
        embedded: the images, or vectors.
        embed: returns embeddings of PIL images, for made-up copies; None for vectors.
        radius: maximum distance of near copies; by default it holds 90 % of made-up copies.
    """
    if radius is not None and not 0 < radius <= 2:  # NaN too
        raise ConfigError(f"--radius {radius:g}: wanted a distance above 0 and at most 2")
    points = embedded.embeddings.cpu().float()
    images = _Images(embedded, are_files=embed is not None)
    metric = None
    if embed is not None:
        metric = fit_metric(images.files(), embed)
    made_up = 0
    if metric is not None:
        points = metric.points(points)
    if radius is None and metric is not None:
        radius = metric.radius
        made_up = metric.copies
    elif radius is None:
        others = _nearest_beyond(points, _EQUAL)
        radius = _EQUAL if others is None else _OF_OTHERS * others
    groups = _Finder(images, points).groups(radius)
    return Duplicates(groups, radius, _nearest_beyond(points, radius), len(points), made_up)


class _Images:
    """The images that are compared: names, and what their files are."""

    def __init__(self, embedded: Embedded, are_files: bool) -> None:
        self.folder = embedded.folder
        self.names = embedded.paths
        self.are_files = are_files
        self._sizes: dict[int, tuple[int, int] | None] = {}
        self._stats: dict[int, os.stat_result | None] = {}

    def __len__(self) -> int:
        return len(self.names)

    def files(self) -> list[Path]:
        """Return all files, sorted by their names."""
        files = [self.file(number) for number in range(len(self))]
        return sorted(file for file in files if file is not None)

    def file(self, number: int) -> Path | None:
        """Return an image's file; None if it is gone, or in a shard or a table."""
        if self.stat(number) is None:
            return None
        return self.folder / self.names[number]

    def stat(self, number: int) -> os.stat_result | None:
        """Return size and times of an image's file, None as in :meth:`file`."""
        if number not in self._stats:
            found = None
            if self.are_files:
                try:
                    found = os.stat(self.folder / self.names[number])
                except OSError:
                    found = None
            self._stats[number] = found
        return self._stats[number]

    def size(self, number: int) -> tuple[int, int] | None:
        """Return width and height of the upright image; None without a file that can be read."""
        if number not in self._sizes:
            file = self.file(number)
            self._sizes[number] = None if file is None else _size_of(file)
        return self._sizes[number]

    def pixels(self, number: int) -> int:
        """Return the number of pixels, 0 if it is not known."""
        width, height = self.size(number) or (0, 0)
        return width * height

    def digest(self, number: int) -> str | None:
        """Return a digest of a file's bytes; None without a file that can be read."""
        file = self.file(number)
        if file is None:
            return None
        try:
            return sha256_of(file)
        except OSError:
            return None

    def digest_of_pixels(self, number: int) -> str | None:
        """Return a digest of an image's pixels; None without a file that can be read."""
        file = self.file(number)
        if file is None:
            return None
        try:
            pixels = read_image(file).contiguous()
        except DataError:
            return None
        return hashlib.sha256(pixels.numpy().data).hexdigest()


def _size_of(file: Path) -> tuple[int, int] | None:
    try:
        with open_image(file) as image:
            width, height = image.size
            if image.getexif().get(_ORIENTATION) in _TURNED:
                return height, width
            return width, height
    except DataError:
        return None


class _Finder:
    """The search for copies, one kind after the other."""

    def __init__(self, images: _Images, points: Tensor) -> None:
        self._images = images
        self._points = points
        self._stands_for = np.arange(len(images))  # the largest image of each one's copies so far

    def groups(self, radius: float) -> list[Group]:
        """Return all groups."""
        exact = self._settled("exact", self._of_equal_bytes())
        rest = self._rest()
        found = shortest_pairs(self._points[rest], max(radius, _EQUAL))
        pairs = Pairs(rest[found.first], rest[found.second], found.distances)
        same = self._settled("same", self._of_equal_pixels(pairs))
        pairs = pairs.where(pairs.distances <= radius)
        pairs = Pairs(self._stands_for[pairs.first], self._stands_for[pairs.second], pairs.distances)
        pairs = forest(pairs, len(self._images))
        near = self._settled("near", components(pairs, len(self._images)), pairs)
        return [*exact, *same, *near]

    def _rest(self) -> Numbers:
        """Return the images that are no copies of a larger one so far."""
        return np.flatnonzero(self._stands_for == np.arange(len(self._stands_for)))

    def _of_equal_bytes(self) -> list[list[int]]:
        """Return groups of files with the same bytes; only files of one size are read."""
        by_size: dict[int, list[int]] = defaultdict(list)
        for number in range(len(self._images)):
            stat = self._images.stat(number)
            if stat is not None:
                by_size[stat.st_size].append(number)
        groups: list[list[int]] = []
        for numbers in by_size.values():
            if len(numbers) > 1:
                groups += _grouped_by(self._images.digest, numbers)
        return groups

    def _of_equal_pixels(self, pairs: Pairs) -> list[list[int]]:
        """Return groups of images with the same pixels, among those that are nearest; of vectors, equal ones."""
        if not self._images.are_files:
            return components(pairs.where(pairs.distances <= _EQUAL), len(self._images))
        nearest = pairs.where(pairs.distances <= _SAME)
        groups: list[list[int]] = []
        for numbers in components(nearest, len(self._images)):
            for of_one_size in _grouped_by(self._images.size, numbers):
                groups += _grouped_by(self._images.digest_of_pixels, of_one_size)
        return groups

    def _settled(self, kind: Kind, groups: list[list[int]], pairs: Pairs | None = None) -> list[Group]:
        """Return groups of numbers as groups of images; the largest of each stands for the others from now on.

        Without pairs, those of each group are of the largest image and another one.
        """
        pairs_of: dict[int, list[tuple[str, str, float]]] = defaultdict(list)
        if pairs is not None:
            places = {}
            for place, numbers in enumerate(groups):
                places.update(dict.fromkeys(numbers, place))
            columns = (pairs.first.tolist(), pairs.second.tolist(), pairs.distances.tolist())
            for first, second, distance in zip(*columns, strict=True):
                named = (self._images.names[first], self._images.names[second], distance)
                pairs_of[places[first]].append(named)
        settled = []
        for place, numbers in enumerate(groups):
            largest = min(numbers, key=self._rank)
            images = self._copies(largest, numbers)
            if pairs is None:
                pairs_of[place] = [(images[0].path, image.path, image.distance) for image in images[1:]]
            settled.append(Group(kind, images, pairs_of[place]))
            self._stands_for[numbers] = largest
        settled.sort(key=lambda group: (-len(group.images), path_bytes(group.largest)))
        return settled

    def _copies(self, largest: int, numbers: list[int]) -> list[Copy]:
        """Return the images of a group, the largest first, the others by distance from it."""
        copies: list[Copy] = []
        distances = (self._points[numbers] - self._points[largest]).norm(dim=1).tolist()
        for distance, number in sorted(zip(distances, numbers, strict=True)):
            stat = self._images.stat(number)
            width, height = self._images.size(number) or (None, None)
            size = None if stat is None else stat.st_size
            copy = Copy(self._images.names[number], distance, size, width, height)
            if number == largest:
                copies.insert(0, copy)
            else:
                copies.append(copy)
        return copies

    def _rank(self, number: int) -> tuple[int, int, int, bytes]:
        """Return a key by which the largest image is the first."""
        stat = self._images.stat(number)
        size = 0 if stat is None else stat.st_size
        changed = 0 if stat is None else stat.st_mtime_ns
        return -self._images.pixels(number), -size, changed, path_bytes(self._images.names[number])


def _grouped_by(key_of: Callable[[int], Hashable], numbers: Iterable[int]) -> list[list[int]]:
    """Return groups of two numbers or more with one key; numbers without a key, None, are in none."""
    grouped: dict[Hashable, list[int]] = defaultdict(list)
    for number in numbers:
        key = key_of(number)
        if key is not None:
            grouped[key].append(number)
    return [group for group in grouped.values() if len(group) > 1]


def _nearest_beyond(points: Tensor, radius: float) -> float | None:
    """Return the median distance of a vector to its nearest one beyond a radius, over a sample of 200."""
    drawn = sample_indices(len(points), _SAMPLE, seed=0)
    distances = torch.cdist(points[drawn], points, compute_mode="donot_use_mm_for_euclid_dist")
    nearest = distances.masked_fill(distances <= radius, torch.inf).amin(dim=1)
    nearest = nearest[nearest.isfinite()]
    return nearest.median().item() if len(nearest) else None
