"""The search for copies."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pml_ext.errors import ConfigError, unknown
from pml_ext.evaluation import sample_indices
from pml_ext_train.files import path_bytes
from pml_ext_train.retrieval import CopyKind

from .groups import KINDS, Copy, Duplicates, FromKept, Group
from .image_files import ImageFiles, check_keep
from .near_pairs import Pairs, components, forest, joined, shortest_pairs
from .radius import chosen_radius, nearest_beyond
from .thumbnails import candidates, read_thumbnails, unique_pairs
from .turned import ALIGNMENTS, confirmed_pairs, distances_from, neighbor_pairs, turned_pairs

_SAME = 0.1  # distance within which pixels are compared
_EQUAL = 1e-3  # distance of vectors that are equal but for rounding
_OF_OTHERS = 0.5  # the radius among vectors, over the median distance to the nearest other one
_TILE = 8192  # vectors that are compared with the sample at a time
_SAMPLE = 200  # vectors whose nearest other ones are looked for


def check_radius(radius: float | None) -> None:
    """Raise ConfigError unless the radius is None or a distance."""
    if radius is not None and not 0 < radius <= 2:  # NaN too
        raise ConfigError(f"--radius {radius:g}: wanted a distance above 0 and at most 2")


def find_duplicates(
    images: ImageFiles,
    radius: float | None = None,
    keep: str = "most-pixels",
    kinds: Sequence[str] = KINDS,
    listener: Callable[[int], None] | None = None,
    turned: bool = False,
    embeddings: Tensor | None = None,
) -> Duplicates:
    """Find the copies among image files; with two folders, only between them.

    Near copies are images within a radius, and images connected by such pairs;
    :class:`pml_ext_copies.thumbnails.Thumbnails` defines the distance. Images with the same pixels also agree in
    frames, depth, transparency and color profile; otherwise they are near.

    Args:
        images: the files. Hard and symbolic links to one file are one image.
        radius: by default :func:`pml_ext_copies.radius.chosen_radius`.
        keep: which copy of a group is first; see :data:`pml_ext_copies.image_files.KEEPS`.
        kinds: the kinds to find. For exact copies alone, only the images to keep are decoded.
        listener: receives the number of images read so far.
        turned: also finds near copies that are mirrored, turned by right angles, or captioned.
        embeddings: of all images, ``[N, D]``, of length 1. Neighbors by embedding are compared too, also turned.
    """
    check_radius(radius)
    check_keep(images, keep)
    for kind in kinds:
        if kind not in KINDS:
            raise ConfigError(f"--kind {unknown('kind', kind, KINDS)}")
    grouping = _Grouping(images.names, lambda number, kind: images.rank(number, keep, kind == "same"), images.copy)
    if "exact" in kinds:
        grouping.add("exact", _of_equal_bytes(images))
    if not {"same", "near"} & {*kinds}:
        return Duplicates(grouping.groups, radius or 0.0, len(images.distinct), skipped=dict(images.skipped))
    rest = images.distinct[grouping.stands_for[images.distinct] == images.distinct]
    thumbnails, problems = read_thumbnails([images.files[number] for number in rest], listener)
    unread = {images.names[rest[place]]: reason for place, reason in problems.items()}
    readable = np.delete(np.arange(len(rest)), [*problems])
    sets = [readable]
    if images.compares_two:
        is_old = rest[readable] >= images.first_old
        sets = [readable[~is_old], readable[is_old]]
    first, second = candidates(thumbnails, sets)
    neighbors = unique_pairs(first[:0], second[:0])
    if embeddings is not None:
        one, other = neighbor_pairs(embeddings[rest[readable]].float())
        neighbors = readable[one], readable[other]
        first = np.concatenate([first, neighbors[0]])
        second = np.concatenate([second, neighbors[1]])
        first, second = unique_pairs(first, second)
    pairs = Pairs(rest[first], rest[second], thumbnails.distances(first, second))
    if "same" in kinds:
        grouping.add("same", _of_equal_pixels(images, pairs))
    made_up = 0
    nearest = nearest_other = None
    if "near" in kinds:
        if radius is None:
            radius, made_up = chosen_radius([images.files[number] for number in rest[readable]], pairs, len(images))

        alignments = ALIGNMENTS if turned or embeddings is not None else ()

        def distances(kept: int, others: Sequence[int]) -> list[FromKept]:
            row, *rows = np.searchsorted(rest, [kept, *others]).tolist()
            return distances_from(thumbnails, row, rows, alignments)

        aligned = []
        if embeddings is not None:
            aligned.append(confirmed_pairs(thumbnails, *neighbors, radius))
        if turned:
            aligned.append(turned_pairs(thumbnails, sets, radius))
        grouping.add_near(joined([pairs, *(found.numbered(rest) for found in aligned)]), radius, distances)
        are_apart = grouping.stands_for[pairs.first] != grouping.stands_for[pairs.second]
        others = nearest_beyond(pairs.where(are_apart), len(images), radius)
        if len(others):
            nearest, nearest_other = float(others.min()), float(np.median(others))
    return Duplicates(
        grouping.groups, radius or 0.0, len(images.distinct), nearest, nearest_other, made_up, images.skipped | unread
    )


def find_equal_vectors(ids: Sequence[str], embeddings: Tensor, radius: float | None = None) -> Duplicates:
    """Find equal vectors, and vectors within a radius.

    Args:
        ids: of the vectors; the smallest id of a group is kept.
        embeddings: of length 1, ``[N, D]``.
        radius: by default half the median distance to the nearest distinct vector, over a sample of 200.
    """
    check_radius(radius)
    points = embeddings.cpu().float()
    if radius is None:
        others = _nearest_beyond(points, _EQUAL)
        radius = _EQUAL if others is None else _OF_OTHERS * others

    def distances(kept: int, others: Sequence[int]) -> list[FromKept]:
        return [(far, ()) for far in (points[list(others)] - points[kept]).norm(dim=1).tolist()]

    grouping = _Grouping(
        ids, lambda number, _: path_bytes(ids[number]), lambda number, distance, _: Copy(ids[number], distance)
    )
    found = shortest_pairs(points, max(radius, _EQUAL))
    grouping.add("same", components(found.where(found.distances <= _EQUAL), len(points)), distances)
    grouping.add_near(found, radius, distances)
    return Duplicates(grouping.groups, radius, len(points), nearest_other=_nearest_beyond(points, radius))


Distances = Callable[[int, Sequence[int]], list[FromKept]]
"""The copies of an image to keep, compared with it."""


class _Grouping:
    """The groups so far; for later kinds, the image to keep represents its copies.

    Args:
        names: of the images.
        rank: of an image in a group; the smallest is kept.
        copy: an image at a distance from the one to keep.
    """

    def __init__(
        self,
        names: Sequence[str],
        rank: Callable[[int, CopyKind], Any],
        copy: Callable[[int, float, tuple[str, ...]], Copy],
    ) -> None:
        self._names = names
        self._rank = rank
        self._copy = copy
        self.stands_for = np.arange(len(names))
        self.groups: list[Group] = []

    def add(self, kind: CopyKind, members: list[list[int]], distances: Distances | None = None) -> dict[int, Group]:
        """Add groups of image numbers; return them by the image to keep."""
        added = {}
        for numbers in members:
            kept = min(numbers, key=lambda number: self._rank(number, kind))
            others = [number for number in numbers if number != kept]
            from_kept = [(0.0, ())] * len(others) if distances is None else distances(kept, others)
            by_distance = sorted(
                (far, number, changes) for (far, changes), number in zip(from_kept, others, strict=True)
            )
            copies = [self._copy(number, far, changes) for far, number, changes in by_distance]
            added[kept] = Group(kind, [self._copy(kept, 0.0, ()), *copies])
            self.stands_for[numbers] = kept
        self.groups += sorted(added.values(), key=lambda group: (-len(group.images), path_bytes(group.keep.path)))
        return added

    def add_near(self, pairs: Pairs, radius: float, distances: Distances) -> None:
        count = len(self._names)
        pairs = pairs.where(pairs.distances <= radius)
        pairs = forest(Pairs(self.stands_for[pairs.first], self.stands_for[pairs.second], pairs.distances), count)
        added = self.add("near", components(pairs, count), distances)
        for first, second, distance in zip(
            pairs.first.tolist(), pairs.second.tolist(), pairs.distances.tolist(), strict=True
        ):
            group = added[self.stands_for[first]]
            group.near_pairs.append((self._names[first], self._names[second], distance))


def _of_equal_bytes(images: ImageFiles) -> list[list[int]]:
    """Groups of files with the same bytes; reads only files of equal size."""
    groups: list[list[int]] = []
    for numbers in _grouped_by(lambda number: images.stats[number].st_size, images.distinct.tolist()):
        if images.may_match(numbers):
            groups += _grouped_by(images.digest, numbers)
    return [numbers for numbers in groups if images.may_match(numbers)]


def _of_equal_pixels(images: ImageFiles, pairs: Pairs) -> list[list[int]]:
    groups: list[list[int]] = []
    for numbers in components(pairs.where(pairs.distances <= _SAME), len(images)):
        for alike in _grouped_by(images.traits, numbers):
            groups += _grouped_by(images.digest_of_pixels, alike)
    return [numbers for numbers in groups if images.may_match(numbers)]


def _grouped_by(key_of: Callable[[int], Hashable], numbers: Iterable[int]) -> list[list[int]]:
    """Groups of two numbers or more with the same key other than None."""
    grouped: dict[Hashable, list[int]] = defaultdict(list)
    for number in numbers:
        grouped[key_of(number)].append(number)
    return [group for key, group in grouped.items() if key is not None and len(group) > 1]


def _nearest_beyond(points: Tensor, radius: float) -> float | None:
    drawn = points[sample_indices(len(points), _SAMPLE, seed=0)].double()  # so that equal vectors are at 0
    nearest = torch.full((len(drawn),), torch.inf, dtype=torch.float64)
    for start in range(0, len(points), _TILE):
        rows = points[start : start + _TILE].double()
        distances = torch.cdist(drawn, rows, compute_mode="donot_use_mm_for_euclid_dist")
        nearest = torch.minimum(nearest, distances.masked_fill(distances <= radius, torch.inf).amin(dim=1))
    nearest = nearest[nearest.isfinite()]
    return nearest.median().item() if len(nearest) else None
