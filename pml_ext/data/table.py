"""A user's own images, listed in a CSV table with the columns of open-metric-learning."""

from __future__ import annotations

import csv
import dataclasses
import re
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ValidationError, field_validator

from ..errors import DataError
from .published import Entry, check_disjoint, labeled
from .reading import Box
from .splits import DataSplits

_BOX = ("x_1", "y_1", "x_2", "y_2")
_COLUMNS = ("label", "path", "split", "is_query", "is_gallery", *_BOX)
_SEQUENCE = "open-metric-learning leaves a query's own sequence out of its results, pml-ext does not"


class Row(BaseModel):
    """A row of a table."""

    label: str
    path: str
    split: Literal["train", "validation"]
    is_query: bool = False
    is_gallery: bool = False
    box: Box | None = None

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
    for the whole file. A run warns of columns with other names, which are not used.

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
    place = root.expanduser() if root is not None else file.parent
    rows, unused = _read(file)
    for row in rows:
        names = [part.strip() for part in re.split("[|]" if label_sets else "[|;]", row.label) if part.strip()]
        if label_sets:
            row.label = "|".join(sorted(set(names)))
        elif len(names) > 1:
            raise DataError(
                f"{file}: {row.path} has several labels in one cell, {row.label!r}; --set data.relation=shared-label "
                "takes labels separated by | as a set; else keep one of them"
            )
    if missing := [row.path for row in rows if not (place / row.path).is_file()]:
        raise DataError(
            f"{place / missing[0]}: no such file, though {file} lists it ({len(missing)} are missing); "
            "--data is the folder that its paths are relative to"
        )
    train, tested = ([row for row in rows if row.split == split] for split in ("train", "validation"))
    check_disjoint(file, {"train": _entries(train), "validation": _entries(tested)}, shared_classes or label_sets)
    parts = {"train": _entries(train), "test": _entries(tested)}
    both = [row for row in tested if row.is_query and row.is_gallery]
    if 0 < len(both) < len(tested):
        raise DataError(
            f"{file}: {len(both)} of {len(tested)} images of validation are query and gallery, {both[0].path} first; "
            "wanted all of them, or none"
        )
    if tested and not both:
        queries, gallery = ([row for row in tested if getattr(row, role)] for role in ("is_query", "is_gallery"))
        parts = {"train": parts["train"], "query": _entries(queries), "gallery": _entries(gallery)}
    for part, entries in parts.items():
        if len(entries) < (least := 2 if part in ("train", "test") else 1):
            raise DataError(f"{file}: {len(entries)} images for {part}; wanted {least} or more")
    splits = labeled(place, parts, image_size, sorted({row.label for row in rows}), channels)
    return dataclasses.replace(splits, note=_note(file, unused))


def _note(file: Path, unused: list[str]) -> str:
    """Return a warning that names the columns of a table that are not used; "" if there are none."""
    if not unused:
        return ""
    text = f"{file}: not used: {', '.join(unused)}; the columns that are used are {', '.join(_COLUMNS)}"
    return f"{text}; {_SEQUENCE}" if "sequence" in unused else text


def _entries(rows: list[Row]) -> list[Entry]:
    return [Entry(row.path, row.label, row.box) for row in rows]


def _read(file: Path) -> tuple[list[Row], list[str]]:
    """Return the rows of a table, and the names of its columns that are not used."""
    rows = []
    if file.exists() and not file.is_file():  # a pipe or a device may never end
        raise DataError(f"{file}: not a regular file; wanted table:FILE.csv")
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            head = opened.readline()
            opened.seek(0)
            separator = max(",;\t", key=head.count)  # spreadsheets of some languages write semicolons
            lines = csv.DictReader(opened, strict=True, delimiter=separator)
            columns = lines.fieldnames or []
            if lacking := [name for name in ("label", "path", "split") if name not in columns]:
                raise DataError(
                    f"{file}: no column {' and no '.join(lacking)} among {', '.join(columns) or 'none'}; "
                    "wanted label, path and split (train or validation) in the first line"
                )
            roles = {} if {"is_query", "is_gallery"} & {*columns} else {"is_query": True, "is_gallery": True}
            for line in lines:
                cells = {
                    name: text for name, text in line.items() if str(text).strip().lower() not in ("", "none", "nan")
                }
                box = [cells.get(name) for name in _BOX]
                rows.append(Row.model_validate({**roles, **cells, "box": box if any(box) else None}))
    except ValidationError as error:
        first = error.errors()[0]
        found = f"found {first['loc'][0]} {first['input']!r}: {first['msg']}"
        raise DataError(f"{file}, line {lines.line_num}: {found}") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        where = f", line {lines.reader.line_num}" if isinstance(error, csv.Error) else ""
        wanted = "table:FILE.csv must be UTF-8 with balanced quotes"
        raise DataError(f"{file}: cannot be read as a table ({error}{where}); {wanted}") from None
    return rows, [name for name in columns if name and name not in _COLUMNS]
