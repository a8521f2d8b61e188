"""Rows of a CSV file, a Parquet file or a DataFrame."""

import contextlib
import csv
import io
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pml_ext.errors import DataError, needs_extra, one_line, shortened

Rows = list[tuple[str, dict[str, Any]]]
"""Place and cells by column: ``"line 5"`` of a CSV file, ``"row 3"`` of others, from 0."""

# Cells that spreadsheets would run as formulas; an apostrophe before them keeps them text.
_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_BEYOND = "\0"  # no column's name: the cells of a row that has more of them than there are columns


def table_text(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """A CSV table for :func:`read_rows`; texts that look like formulas get an apostrophe.

    Encode it with ``surrogateescape``, because paths need not be UTF-8.
    """
    lines = []
    for row in (columns, *rows):
        line = io.StringIO(newline="")
        cells = [f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell) else cell for cell in row]
        csv.writer(line, lineterminator="\r\n").writerow(cells)  # quotes cells with either of the two
        lines.append(line.getvalue().removesuffix("\r\n") + "\n")
    return "".join(lines)


def _cell(text: Any) -> Any:
    """A cell without the apostrophe of :func:`table_text`."""
    return text[1:] if isinstance(text, str) and text[:1] == "'" and _FORMULA.match(text) else text


def read_rows(file: Path, form: str) -> tuple[list[str], Rows]:
    """Columns and rows of a Parquet or CSV file; empty rows are left out.

    Commas, semicolons or tabs separate the cells of CSV. DataError for an unreadable file; its text has ``form``, such
    as ``"table:FILE.csv"``.
    """
    if file.exists() and not file.is_file():  # a pipe or a device may never end
        raise DataError(f"{file}: not a regular file; type {form}")
    if file.suffix.lower() == ".parquet":
        return _rows_of_parquet(file)
    numbered: list[tuple[int, dict[str, Any], list[Any]]] = []
    try:
        # bytes that are not UTF-8 are allowed in paths alone
        with file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as opened:
            head = opened.readline()
            opened.seek(0)
            separator = max(",;\t", key=head.count)  # spreadsheets of some languages write semicolons
            lines = csv.DictReader(opened, restkey=_BEYOND, strict=True, delimiter=separator)
            columns = [name.strip() for name in lines.fieldnames or []]
            lines.fieldnames = columns
            for line in lines:
                texts = [*columns, *(str(cell) for name, cell in line.items() if name != "path")]
                "".join(texts).encode()
                further: list[Any] = [*line.pop(_BEYOND, [])]
                if not all(map(is_empty, [*line.values(), *further])):
                    numbered.append((lines.line_num, {name: _cell(cell) for name, cell in line.items()}, further))
    except (OSError, UnicodeError, csv.Error) as error:
        where = "" if isinstance(error, OSError) else f", line {lines.reader.line_num}"
        reason = "bytes that are not UTF-8" if isinstance(error, UnicodeError) else error
        kind = form.partition(":")[0]
        name = "a table" if kind == "table" else kind
        raise DataError(
            f"{file}: cannot be read as {name} ({reason}{where}); {form} must be UTF-8 with balanced quotes"
        ) from None
    for name in columns:
        if name and columns.count(name) > 1:
            raise DataError(f"{file}: {columns.count(name)} columns have the name {name}; rename or delete one")
    rows: Rows = []
    for number, line, further in numbered:
        rows.append((f"line {number}", line))
        beyond = [cell for cell in further if not is_empty(cell)]
        if beyond:
            found = shortened(repr(beyond[-1]), 100)
            raise DataError(
                f"{file}, line {number}: {found} is beyond the {len(columns)} columns; put cells that contain "
                f'{separator!r} in quotes: "..."'
            )
    return columns, rows


def rows_of_frame(frame: Any) -> tuple[list[str], Rows]:
    """Columns and rows of a pandas DataFrame."""
    rows: Rows = [(f"row {number}", _as_texts(record)) for number, record in enumerate(frame.to_dict("records"))]
    return [str(name) for name in frame.columns], rows


@contextlib.contextmanager
def parquet_of(file: Path) -> Iterator[Any]:
    """Yield ``pyarrow.parquet``; its errors become DataError."""
    with needs_extra("parquet", str(file)):
        import pyarrow
        import pyarrow.parquet as parquet
    try:
        yield parquet
    except (OSError, ValueError, pyarrow.ArrowException) as error:  # ArrowInvalid is a ValueError
        reason = shortened(one_line(error), 200)
        raise DataError(f"{file}: cannot be read as a .parquet file ({reason}); write it again") from None


def columns_of_parquet(file: Path) -> list[str]:
    """Names of the columns of a Parquet file; DataError for another file."""
    with parquet_of(file) as parquet:
        return list(parquet.read_schema(file).names)


def _rows_of_parquet(file: Path) -> tuple[list[str], Rows]:
    with parquet_of(file) as parquet:
        table = parquet.read_table(file)
    rows: Rows = [(f"row {number}", _as_texts(record)) for number, record in enumerate(table.to_pylist())]
    return list(table.column_names), rows


def _as_texts(record: dict[Any, Any]) -> dict[str, Any]:
    """Cells as in a CSV file; 3.0 becomes 3, because gaps turn integers into floats."""
    cells = {}
    for name, value in record.items():
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        cells[str(name)] = "" if value is None else str(value)
    return cells


def is_empty(cell: Any) -> bool:
    """Whether a cell has no value, as spreadsheets and pandas write it."""
    text = str(cell).strip()
    return len(text) < 5 and text.lower() in ("", "none", "nan", "nat", "<na>")
