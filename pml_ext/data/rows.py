"""The rows of a CSV file, as spreadsheets and programs write it."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from ..errors import DataError, shortened

Rows = list[tuple[int, dict[str, Any]]]
"""Cells by column, with the number of the line."""

_BEYOND = "\0"  # no column's name: the cells of a row that has more of them than there are columns


def read_rows(file: Path, form: str) -> tuple[list[str], Rows]:
    """Return the columns and the rows of a CSV file, whose first line has the names of the columns.

    Commas, semicolons or tabs separate the cells. Raise DataError for a file that cannot be read; ``form``, such as
    ``"table:FILE.csv"``, is for its text.
    """
    if file.exists() and not file.is_file():  # a pipe or a device may never end
        raise DataError(f"{file}: not a regular file; wanted {form}")
    rows: Rows = []
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            head = opened.readline()
            opened.seek(0)
            separator = max(",;\t", key=head.count)  # spreadsheets of some languages write semicolons
            lines = csv.DictReader(opened, restkey=_BEYOND, strict=True, delimiter=separator)
            columns = [name.strip() for name in lines.fieldnames or []]
            lines.fieldnames = columns
            for line in lines:
                rows.append((lines.line_num, line))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        if isinstance(error, csv.Error):
            where = f", line {lines.reader.line_num}"
        else:
            where = ""
        kind = form.partition(":")[0]
        name = "a table" if kind == "table" else kind
        wanted = f"{form} must be UTF-8 with balanced quotes"
        raise DataError(f"{file}: cannot be read as {name} ({error}{where}); {wanted}") from None
    for name in columns:
        if name and columns.count(name) > 1:
            raise DataError(f"{file}: {columns.count(name)} columns have the name {name}; rename or delete one")
    for number, line in rows:
        beyond = [cell for cell in line.pop(_BEYOND, []) if not is_empty(cell)]
        if beyond:
            found = shortened(repr(beyond[-1]), 100)
            raise DataError(
                f"{file}, line {number}: {found} is beyond the {len(columns)} columns; a cell with {separator!r} in it "
                'needs quotes: "..."'
            )
    return columns, rows


def is_empty(cell: Any) -> bool:
    """Return whether a cell has no value, as spreadsheets and pandas write it."""
    text = str(cell).strip()
    return len(text) < 5 and text.lower() in ("", "none", "nan")
