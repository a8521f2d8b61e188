"""Groups of copies with chosen images to keep."""

import dataclasses
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from pml_ext.errors import DataError, counted, printable
from pml_ext_train.data import read_rows
from pml_ext_train.files import composed

from .groups import Copy, Duplicates, FromKept, Group
from .thumbnails import read_thumbnails
from .turned import ALIGNMENTS, distances_from

_WANTED = "wanted a table as --csv writes it, with the columns kind, keep (yes or no) and path"
_ANSWERS = {"yes": True, "true": True, "no": False, "false": False}  # spreadsheets write TRUE and FALSE
_STAYS = (True, "")  # of an image without a row


def keep_chosen(found: Duplicates, kept: Mapping[int, Collection[str]]) -> Duplicates:
    """Keep some paths of a group, one at least, by the group's place.

    The first image stays first if it is kept; otherwise the first kept path replaces it, here and in other groups.
    Further kept images ``stay``. DataError if such an image can no longer be read.
    """
    return _kept(found, lambda place, group: kept.get(place))


def keep_listed(found: Duplicates, table: Path) -> Duplicates:
    """Keep what a table of ``--csv`` or ``pml-ext browse`` says.

    Images without a row stay; rows without an image give a warning. DataError for a group without a kept image, and for
    contradictory rows.
    """
    answers = _answers_of(table)
    exact = {(group.kind, image.path) for group in found.groups for image in group.images}
    respelled = {(kind, composed(path)): (kind, path) for kind, path in answers if (kind, path) not in exact}
    matched: set[tuple[str, str]] = set()

    def kept_of(_: int, group: Group) -> list[str]:
        paths = []
        for image in group.images:
            key: tuple[str, str] = (group.kind, image.path)
            if key not in answers:  # perhaps with composed or decomposed letters
                key = respelled.get((group.kind, composed(image.path)), key)
            matched.add(key)
            if answers.get(key, _STAYS)[0]:
                paths.append(image.path)
        if not paths:
            raise DataError(
                f"{table}: no image of the {group.kind} group of {printable(group.keep.path)} is kept; "
                "write keep = yes in one of its rows"
            )
        return paths

    chosen = _kept(found, kept_of)
    unmatched = [key for key in answers if key not in matched]
    if unmatched:
        first = f"{answers[unmatched[0]][1]}: {', '.join(map(printable, unmatched[0]))}"
        text = f"{counted(len(unmatched), 'row')} without an image in a group of copies; the first is {first}"
        warnings.warn(f"{table}: {text}", stacklevel=2)
    return chosen


def _kept(found: Duplicates, kept_of: Callable[[int, Group], Collection[str] | None]) -> Duplicates:
    """Apply ``kept_of``, which returns the kept paths of a group, or None for no change."""
    groups = []
    instead: dict[str, Copy] = {}  # of an image to keep, by its path
    for place, group in enumerate(found.groups):
        group = _with_others(group, instead)
        paths = kept_of(place, group)
        if paths is not None:
            before = group.keep.path
            group = _keeping(group, [_path_of(path, instead) for path in paths])
            if group.keep.path != before:
                instead[before] = group.keep
        groups.append(group)
    return dataclasses.replace(found, groups=groups)


def _answers_of(table: Path) -> dict[tuple[str, str], tuple[bool, str]]:
    """Whether a table keeps an image, and the place of its row, by kind and path."""
    columns, rows = read_rows(table, f"--keep {table}")
    missing = [name for name in ("kind", "keep", "path") if name not in columns]
    if missing:
        raise DataError(f"{table}: no column {', '.join(missing)}; {_WANTED}")
    answers: dict[tuple[str, str], tuple[bool, str]] = {}
    for place, row in rows:
        answer = str(row["keep"]).strip().lower()
        if answer not in _ANSWERS:
            raise DataError(f"{table}, {place}: keep = {printable(answer)!r}; {_WANTED}")
        key = (str(row["kind"]).strip(), str(row["path"]))
        first, earlier = answers.setdefault(key, (_ANSWERS[answer], place))
        if first != _ANSWERS[answer]:
            raise DataError(
                f"{table}: {earlier} and {place} disagree on whether to keep {printable(key[1])}; delete one of them"
            )
    return answers


def _with_others(group: Group, instead: Mapping[str, Copy]) -> Group:
    images = []
    for image in group.images:
        other = instead.get(image.path, image)
        images.append(dataclasses.replace(other, distance=image.distance, stays=image.stays, changes=image.changes))
    pairs = [(_path_of(first, instead), _path_of(second, instead), far) for first, second, far in group.near_pairs]
    return dataclasses.replace(group, images=images, near_pairs=pairs)


def _path_of(path: str, instead: Mapping[str, Copy]) -> str:
    return instead[path].path if path in instead else path


def _keeping(group: Group, paths: Collection[str]) -> Group:
    kept = [image for image in group.images if image.path in paths]
    if not kept:
        raise DataError(f"group of {group.keep.path}: no image is kept; keep at least one")
    first = kept[0]
    others = [image for image in group.images if image is not first]
    if first is not group.keep:
        distances = _distances(group, [first, *others])
        others = [
            dataclasses.replace(image, distance=far, changes=changes)
            for image, (far, changes) in zip(others, distances, strict=True)
        ]
    others.sort(key=lambda image: image.distance)
    images = [dataclasses.replace(first, distance=0.0, stays=False, changes=())]
    images += [dataclasses.replace(image, stays=image.path in paths) for image in others]
    return dataclasses.replace(group, images=images)


def _distances(group: Group, images: Sequence[Copy]) -> list[FromKept]:
    if group.kind != "near":
        return [(0.0, ())] * (len(images) - 1)
    thumbnails, problems = read_thumbnails([image.file for image in images])
    for reason in problems.values():
        raise DataError(f"{reason}; search for copies again")
    are_turned = any(image.changes for image in group.images)
    return distances_from(thumbnails, 0, range(1, len(images)), ALIGNMENTS if are_turned else ())
