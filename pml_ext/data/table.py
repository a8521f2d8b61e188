"""A user's own images, listed in a CSV table with the columns of open-metric-learning."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ValidationError, field_validator

from ..errors import DataError
from .published import Entry, check_disjoint, labeled
from .reading import Box
from .rows import is_empty, read_rows
from .splits import DataSplits, first_without_gallery

_BOX = ("x_1", "y_1", "x_2", "y_2")
_GROUPS = ("sequence", "camera")
_COLUMNS = ("label", "path", "split", "is_query", "is_gallery", *_BOX, *_GROUPS)


class Row(BaseModel):
    """A row of a table."""

    label: str
    path: str
    split: Literal["train", "validation"]
    is_query: bool = False
    is_gallery: bool = False
    box: Box | None = None
    sequence: str = ""
    camera: str = ""

    @property
    def group(self) -> str:
        """The group that is left out of the image's gallery: its sequence, or its class under its camera."""
        if self.camera:
            return f"{self.label}, camera {self.camera}"
        return self.sequence

    @field_validator("box")
    @classmethod
    def _check_box(cls, box: Box | None) -> Box | None:
        if box is not None and not (box.left < box.right and box.top < box.bottom):
            raise ValueError("the box has no inside; wanted x_1 below x_2, and y_1 below y_2")
        return box


def table(
    root: Path | None = None,
    path: str = "",
    image_size: int = 224,
    channels: Literal[1, 3] = 3,
    shared_classes: bool = False,
    label_sets: bool = False,
) -> DataSplits:
    """Load the images listed in a CSV file: columns ``label``, ``path`` and ``split``, others if they are there.

    ``split`` is ``train`` or ``validation``. If ``is_query`` and ``is_gallery`` are true in all rows of ``validation``,
    or missing, each of its images is a query among all others. Otherwise queries are searched in the gallery, and no
    image is both. ``x_1``, ``y_1``, ``x_2``, ``y_2`` (left, top, right, bottom) are the crop box in the file; empty
    for the whole file. Images of a query's own ``sequence`` are left out of its gallery, or those of its own class and
    ``camera``. A run warns of columns with other names, which are not used.

    Args:
        root: the folder that paths in the table are relative to; by default the table's own.
        path: the CSV file.
        image_size: height and width of the network's input, in pixels.
        channels: 1 (gray) or 3 (color).
        shared_classes: whether classes may be in ``train`` and in ``validation``.
        label_sets: whether ``|`` separates several labels of an image; each set of labels is a class, in any split.

    Raises:
        DataError: the table or a listed image is missing, or a row is invalid; the text names the file or the line.
    """
    file = Path(path).expanduser()
    if root is not None:
        place = root.expanduser()
    else:
        place = file.parent
    rows, unused = _read(file)
    for row in rows:
        row.label = _class_of(row, label_sets, file)
    _check_files(rows, place, file)

    train = [row for row in rows if row.split == "train"]
    tested = [row for row in rows if row.split == "validation"]
    entries = {"train": _entries(train), "validation": _entries(tested)}
    check_disjoint(file, place, entries, shared_classes or label_sets)
    parts = {"train": entries["train"], **_tested_parts(tested, file)}
    for part, of_part in parts.items():
        least = 2 if part in ("train", "test") else 1
        if len(of_part) < least:
            raise DataError(f"{file}: {len(of_part)} images for {part}; wanted {least} or more")

    _check_groups(parts, file)

    names = sorted({row.label for row in rows})
    splits = labeled(place, parts, image_size, names, channels)
    return dataclasses.replace(splits, note=_note(file, unused))


def _class_of(row: Row, label_sets: bool, file: Path) -> str:
    """Return the name of a row's class: its label, or its sorted labels; DataError for several without label sets."""
    separators = "[|]" if label_sets else "[|;]"
    labels = [part.strip() for part in re.split(separators, row.label) if part.strip()]
    if label_sets:
        return "|".join(sorted(set(labels)))
    if len(labels) > 1:
        raise DataError(
            f"{file}: {row.path} has several labels in one cell, {row.label!r}; --set data.relation=shared-label "
            "takes labels separated by | as a set; else keep one of them"
        )
    return row.label


