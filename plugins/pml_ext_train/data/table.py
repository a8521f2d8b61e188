"""A user's own images, listed in a table with the columns of open-metric-learning."""

import dataclasses
import re
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, InstanceOf, ValidationError, field_validator

from pml_ext.errors import ConfigError, DataError, unknown

from ..files.stat import as_spelled, composed, doubt_about, file_and_page
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
    split: Literal["train", "validation", "test"] = "train"  # the default, for tables without the column
    is_query: bool = False
    is_gallery: bool = False
    box: Box | None = None
    sequence: str = ""
    camera: str = ""

    @property
    def group(self) -> str:
        """The group that the image's own gallery leaves out: its sequence, or its class and camera."""
        return f"{self.label}, camera {self.camera}" if self.camera else self.sequence

    @field_validator("box")
    @classmethod
    def _check_box(cls, box: Box | None) -> Box | None:
        if box is not None and not (box.left < box.right and box.top < box.bottom):
            raise ValueError("the box is empty; x_1 must be below x_2, and y_1 below y_2")
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
    """Load the images listed in a CSV or Parquet file.

    Columns are ``label``, ``path``, and optionally:

    ``split``: ``train``, ``test`` or ``validation``. With ``test`` rows, ``validation`` rows choose the epoch;
    otherwise they are tested.

    ``is_query``, ``is_gallery``: if both are true in all tested rows, or missing, each image is a query among all
    others. Otherwise queries are searched in the gallery, and no image is both.

    ``x_1``, ``y_1``, ``x_2``, ``y_2``: crop box (left, top, right, bottom) in pixels of the upright image, or empty. A
    file may have several boxes.

    ``sequence`` or ``camera``: a query's gallery leaves out images of its own sequence, or of its own class and camera.

    Args:
        root: the folder that paths in the table are relative to; by default the table's own.
        path: the CSV or Parquet file, or a pandas DataFrame.
        image_size: height and width of the network's input, in pixels.
        channels: 1 (gray) or 3 (color).
        split: without the column: ``"class"`` (the default; test classes are never trained on), or ``"image"``, which
            divides each class. With the column: ``"image"`` allows classes in several parts.
        train_fraction: without the column: share of the classes, or of each class's images, to train with, in (0, 1);
            default 0.5.
        seed: without the column: random seed of the split; default 0.
        shared_classes: whether classes may be in several parts, as with ``split = "image"``.
        label_sets: whether ``|`` separates several labels of an image; each set of labels is a class.
        columns: the table's own names of columns: ``columns = {label = "Id", path = "Image"}``.

    Raises:
        ConfigError: a setting is outside its range, or contradicts the table's own split.
        DataError: the table or a listed image is missing, or a row is invalid.
    """
    if hasattr(path, "to_dict"):
        name = "DataFrame"
        place = Path()
        found, lines = rows_of_frame(path)
    else:
        name = str(Path(path).expanduser())
        place = Path(name).parent
        found, lines = read_rows(Path(name), "table:FILE.csv")
    if root is not None:
        place = root.expanduser()
    rows, found = _read(found, lines, columns or {}, name)
    for row in rows:
        row.label = composed(_class_of(row, label_sets, name))
    _check_files(rows, place, name)

    names = sorted({row.label for row in rows})
    if "split" in found:
        for option, value in (("train_fraction", train_fraction), ("seed", seed)):
            if value is not None:
                text = f"found {value!r}, but the table has its own split; remove one of the two"
                raise ConfigError(text, key=option, source=name)
        parts = _own_split(rows, place, name, shared_classes or label_sets or split == "image")
        splits = labeled(place, parts, image_size, names, channels)
    else:
        entries = _entries(rows)
        check_disjoint(name, place, {"train": entries})
        if len(names) < 2:
            raise DataError(f"found {len(names)} classes in {len(rows)} rows; wanted two or more", source=name)
        labels = {label: number for number, label in enumerate(names)}
        whole = labeled_part(place, entries, labels, channels)
        train, test = divide(name, whole, split, train_fraction, seed)
        splits = DataSplits(train, test, image_size=image_size, channels=channels, crop=True)
    tested = splits.tested()
    check_galleries(name, tested.get("test") or tested["query"], tested.get("test") or tested["gallery"])
    notes = []
    if unused := [column for column in found if column and column not in _COLUMNS]:
        notes.append(f"{name}: not used: {', '.join(unused)}; the columns used are {', '.join(_COLUMNS)}")
    if doubt := doubt_about(names):
        notes.append(f"{name}: {doubt}")
    return dataclasses.replace(splits, note="; ".join(notes))


def rows_of_table(file: Path, columns: dict[str, str] | None = None) -> list[TableRow]:
    """Rows of a CSV or Parquet table, with paths that include its folder.

    Columns and errors are as in :func:`table`.
    """
    name = str(file)
    found, lines = read_rows(file, "table:FILE.csv")
    rows, _ = _read(found, lines, columns or {}, name)
    _check_files(rows, file.parent, name, "paths are relative to the folder of the table")
    for row in rows:
        row.path = str(file.parent / row.path)
    return rows


def has_split(file: Path, columns: dict[str, str]) -> bool:
    """Whether a CSV or Parquet table has its own split; ``columns`` as in :func:`table`."""
    found, _ = read_rows(file.expanduser(), "table:FILE.csv")
    return columns.get("split", "split") in found


