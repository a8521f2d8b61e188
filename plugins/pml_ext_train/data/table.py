"""A user's own images, listed in a CSV or Parquet table with the columns of open-metric-learning."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, InstanceOf, ValidationError, field_validator

from pml_ext.errors import ConfigError, DataError, unknown

from ..files.stat import as_spelled, composed, doubt_about
from .published import Entry, check_disjoint, labeled, labeled_part
from .reading import Box
from .rows import Rows, is_empty, read_rows, rows_of_frame
from .splits import DataSplits, check_galleries, divide

_BOX = ("x_1", "y_1", "x_2", "y_2")
_GROUPS = ("sequence", "camera")
_COLUMNS = ("label", "path", "split", "is_query", "is_gallery", *_BOX, *_GROUPS)


class TableRow(BaseModel):
    """A row of a table."""

    label: str
    path: InstanceOf[str]  # also with bytes that are not UTF-8
    split: Literal["train", "validation", "test"] = "train"  # of a table without the column, all are divided
    is_query: bool = False
    is_gallery: bool = False
    box: Box | None = None
    sequence: str = ""
    camera: str = ""

    @property
    def group(self) -> str:
        """The group that is left out of the image's gallery: its sequence, or its class under its camera."""
        return f"{self.label}, camera {self.camera}" if self.camera else self.sequence

    @field_validator("box")
    @classmethod
    def _check_box(cls, box: Box | None) -> Box | None:
        if box is not None and not (box.left < box.right and box.top < box.bottom):
            raise ValueError("the box has no inside; wanted x_1 below x_2, and y_1 below y_2")
        return box


def table(
    root: Path | None = None,
    path: Any = "",
    image_size: int = 224,
    channels: Literal[1, 3] = 3,
    split: Literal["class", "image"] | None = None,
    train_fraction: float | None = None,
    seed: int | None = None,
    shared_classes: bool = False,
    label_sets: bool = False,
    columns: dict[str, str] | None = None,
) -> DataSplits:
    """Load the images listed in a CSV or Parquet file: columns ``label`` and ``path``, others if they are there.

    ``split`` is ``train``, ``test`` or ``validation``. If there are rows of ``test``, rows of ``validation`` choose
    the epoch; otherwise they are tested. Without the column, the table is split as a folder is.

    If ``is_query`` and ``is_gallery`` are true in all tested rows, or missing, each of these images is a query among
    all others. Otherwise queries are searched in the gallery, and no image is both. ``x_1``, ``y_1``, ``x_2``, ``y_2``
    (left, top, right, bottom) are the crop box, in pixels of the image as it is shown, rotated by its EXIF orientation;
    empty for the whole image. Rows with several boxes of a file are images of their own. Images of a query's own
    ``sequence`` are left out of its gallery, or images of its own class and ``camera``. A run warns of columns with
    other names, which are not used.

    Args:
        root: the folder that paths in the table are relative to; by default the table's own.
        path: the CSV or Parquet file, or a pandas DataFrame.
        image_size: height and width of the network's input, in pixels.
        channels: 1 (gray) or 3 (color).
        split: of a table without the column: ``"class"`` (the default; tested classes are never trained on), or
            ``"image"``, which divides the images of each class. In a table with it, ``"image"`` allows classes in
            several parts.
        train_fraction: of a table without the column: the share of the classes, or of each class's images, to train
            with, above 0 and below 1; 0.5 by default.
        seed: of a table without the column: random seed of the split; 0 by default.
        shared_classes: whether classes may be in several parts, as with ``split = "image"``.
        label_sets: whether ``|`` separates several labels of an image; each set of labels is a class, in any split.
        columns: the table's names of columns, by those that are meant: ``columns = {label = "Id", path = "Image"}``.

    Raises:
        ConfigError: a setting outside its range, or that does not go with the table's own split.
        DataError: the table or a listed image is missing, or a row is invalid; the text names the file or the line.
    """
    if hasattr(path, "to_dict"):
        name = "DataFrame"
        place = root.expanduser() if root is not None else Path()
        found, lines = rows_of_frame(path)
    else:
        file = Path(path).expanduser()
        name = str(file)
        place = root.expanduser() if root is not None else file.parent
        found, lines = read_rows(file, "table:FILE.csv")
    found, lines = _renamed(found, lines, columns or {}, name)
    rows, unused = _read(found, lines, name)
    for row in rows:
        row.label = composed(_class_of(row, label_sets, name))
    _check_files(rows, place, name)

    names = sorted({row.label for row in rows})
    if "split" in found:
        for option, value in (("train_fraction", train_fraction), ("seed", seed)):
            if value is not None:
                text = f"found {value!r}, and the table has a split of its own; leave one out"
                raise ConfigError(text, key=option, source=name)
        shared = shared_classes or label_sets or split == "image"
        parts = _own_split(rows, place, name, shared)
        splits = labeled(place, parts, image_size, names, channels)
    else:
        entries = _entries(rows)
        check_disjoint(name, place, {"train": entries})
        if len(names) < 2:
            raise DataError(f"found {len(names)} classes in {len(rows)} rows; wanted two or more classes", source=name)
        labels = {label: number for number, label in enumerate(names)}
        whole = labeled_part(place, entries, labels, channels)
        train, test = divide(name, whole, split, train_fraction, seed)
        splits = DataSplits(train, test, image_size=image_size, channels=channels, crop=True)
    tested = splits.tested()
    check_galleries(name, tested.get("test") or tested["query"], tested.get("test") or tested["gallery"])
    doubt = doubt_about(names)
    notes = [_note(name, unused), f"{name}: {doubt}" if doubt else ""]
    return dataclasses.replace(splits, note="; ".join(note for note in notes if note))


