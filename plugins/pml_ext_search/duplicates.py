"""Copies among images, in three groups: of the same bytes, of the same pixels, and near ones."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from pml_ext.errors import ConfigError, counted
from pml_ext.evaluation import sample_indices
from pml_ext_train.files import path_bytes
from pml_ext_train.retrieval import Numbers

from .copies import chosen_radius, nearest_beyond
from .embedded import Embedded
from .image_files import ImageFiles, Traits, check_keep
from .near_pairs import Pairs, components, forest, shortest_pairs
from .thumbnails import candidates, read_thumbnails

Kind = Literal["exact", "same", "near"]
KINDS: tuple[Kind, ...] = ("exact", "same", "near")
_NAMES = {"exact": "same bytes", "same": "same pixels", "near": "near"}
_SAME = 0.1  # distance within which pixels are compared
_EQUAL = 1e-3  # distance of vectors that are equal but for rounding
_OF_OTHERS = 0.5  # the radius among vectors, over the median distance to the nearest other one
_TILE = 8192  # vectors that are compared with the sample at a time
_SAMPLE = 200  # vectors whose nearest other ones are looked for


@dataclasses.dataclass(frozen=True)
class Copy:
    """An image of a group, or a vector, of which there is only the id."""

    path: str  # below the folder; of two folders, with the folder
    distance: float  # from the image to keep
    bytes: int | None
    width: int | None  # upright
    height: int | None
    file: Path | None = None
    other_names: tuple[Path, ...] = ()  # hard links to the same file, and symbolic ones
    changed: int | None = None  # time of the file's last change, in nanoseconds since 1970
    stays: bool = False  # whether it is kept too: of the folder that others are compared with, or by choice
    traits: Traits | None = None


@dataclasses.dataclass(frozen=True)
class Group:
    """Images that are copies of each other: the one to keep first, then by distance from it."""

    kind: Kind
    images: list[Copy]
    pairs: list[tuple[str, str, float]]  # the shortest pairs that connect the group, nearest first

    @property
    def keep(self) -> Copy:
        """The image to keep."""
        return self.images[0]

    @property
    def others(self) -> list[Copy]:
        """The images to spare: copies of the one to keep; of two folders, those of the new one."""
        return [image for image in self.images[1:] if not image.stays]

    def keeps(self, image: Copy) -> bool:
        """Return whether an image of the group is kept: the one to keep, or another that stays."""
        return image is self.keep or image.stays

    def differing(self, image: Copy) -> list[str]:
        """Return what an image and the one to keep differ in apart from pixels, such as the number of frames."""
        if self.keep.traits is None or image.traits is None:
            return []
        return self.keep.traits.differing(image.traits)

    def about(self, image: Copy) -> str:
        """Return the kind, and what an image of the group differs in: ``"near, other frames"``."""
        return ", other ".join([_NAMES[self.kind], *self.differing(image)])

    @property
    def space(self) -> int:
        """How many bytes the others take; a hard link to the image to keep takes none."""
        return sum(image.bytes or 0 for image in self.others if not _is_one_file(image.file, self.keep.file))


@dataclasses.dataclass(frozen=True)
class Duplicates:
    """The groups of a collection: exact ones first, groups of many images first.

    An image is a copy in one group only: of a group's images, the one to keep alone is compared further.
    """

    groups: list[Group]
    radius: float  # maximum distance of near copies
    nearest: float | None  # smallest distance of two images of different groups; None for vectors
    nearest_other: float | None  # median distance of an image to the nearest one of another group
    images: int  # that were compared
    made_up: int  # copies of a sample, by which the radius was chosen; 0 if it was given, or chosen by the vectors
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)  # why an image was not compared, by path

    def of_kind(self, kind: Kind) -> list[Group]:
        """Return the groups of a kind."""
        return [group for group in self.groups if group.kind == kind]

    @property
    def space(self) -> int:
        """How many bytes all images take that are not to be kept."""
        return sum(group.space for group in self.groups)

    def summary(self, noun: str = "image") -> str:
        """Return a line that says what was found, and how the radius was chosen."""
        near = f"within {self.radius:.3g}" if self.radius else ""
        if self.made_up:
            near += f", chosen by {self.made_up} made-up copies"
        if self.nearest_other is not None:
            nearest = "" if self.nearest is None else f"at {self.nearest:.3g}, "
            near += f"; the nearest other is {nearest}typically at {self.nearest_other:.3g}"
        if not self.groups:
            return f"No copies among {counted(self.images, noun)}" + (near and f"; near is {near}")
        counts = {kind: len(self.of_kind(kind)) for kind in KINDS}
        parts = [f"{counts[kind]} of the {_NAMES[kind]}" for kind in KINDS[:2] if counts[kind] and noun == "image"]
        if near:
            parts.append(f"{counts['near']} near, {near}")
        copies = sum(len(group.others) for group in self.groups)
        text = f"{counted(len(self.groups), 'group')} with {copies:,} of {counted(self.images, noun)} to spare"
        if noun == "image":
            text += f", {self.space:,} bytes"
        return f"{text}: {', '.join(parts)}"

    def as_json(self) -> dict[str, Any]:
        """Return what ``--json`` prints."""
        groups = []
        pairs = []
        for group in self.groups:
            images = []
            for image in group.images:
                about = {name: getattr(image, name) for name in ("path", "distance", "bytes", "width", "height")}
                images.append(about | {"differs": group.differing(image)})
            groups.append({"kind": group.kind, "keep": group.keep.path, "images": images})
            pairs += [list(pair) for pair in group.pairs]
        return {
            "groups": groups,
            "pairs": pairs,
            "radius": self.radius,
            "nearest": self.nearest,
            "nearest_other": self.nearest_other,
            "made_up_copies": self.made_up,
            "images": self.images,
            "space": self.space,
        }


def check_radius(radius: float | None) -> None:
    """Raise ConfigError for a radius that is no distance."""
    if radius is not None and not 0 < radius <= 2:  # NaN too
        raise ConfigError(f"--radius {radius:g}: wanted a distance above 0 and at most 2")


def find_duplicates(
    images: ImageFiles,
    radius: float | None = None,
    keep: str = "most-pixels",
    kinds: Sequence[Kind] = KINDS,
    listener: Callable[[int], None] | None = None,
) -> Duplicates:
    """Return the copies among image files; of two folders, between an image of one and one of the other.

    Near copies are images within a radius, and what such pairs connect. The distance of two images is the smallest one
    between the gray thumbnail of one, or of a part of it that keeps at least 78 % of each side, and the whole thumbnail
    of the other; see :class:`pml_ext_search.thumbnails.Thumbnails`. Images have the same pixels if all frames, depth,
    transparency and color profile are equal too; others that are read as equal are near.

    Args:
        images: the files. Hard links and symbolic links to one file are one image.
        radius: maximum distance of near copies; by default between made-up copies and the nearest other photographs,
            see :func:`pml_ext_search.copies.chosen_radius`.
        keep: which copy is the first of a group; see :data:`pml_ext_search.image_files.KEEPS`.
        kinds: the kinds that are looked for. For exact copies alone, no image is decoded but those to keep.
        listener: called with the number of images that were read so far.
    """
    check_radius(radius)
    check_keep(images, keep)
    settled = _Settled(images, keep)
    skipped: dict[str, str] = {}
    for number, stat in enumerate(images.stats):
        if stat is None:
            skipped[images.names[number]] = f"{images.files[number]}: it is gone, or cannot be looked at"
    groups = []
    if "exact" in kinds:
        groups += settled.groups("exact", _of_equal_bytes(images))
    made_up = 0
    nearest = nearest_other = None
    if {"same", "near"} & {*kinds}:
        rest = settled.rest()
        thumbnails, problems = read_thumbnails([images.files[number] for number in rest], listener)
        for place, reason in problems.items():
            skipped[images.names[rest[place]]] = reason
        readable = np.array([place for place in range(len(rest)) if place not in problems], dtype=np.int64)
        wholes = thumbnails.whole_vectors()
        sets = [readable]
        if images.compares_two:
            is_old = rest[readable] >= images.first_old
            sets = [readable[~is_old], readable[is_old]]
        first, second = candidates(thumbnails, wholes, sets)
        pairs = Pairs(rest[first], rest[second], thumbnails.distances(wholes, first, second))
        if "same" in kinds:
            groups += settled.groups("same", _of_equal_pixels(images, pairs))
        if "near" in kinds:
            if radius is None:
                files = [images.files[number] for number in rest[readable]]
                radius, made_up = chosen_radius(files, pairs, len(images))
            places = np.full(len(images), -1, dtype=np.int64)
            places[rest] = np.arange(len(rest))

            def distance(kept: int, numbers: Sequence[int]) -> list[float]:
                copies = places[list(numbers)]
                return [*map(float, thumbnails.distances(wholes, np.full_like(copies, places[kept]), copies))]

            groups += settled.groups("near", *_near(settled, pairs, radius, len(images)), distance)
            others = nearest_beyond(settled.between_groups(pairs), len(images), radius)
            if len(others):
                nearest, nearest_other = float(others.min()), float(np.median(others))
    return Duplicates(groups, radius or 0.0, nearest, nearest_other, len(images.distinct), made_up, skipped)


def find_equal_vectors(embedded: Embedded, radius: float | None = None) -> Duplicates:
    """Return the copies among vectors: equal ones, and those within a radius.

    The default radius is half of the median distance of a vector to its nearest other one, over a sample of 200.
    """
    check_radius(radius)
    points = embedded.embeddings.cpu().float()
    if radius is None:
        others = _nearest_beyond(points, _EQUAL)
        radius = _EQUAL if others is None else _OF_OTHERS * others
    settled = _SettledVectors(embedded.paths, points)
    found = shortest_pairs(points, max(radius, _EQUAL))
    groups = settled.groups("same", components(found.where(found.distances <= _EQUAL), len(points)))
    groups += settled.groups("near", *_near(settled, found, radius, len(points)))
    return Duplicates(groups, radius, None, _nearest_beyond(points, radius), len(points), 0)


def _near(settled: _Settled, pairs: Pairs, radius: float, count: int) -> tuple[list[list[int]], Pairs]:
    """Return groups of near images, and the shortest pairs that connect them."""
    pairs = pairs.where(pairs.distances <= radius)
    stands_for = settled.stands_for
    pairs = forest(Pairs(stands_for[pairs.first], stands_for[pairs.second], pairs.distances), count)
    return components(pairs, count), pairs


Distance = Callable[[int, Sequence[int]], list[float]]
"""A function from the image to keep and its copies to their distances from it."""


class _Settled:
    """The images that are in groups so far, and the one to keep that stands for each."""

    def __init__(self, images: ImageFiles, keep: str) -> None:
        self._images = images
        self._keep = keep
        self._names: Sequence[str] = images.names
        self.stands_for = np.arange(len(images))

    def rest(self) -> Numbers:
        """Return the images that are compared, without copies of one to keep."""
        distinct: Numbers = np.array(self._images.distinct, dtype=np.int64)
        rest: Numbers = distinct[self.stands_for[distinct] == distinct]
        return rest

    def between_groups(self, pairs: Pairs) -> Pairs:
        """Return the pairs of images that are in different groups, or in none."""
        return pairs.where(self.stands_for[pairs.first] != self.stands_for[pairs.second])

    def groups(
        self, kind: Kind, members: list[list[int]], pairs: Pairs | None = None, distance: Distance | None = None
    ) -> list[Group]:
        """Return groups of numbers as groups of images; the one to keep stands for the others from now on.

        Without pairs, those of each group are of the image to keep and another one.
        """
        pairs_of: dict[int, list[tuple[str, str, float]]] = defaultdict(list)
        if pairs is not None:
            places = {}
            for place, numbers in enumerate(members):
                places.update(dict.fromkeys(numbers, place))
            columns = (pairs.first.tolist(), pairs.second.tolist(), pairs.distances.tolist())
            for first, second, length in zip(*columns, strict=True):
                pairs_of[places[first]].append((self._names[first], self._names[second], length))
        groups = []
        for place, numbers in enumerate(members):
            kept = self.kept(numbers, kind)
            others = [number for number in numbers if number != kept]
            distances = [0.0] * len(others) if distance is None else distance(kept, others)
            images = [self.copy(kept, 0.0)]
            by_distance = sorted(zip(distances, others, strict=True))
            images += [self.copy(number, length) for length, number in by_distance]
            if pairs is None:
                pairs_of[place] = [(images[0].path, image.path, image.distance) for image in images[1:]]
            groups.append(Group(kind, images, pairs_of[place]))
            self.stands_for[numbers] = kept
        groups.sort(key=lambda group: (-len(group.images), path_bytes(group.keep.path)))
        return groups

    def kept(self, numbers: Sequence[int], kind: Kind) -> int:
        """Return the image of a group that is kept."""
        return min(numbers, key=lambda number: self._images.rank(number, self._keep, kind == "same"))

    def copy(self, number: int, distance: float) -> Copy:
        """Return what is told of an image."""
        images = self._images
        traits = images.traits(number)
        width, height = (None, None) if traits is None else traits[:2]
        stat = images.stats[number]
        size, changed = (None, None) if stat is None else (stat.st_size, stat.st_mtime_ns)
        others = tuple(images.files[other] for other in images.links[number])
        about = (distance, size, width, height, images.files[number], others, changed)
        return Copy(images.names[number], *about, images.is_old(number), traits)


class _SettledVectors(_Settled):
    """The vectors that are in groups so far."""

    def __init__(self, ids: Sequence[str], points: Tensor) -> None:
        self._names = ids
        self._points = points
        self.stands_for = np.arange(len(ids))

    def groups(
        self, kind: Kind, members: list[list[int]], pairs: Pairs | None = None, distance: Distance | None = None
    ) -> list[Group]:
        """Return groups as those of images, with the distances of vectors."""

        def of_points(kept: int, numbers: Sequence[int]) -> list[float]:
            return [*map(float, (self._points[list(numbers)] - self._points[kept]).norm(dim=1))]

        return super().groups(kind, members, pairs, of_points)

    def kept(self, numbers: Sequence[int], kind: Kind) -> int:
        """Return the vector whose id is the first."""
        return min(numbers, key=lambda number: path_bytes(self._names[number]))

    def copy(self, number: int, distance: float) -> Copy:
        """Return what is told of a vector."""
        return Copy(self._names[number], distance, None, None, None)


def _of_equal_bytes(images: ImageFiles) -> list[list[int]]:
    """Return groups of files with the same bytes; only files of one size are read."""
    groups: list[list[int]] = []
    for numbers in _grouped_by(lambda number: getattr(images.stats[number], "st_size", None), images.distinct):
        if _may_match(images, numbers):
            groups += _grouped_by(images.digest, numbers)
    return [numbers for numbers in groups if _may_match(images, numbers)]


def _of_equal_pixels(images: ImageFiles, pairs: Pairs) -> list[list[int]]:
    """Return groups of images with the same pixels, among those that are nearest."""
    groups: list[list[int]] = []
    for numbers in components(pairs.where(pairs.distances <= _SAME), len(images)):
        for alike in _grouped_by(images.traits, numbers):
            groups += _grouped_by(images.digest_of_pixels, alike)
    return [numbers for numbers in groups if _may_match(images, numbers)]


def _may_match(images: ImageFiles, numbers: Sequence[int]) -> bool:
    """Return whether images can be a group: several ones, of two folders some of each."""
    if images.compares_two:
        return len({images.is_old(number) for number in numbers}) == 2
    return len(numbers) > 1


def _grouped_by(key_of: Callable[[int], Hashable], numbers: Iterable[int]) -> list[list[int]]:
    """Return groups of two numbers or more with one key; numbers without a key, None, are in none."""
    grouped: dict[Hashable, list[int]] = defaultdict(list)
    for number in numbers:
        key = key_of(number)
        if key is not None:
            grouped[key].append(number)
    return [group for group in grouped.values() if len(group) > 1]


def _is_one_file(one: Path | None, other: Path | None) -> bool:
    try:
        return one is not None and other is not None and one.samefile(other)
    except OSError:
        return False


def _nearest_beyond(points: Tensor, radius: float) -> float | None:
    """Return the median distance of a vector to its nearest one beyond a radius, over a sample of 200."""
    drawn = points[sample_indices(len(points), _SAMPLE, seed=0)].double()  # so that equal vectors are at 0
    nearest = torch.full((len(drawn),), torch.inf, dtype=torch.float64)
    for start in range(0, len(points), _TILE):
        rows = points[start : start + _TILE].double()
        squares = drawn.square().sum(1)[:, None] + rows.square().sum(1) - 2 * drawn @ rows.T
        distances = squares.clamp(min=0).sqrt()
        nearest = torch.minimum(nearest, distances.masked_fill(distances <= radius, torch.inf).amin(dim=1))
    nearest = nearest[nearest.isfinite()]
    return nearest.median().item() if len(nearest) else None
