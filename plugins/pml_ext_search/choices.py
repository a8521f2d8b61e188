"""Groups of copies of which somebody chose what to keep."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pml_ext.errors import DataError, counted, printable
from pml_ext_train.data import read_rows
from pml_ext_train.files import composed

from .duplicates import Copy, Duplicates, Group
from .duplicates_pages import table_of
from .thumbnails import read_thumbnails

_WANTED = "wanted a table as --csv writes it, with the columns kind, keep (yes or no) and path"
_ANSWERS = {"yes": True, "true": True, "no": False, "false": False}  # spreadsheets write TRUE and FALSE
_STAYS = (True, "")  # of an image without a row


@dataclasses.dataclass(frozen=True)
class ChosenCopies:
    """Copies, and what is kept of them: of each group one image at least."""

    found: Duplicates

    @property
    def groups(self) -> Sequence[Group]:
        """The groups; an image that is kept beside the one to keep ``stays``."""
        return self.found.groups

    def keeping(self, kept: Mapping[int, Collection[str]]) -> ChosenCopies:
        """Return the copies with other images kept: some paths of a group, by the group's place in :attr:`groups`.

        The image to keep stays the same if it is among them; otherwise it is the first of them, and the distances of
        the group are those from it. It also takes the other one's place in groups of another kind, so that an image is
        a copy in one group only. DataError if the distances need an image that can no longer be read.
        """
        return self._keeping(lambda place, group: kept.get(place))

    def keeping_as_told(self, table: Path) -> ChosenCopies:
        """Return the copies with what a table keeps: that of :meth:`as_csv`, or of ``--csv``.

        An image that the table does not have stays: nobody has chosen to spare it. A row that matches no image is
        reported by a warning. DataError for a table of another form, one that keeps no image of a group, and one with
        both answers for an image.
        """
        told = _told_by(table)
        matched: set[tuple[str, str]] = set()

        def kept_of(place: int, group: Group) -> list[str]:
            names = [(group.kind, composed(image.path)) for image in group.images]
            matched.update(names)
            paths = [image.path for image, name in zip(group.images, names, strict=True) if told.get(name, _STAYS)[0]]
            if not paths:
                raise DataError(
                    f"{table}: it keeps no image of the {group.kind} group of {printable(group.keep.path)}; wanted "
                    "keep = yes in one row of each group"
                )
            return paths

        chosen = self._keeping(kept_of)
        unmatched = [key for key in told if key not in matched]
        if unmatched:
            first = f"{told[unmatched[0]][1]}: {', '.join(map(printable, unmatched[0]))}"
            count = counted(len(unmatched), "row")
            warnings.warn(f"{table}: {count} without an image in a group of copies, the first in {first}", stacklevel=2)
        return chosen

    def _keeping(self, kept_of: Callable[[int, Group], Collection[str] | None]) -> ChosenCopies:
        """Return the copies with what is kept of each group, by its place and itself; None for what was kept before."""
        groups = []
        instead: dict[str, Copy] = {}  # of an image to keep, by its path
        for place, group in enumerate(self.groups):
            group = _with_others(group, instead)
            paths = kept_of(place, group)
            if paths is not None:
                before = group.keep.path
                group = _keeping(group, [_path_of(path, instead) for path in paths])
                if group.keep.path != before:
                    instead[before] = group.keep
            groups.append(group)
        return ChosenCopies(dataclasses.replace(self.found, groups=groups))

    def as_json(self) -> dict[str, Any]:
        """Return the groups as ``pml-ext duplicates --json`` prints them, of images to spare and the one to keep.

        An image that is kept beside it is in no group, and a group without an image to spare is left out.
        """
        groups = []
        for group in self.groups:
            images = [group.keep, *group.others]
            if len(images) > 1:
                groups.append(dataclasses.replace(group, images=images, pairs=_pairs_of(group, images)))
        return dataclasses.replace(self.found, groups=groups).as_json()

    def as_csv(self) -> str:
        """Return the table of ``pml-ext duplicates --csv``: a row for each image, ``keep`` is yes or no."""
        return table_of(self.found)


def _told_by(table: Path) -> dict[tuple[str, str], tuple[bool, str]]:
    """Return whether a table keeps an image, and the place of its row, by kind of group and path."""
    columns, rows = read_rows(table, f"--keep {table}")
    missing = [name for name in ("kind", "keep", "path") if name not in columns]
    if missing:
        raise DataError(f"{table}: no column {', '.join(missing)}; {_WANTED}")
    told: dict[tuple[str, str], tuple[bool, str]] = {}
    for place, row in rows:
        answer = str(row["keep"]).strip().lower()
        if answer not in _ANSWERS:
            raise DataError(f"{table}, {place}: keep = {printable(answer)!r}; {_WANTED}")
        key = (str(row["kind"]).strip(), composed(str(row["path"])))
        first, earlier = told.setdefault(key, (_ANSWERS[answer], place))
        if first != _ANSWERS[answer]:
            both = f"{earlier} and {place}"
            raise DataError(f"{table}: {printable(key[1])} is kept in one of {both}, and not in the other; delete one")
    return told


def _with_others(group: Group, instead: Mapping[str, Copy]) -> Group:
    """Return a group with other images in the place of some, at the distances of those."""
    images = []
    for image in group.images:
        other = instead.get(image.path)
        if other is not None:
            image = dataclasses.replace(other, distance=image.distance, stays=image.stays)
        images.append(image)
    pairs = []
    for first, second, distance in group.pairs:
        pairs.append((_path_of(first, instead), _path_of(second, instead), distance))
    return dataclasses.replace(group, images=images, pairs=pairs)


def _path_of(path: str, instead: Mapping[str, Copy]) -> str:
    """Return the path of the image that is in the place of another one."""
    return instead[path].path if path in instead else path


def _keeping(group: Group, paths: Collection[str]) -> Group:
    """Return a group of which these paths are kept."""
    kept = [image for image in group.images if image.path in paths]
    if not kept:
        raise DataError(f"group of {group.keep.path}: no image is kept; wanted one or more")
    first = kept[0]
    others = [image for image in group.images if image is not first]
    distances = [image.distance for image in others]
    if first is not group.keep:
        distances = _distances(group, first, others)
    by_distance = sorted(zip(distances, range(len(others)), strict=True))
    images = [dataclasses.replace(first, distance=0.0, stays=False)]
    for distance, place in by_distance:
        other = others[place]
        images.append(dataclasses.replace(other, distance=distance, stays=other.path in paths))
    return dataclasses.replace(group, images=images)


def _distances(group: Group, first: Copy, others: Sequence[Copy]) -> list[float]:
    """Return the distances of an image of a group to the others."""
    if group.kind != "near":
        return [0.0] * len(others)
    files = []
    for image in (first, *others):
        if image.file is None:
            raise DataError(f"{image.path} is a vector, no file; wanted images")
        files.append(image.file)
    thumbnails, problems = read_thumbnails(files)
    for reason in problems.values():
        raise DataError(f"{reason}; look for copies anew")
    rest = np.arange(1, len(files))
    return [*map(float, thumbnails.distances(thumbnails.whole_vectors(), np.zeros_like(rest), rest))]


def _pairs_of(group: Group, images: Sequence[Copy]) -> list[tuple[str, str, float]]:
    """Return the pairs of a group that are of two of these images."""
    paths = {image.path for image in images}
    return [pair for pair in group.pairs if pair[0] in paths and pair[1] in paths]