def rows_of_table(file: Path, columns: dict[str, str] | None = None) -> list[TableRow]:
    """Return the rows of a CSV or Parquet table; paths begin with the table's folder, unless they are absolute.

    ``columns`` are as those of :func:`table`. DataError as of :func:`table`.
    """
    name = str(file)
    found, lines = read_rows(file, "table:FILE.csv")
    found, lines = _renamed(found, lines, columns or {}, name)
    rows, _ = _read(found, lines, name)
    _check_files(rows, file.parent, name, "paths are relative to the folder of the table")
    for row in rows:
        row.path = str(file.parent / row.path)
    return rows


def has_split(file: Path, columns: dict[str, str]) -> bool:
    """Return whether a CSV or Parquet table has a split of its own; ``columns`` are as those of :func:`table`."""
    found, _ = read_rows(file.expanduser(), "table:FILE.csv")
    return columns.get("split", "split") in found


def _own_split(rows: list[TableRow], place: Path, file: str, shared_classes: bool) -> dict[str, list[Entry]]:
    """Return the images of each part, as the column ``split`` has them."""
    by_part: dict[str, list[TableRow]] = {"train": [], "validation": [], "test": []}
    for row in rows:
        by_part[row.split].append(row)
    tested = by_part["test"] or by_part["validation"]
    parts = {"train": _entries(by_part["train"]), **_tested_parts(tested, file)}
    if by_part["test"] and by_part["validation"]:
        parts["validation"] = _entries(by_part["validation"])
    entries = {part: _entries(of_part) for part, of_part in by_part.items() if of_part or part == "train"}
    check_disjoint(file, place, entries, shared_classes, ", or type --set data.split=image to allow it")
    for part, of_part in parts.items():
        least = 2 if part in ("train", "test") else 1
        if len(of_part) < least:
            raise DataError(f"{len(of_part)} images for {part}; wanted {least} or more", source=file)
    return parts


def _renamed(found: list[str], lines: Rows, columns: dict[str, str], file: str) -> tuple[list[str], Rows]:
    """Return columns and rows under our names; ``columns`` has the table's own by ours."""
    if not columns:
        return found, lines
    ours: dict[str, str] = {}
    for name, own in columns.items():
        if name not in _COLUMNS:
            raise ConfigError(f"data.columns: {unknown('column', name, _COLUMNS)}")
        if own not in found:
            raise DataError(f"data.columns.{name}: {unknown('column', str(own), found)}", source=file)
        ours[own] = name
    replaced = {name for name, own in columns.items() if own != name}
    kept = [name for name in found if name in ours or name not in replaced]
    renamed = []
    for place, line in lines:
        renamed.append((place, {ours.get(name, name): line[name] for name in kept}))
    return [ours.get(name, name) for name in kept], renamed


def _class_of(row: TableRow, label_sets: bool, file: str) -> str:
    """Return the name of a row's class: its label, or its sorted labels; DataError for several without label sets."""
    separators = "[|]" if label_sets else "[|;]"
    labels = [part.strip() for part in re.split(separators, row.label) if part.strip()]
    if label_sets:
        return "|".join(sorted(set(labels)))
    if len(labels) > 1:
        raise DataError(
            f"{row.path} has several labels in one cell, {row.label!r}; --set data.relation=shared-label "
            "takes labels separated by | as a set; else keep one of them",
            source=file,
        )
    return row.label