def _check_files(rows: list[Row], place: Path, file: Path) -> None:
    """Raise DataError unless all listed images exist."""
    missing = [row.path for row in rows if not (place / row.path).is_file()]
    if missing:
        raise DataError(
            f"{place / missing[0]}: no such file, though {file} lists it ({len(missing)} are missing); "
            "--data is the folder that its paths are relative to"
        )


def _tested_parts(tested: list[Row], file: Path) -> dict[str, list[Entry]]:
    """Return ``test``, if each image is a query among all others, or else ``query`` and ``gallery``."""
    unused = [row for row in tested if not row.is_query and not row.is_gallery]
    if unused:
        raise DataError(
            f"{file}: {len(unused)} of {len(tested)} images of validation are neither query nor gallery, "
            f"{unused[0].path} first; fill is_query or is_gallery, or delete the rows"
        )
    both = [row for row in tested if row.is_query and row.is_gallery]
    if 0 < len(both) < len(tested):
        raise DataError(
            f"{file}: {len(both)} of {len(tested)} images of validation are query and gallery, {both[0].path} first; "
            "wanted all of them, or none"
        )
    if both or not tested:
        return {"test": _entries(tested)}
    queries = [row for row in tested if row.is_query]
    gallery = [row for row in tested if row.is_gallery]
    return {"query": _entries(queries), "gallery": _entries(gallery)}


def _check_groups(parts: dict[str, list[Entry]], file: Path) -> None:
    """Raise DataError for a query whose own group is all of its gallery."""
    queries = parts.get("query", parts.get("test", []))
    searched = parts.get("gallery", queries)
    lone = first_without_gallery([entry.group for entry in queries], [entry.group for entry in searched])
    if lone is not None:
        entry = queries[lone]
        raise DataError(
            f"{file}: {entry.path} has no gallery: all {len(searched)} images of it are of its own group, "
            f"{entry.group!r}; wanted images of another sequence or camera"
        )


def _note(file: Path, unused: list[str]) -> str:
    """Return a warning that names the columns of a table that are not used; "" if there are none."""
    if not unused:
        return ""
    return f"{file}: not used: {', '.join(unused)}; the columns that are used are {', '.join(_COLUMNS)}"


def _entries(rows: list[Row]) -> list[Entry]:
    return [Entry(row.path, row.label, row.box, row.group) for row in rows]


def _read(file: Path) -> tuple[list[Row], list[str]]:
    """Return the rows of a table, and the names of its columns that are not used."""
    columns, lines = read_rows(file, "table:FILE.csv")
    _check_columns(columns, file)
    rows = []
    for number, line in lines:
        try:
            rows.append(_row(line, columns))
        except ValidationError as error:
            first = error.errors()[0]
            found = f"found {first['loc'][0]} {first['input']!r}: {first['msg']}"
            raise DataError(f"{file}, line {number}: {found}") from None
    for name in _GROUPS:
        if name in columns and not any(getattr(row, name) for row in rows):
            raise DataError(f"{file}: the column {name} is empty in all rows; fill it, or delete it")
    return rows, [name for name in columns if name and name not in _COLUMNS]


def _check_columns(columns: list[str], file: Path) -> None:
    missing = [name for name in ("label", "path", "split") if name not in columns]
    if missing:
        raise DataError(
            f"{file}: no column {' and no '.join(missing)} among {', '.join(columns) or 'none'}; "
            "wanted label, path and split (train or validation) in the first line"
        )
    if all(name in columns for name in _GROUPS):
        raise DataError(f"{file}: found the columns sequence and camera, which both say what a group is; delete one")


def _row(line: dict[str, Any], columns: list[str]) -> Row:
    """Return a row of the cells that are not empty; without both columns of roles, it has both roles."""
    cells: dict[str, Any] = {}
    if "is_query" not in columns and "is_gallery" not in columns:
        cells = {"is_query": True, "is_gallery": True}
    for name, text in line.items():
        if not is_empty(text):
            cells[name] = text.strip()
    box = [cells.get(name) for name in _BOX]
    cells["box"] = box if any(box) else None
    return Row.model_validate(cells)