def _own_split(rows: list[TableRow], place: Path, file: str, shared_classes: bool) -> dict[str, list[Entry]]:
    by_part: dict[str, list[TableRow]] = {"train": [], "validation": [], "test": []}
    for row in rows:
        by_part[row.split].append(row)
    entries = {part: _entries(of_part) for part, of_part in by_part.items() if of_part or part == "train"}
    check_disjoint(file, place, entries, shared_classes, ", or type --set data.split=image to allow it")
    parts = {"train": entries["train"], **_tested_parts(by_part["test"] or by_part["validation"], file)}
    if by_part["test"] and by_part["validation"]:
        parts["validation"] = entries["validation"]
    for part, of_part in parts.items():
        least = 2 if part in ("train", "test") else 1
        if len(of_part) < least:
            raise DataError(f"{len(of_part)} images for {part}; it needs {least} or more", source=file)
    return parts


def _renamed(found: list[str], lines: Rows, columns: dict[str, str], file: str) -> tuple[list[str], Rows]:
    """Columns and rows under our names; ``columns`` maps ours to the table's own."""
    ours: dict[str, str] = {}
    for name, own in columns.items():
        if name not in _COLUMNS:
            raise ConfigError(f"data.columns: {unknown('column', name, _COLUMNS)}")
        if own not in found:
            raise DataError(f"data.columns.{name}: {unknown('column', str(own), found)}", source=file)
        ours[own] = name
    kept = [name for name in found if name in ours or name not in columns]
    renamed = []
    for place, line in lines:
        renamed.append((place, {ours.get(name, name): line[name] for name in kept}))
    return [ours.get(name, name) for name in kept], renamed


def _class_of(row: TableRow, label_sets: bool, file: str) -> str:
    separators = "[|]" if label_sets else "[|;]"
    labels = [part.strip() for part in re.split(separators, row.label) if part.strip()]
    if label_sets:
        return "|".join(sorted(set(labels)))
    if len(labels) > 1:
        raise DataError(
            f"{row.path} has several labels in one cell, {row.label!r}. Keep one, or separate them by | and type "
            "--set data.relation=shared-label",
            source=file,
        )
    return row.label


def _check_files(
    rows: list[TableRow], place: Path, file: str, advice: str = "set --data to the folder of its paths"
) -> None:
    """Spell paths as their folder does; DataError unless all listed images exist."""
    for row in rows:
        row.path = as_spelled(place, row.path)
    missing = [row.path for row in rows if not file_and_page(place / row.path)[0].is_file()]
    if missing:
        raise DataError(
            f"{place / missing[0]}: no such file, but {file} lists it ({len(missing)} are missing); {advice}"
        )


def _tested_parts(tested: list[TableRow], file: str) -> dict[str, list[Entry]]:
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
            f"{len(both)} of {len(tested)} tested images are both query and gallery, {both[0].path} first; "
            "mark all of them so, or none",
            source=file,
        )
    if both or not tested:
        return {"test": _entries(tested)}
    return {
        "query": _entries([row for row in tested if row.is_query]),
        "gallery": _entries([row for row in tested if row.is_gallery]),
    }


def _entries(rows: list[TableRow]) -> list[Entry]:
    return [Entry(row.path, row.label, row.box, row.group) for row in rows]


def _read(found: list[str], lines: Rows, columns: dict[str, str], file: str) -> tuple[list[TableRow], list[str]]:
    """Rows and columns of a table, renamed by ``columns``."""
    found, lines = _renamed(found, lines, columns, file)
    _check_columns(found, file)
    rows = []
    for place, line in lines:
        for name in ("label", "path", "split"):
            if name in found and is_empty(line[name]):
                raise DataError(f"{name} is empty; fill the cell, or delete the row", source=f"{file}, {place}")
        try:
            rows.append(_row(line, found))
        except ValidationError as error:
            first = error.errors()[0]
            text = f"found {first['loc'][0]} {first['input']!r}: {first['msg']}"
            raise DataError(text, source=f"{file}, {place}") from None
    for name in _GROUPS:
        if name in found and not any(getattr(row, name) for row in rows):
            raise DataError(f"the column {name} is empty in all rows; fill it, or delete it", source=file)
    return rows, found


def _check_columns(columns: list[str], file: str) -> None:
    missing = [name for name in ("label", "path") if name not in columns]
    if missing:
        options = " ".join(f"--set data.columns.{name}=NAME" for name in missing)
        raise DataError(
            f"no column {' and no '.join(missing)} among {', '.join(columns) or 'none'}; name them in the first line, "
            f"or type {options}",
            source=file,
        )
    roles = [name for name in ("is_query", "is_gallery") if name in columns]
    if roles and "split" not in columns:
        raise DataError(
            f"found {' and '.join(roles)} without the column split; add it to say which images are tested", source=file
        )
    if all(name in columns for name in _GROUPS):
        raise DataError(
            "found both columns sequence and camera, but only one can define the groups; delete one", source=file
        )


def _row(line: dict[str, Any], columns: list[str]) -> TableRow:
    """A row of the filled cells; without columns of roles, the image is both query and gallery."""
    cells: dict[str, Any] = {}
    if "is_query" not in columns and "is_gallery" not in columns:
        cells = {"is_query": True, "is_gallery": True}
    for name, text in line.items():
        if not is_empty(text):
            cells[name] = text.strip()
    box = [cells.get(name) for name in _BOX]
    cells["box"] = box if any(box) else None
    return TableRow.model_validate(cells)