def _check_files(
    rows: list[TableRow], place: Path, file: str, advice: str = "--data is the folder that its paths are relative to"
) -> None:
    """Take paths as their folder spells them; raise DataError unless all listed images exist."""
    for row in rows:
        row.path = as_spelled(place, row.path)
    missing = [row.path for row in rows if not (place / row.path).is_file()]
    if missing:
        raise DataError(
            f"{place / missing[0]}: no such file, though {file} lists it ({len(missing)} are missing); {advice}"
        )


def _tested_parts(tested: list[TableRow], file: str) -> dict[str, list[Entry]]:
    """Return ``test``, if each image is a query among all others, or else ``query`` and ``gallery``."""
    unused = [row for row in tested if not row.is_query and not row.is_gallery]
    if unused:
        raise DataError(
            f"{len(unused)} of {len(tested)} tested images are neither query nor gallery, "
            f"{unused[0].path} first; fill is_query or is_gallery, or delete the rows",
            source=file,
        )
    both = [row for row in tested if row.is_query and row.is_gallery]
    if 0 < len(both) < len(tested):
        raise DataError(
            f"{len(both)} of {len(tested)} tested images are query and gallery, {both[0].path} first; "
            "wanted all of them, or none",
            source=file,
        )
    if both or not tested:
        return {"test": _entries(tested)}
    queries = [row for row in tested if row.is_query]
    gallery = [row for row in tested if row.is_gallery]
    return {"query": _entries(queries), "gallery": _entries(gallery)}


def _note(file: str, unused: list[str]) -> str:
    """Return a warning that names the columns of a table that are not used; "" if all are used."""
    if not unused:
        return ""
    return f"{file}: not used: {', '.join(unused)}; the columns that are used are {', '.join(_COLUMNS)}"


def _entries(rows: list[TableRow]) -> list[Entry]:
    return [Entry(row.path, row.label, row.box, row.group) for row in rows]


def _read(columns: list[str], lines: Rows, file: str) -> tuple[list[TableRow], list[str]]:
    """Return the rows of a table, and the names of its columns that are not used."""
    _check_columns(columns, file)
    rows = []
    for place, line in lines:
        for name in ("label", "path", "split"):
            if name in columns and is_empty(line[name]):
                raise DataError(f"{name} is empty; fill the cell, or delete the row", source=f"{file}, {place}")
        try:
            rows.append(_row(line, columns))
        except ValidationError as error:
            first = error.errors()[0]
            found = f"found {first['loc'][0]} {first['input']!r}: {first['msg']}"
            raise DataError(found, source=f"{file}, {place}") from None
    for name in _GROUPS:
        if name in columns and not any(getattr(row, name) for row in rows):
            raise DataError(f"the column {name} is empty in all rows; fill it, or delete it", source=file)
    return rows, [name for name in columns if name and name not in _COLUMNS]


def _check_columns(columns: list[str], file: str) -> None:
    missing = [name for name in ("label", "path") if name not in columns]
    if missing:
        options = " ".join(f"--set data.columns.{name}=NAME" for name in missing)
        raise DataError(
            f"no column {' and no '.join(missing)} among {', '.join(columns) or 'none'}; wanted label and path "
            f"(and maybe split: train, test or validation) in the first line, or {options} for other names",
            source=file,
        )
    roles = [name for name in ("is_query", "is_gallery") if name in columns]
    if roles and "split" not in columns:
        raise DataError(
            f"found {' and '.join(roles)} without a column split, which says what is tested; add it", source=file
        )
    if all(name in columns for name in _GROUPS):
        raise DataError(
            "found the columns sequence and camera, which both say what a group is; delete one", source=file
        )


def _row(line: dict[str, Any], columns: list[str]) -> TableRow:
    """Return a row of the cells that are not empty; without both columns of roles, it has both roles."""
    cells: dict[str, Any] = {}
    if "is_query" not in columns and "is_gallery" not in columns:
        cells = {"is_query": True, "is_gallery": True}
    for name, text in line.items():
        if not is_empty(text):
            cells[name] = text.strip()
    box = [cells.get(name) for name in _BOX]
    cells["box"] = box if any(box) else None
    return TableRow.model_validate(cells)
