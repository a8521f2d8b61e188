"""A user's own images by a table of them, with the columns of open-metric-learning."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Literal

from ..errors import ConfigError, DataError
from .published import Entry, check_disjoint, labeled
from .reading import Box
from .splits import DataSplits

COLUMNS = ("label", "path", "split")
BOX = ("x_1", "y_1", "x_2", "y_2")
TRUE, FALSE = ("true", "1", "1.0"), ("false", "0", "0.0", "", "none", "nan")


def table(
    root: Path | None = None,
    path: str = "",
    image_size: int = 224,
    channels: Literal[1, 3] = 3,
    shared_classes: bool = False,
) -> DataSplits:
    """The images that a CSV file lists: columns ``label``, ``path`` and ``split``, others if they are there.

    ``split`` is ``train`` or ``validation``. Where ``is_query`` and ``is_gallery`` are true of all of ``validation``,
    or not there, each of its images is searched among all others; else queries are searched in the gallery, and no
    image is both. ``x_1``, ``y_1``, ``x_2``, ``y_2`` (left, top, right, bottom) are the part of the file that is the
    image; empty for all of it.

    Args:
        root: the folder that paths in the table are relative to; by default the table's own.
        path: the table.
        image_size: height and width of the network's input, in pixels.
        channels: 1 (gray) or 3 (color).
        shared_classes: whether classes may be in ``train`` and in ``validation``.

    Raises:
        ConfigError: a setting outside its range.
        DataError: the table or an image that it lists is missing, or it cannot be understood; the text has the line.
    """
    if image_size < 1:
        raise ConfigError(f"image_size of a table must be at least 1 pixel, not {image_size}")
    file = Path(path).expanduser()
    place = root.expanduser() if root is not None else file.parent
    parts, roles = _read(file)
    if missing := [entry.path for entries in parts.values() for entry in entries if not (place / entry.path).is_file()]:
        raise DataError(
            f"{place / missing[0]}: no such file, though {file} lists it ({len(missing)} are missing); "
            "--data is the folder that its paths are relative to"
        )
    check_disjoint(file, parts, shared_classes)
    listed = {"train": parts["train"], **_tested(file, parts["validation"], roles)}
    for part, entries in listed.items():
        if len(entries) < (2 if part in ("train", "test") else 1):
            raise DataError(f"{file}: {len(entries)} images for {part}; wanted two or more per class")
    names = sorted({entry.name for entries in listed.values() for entry in entries}, key=_in_order)
    return labeled(place, listed, image_size, names, channels)


def _read(file: Path) -> tuple[dict[str, list[Entry]], list[tuple[bool, bool]]]:
    """Return the images of both splits, and for each of ``validation`` whether it is a query and in the gallery."""
    parts: dict[str, list[Entry]] = {"train": [], "validation": []}
    roles: list[tuple[bool, bool]] = []
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            rows = csv.DictReader(opened, strict=True)
            columns = rows.fieldnames or []
            if lacking := [name for name in COLUMNS if name not in columns]:
                raise DataError(
                    f"{file}: no column {' and no '.join(lacking)} among {', '.join(columns) or 'none'}; "
                    f"wanted {', '.join(COLUMNS)} (and is_query, is_gallery)"
                )
            for row in rows:
                where = f"{file}, line {rows.line_num}"
                if row["split"] not in parts:
                    raise DataError(f"{where}: found split {row['split']!r}, wanted train or validation")
                if not row["path"] or not row["label"]:
                    raise DataError(f"{where}: no {'label' if row['path'] else 'path'}; is the line cut?")
                parts[row["split"]].append(Entry(row["path"], row["label"], _box(row, where)))
                if row["split"] == "validation":
                    both = "is_query" not in columns and "is_gallery" not in columns
                    roles.append((both or _true(row, "is_query", where), both or _true(row, "is_gallery", where)))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        where = f", line {rows.reader.line_num}" if isinstance(error, csv.Error) else ""
        wanted = "table:FILE.csv wants commas, UTF-8, and quotes in pairs"
        raise DataError(f"{file}: cannot be read as a table ({error}{where}); {wanted}") from None
    return parts, roles


def _tested(file: Path, entries: list[Entry], roles: list[tuple[bool, bool]]) -> dict[str, list[Entry]]:
    """Return ``test``, or ``query`` and ``gallery``."""
    if all(query and gallery for query, gallery in roles):
        return {"test": entries}
    both = [entry for entry, (query, gallery) in zip(entries, roles, strict=True) if query and gallery]
    if both:
        raise DataError(
            f"{file}: {len(both)} of {len(entries)} images of validation are query and gallery, "
            f"{both[0].path} first; wanted all of them, or none"
        )
    return {
        "query": [entry for entry, (query, _) in zip(entries, roles, strict=True) if query],
        "gallery": [entry for entry, (_, gallery) in zip(entries, roles, strict=True) if gallery],
    }


def _true(row: dict[str, str], column: str, where: str) -> bool:
    text = (row.get(column) or "").strip().lower()
    if text not in (*TRUE, *FALSE):
        raise DataError(f"{where}: found {column} {row[column]!r}, wanted True or False")
    return text in TRUE


def _box(row: dict[str, str], where: str) -> Box | None:
    cells = [(row.get(name) or "").strip() for name in BOX]
    if all(cell.lower() in ("", "none", "nan") for cell in cells):
        return None
    try:
        box = Box(*map(float, cells))
    except ValueError:
        raise DataError(f"{where}: found {', '.join(BOX)} {', '.join(cells)}; wanted four numbers, or none") from None
    if not (box.left < box.right and box.top < box.bottom):
        raise DataError(f"{where}: the box {', '.join(cells)} has no inside; wanted x_1 below x_2, and y_1 below y_2")
    return box


def _in_order(name: str) -> tuple[int, int, str]:
    """Return a key that sorts numbers by their value, then texts."""
    return (0, int(name), "") if name.isascii() and name.isdigit() else (1, 0, name)
