"""A run's database of records, by record-keeper, and its CSV files."""

import csv
import io
import math
import os
import shlex
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from pml_ext.errors import DataError, one_line

from ..files import write_text
from .trackers import of_epochs

ITERATION = "~iteration~"  # record-keeper's name for the column that counts
VALIDATION = "accuracies_validation"
CURVE = "accuracies_test_by_epoch"
TEST = "accuracies_test"  # written after the last checkpoint, so that a resumed run writes it again
_LOCK_SECONDS = 60.0  # for which a resumed run waits for another program that reads the database


class RecordKeeper:
    """Tracker that writes record-keeper's tables."""

    def __init__(self, folder: Path) -> None:
        from record_keeper import RecordWriter

        self._writer = RecordWriter(str(folder))

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Store the values of a step; NaN becomes NULL."""
        for name, value in values.items():
            table, column = name.split("/", 1)
            self._writer.append(table, column, None if math.isnan(value) else value, step)

    def flush(self) -> None:
        """Write the values."""
        try:
            self._writer.save_records()
        finally:
            self._writer.records.clear()  # else unwritten rows stay in memory

    def finish(self, status: str, metrics: Mapping[str, Any], report: Path) -> None:
        """Do nothing."""


def delete_rows_after(database: Path, iteration: int, epoch: int, warn: Callable[[str], None]) -> None:
    """Delete the rows after a checkpoint; rename a damaged database.

    DataError if it is in use.
    """
    try:
        with closing(sqlite3.connect(database, timeout=_LOCK_SECONDS)) as connection, connection:
            problem = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
            if problem != "ok":
                raise sqlite3.DatabaseError(problem)
            for table in _tables(connection):
                last = epoch if of_epochs(table) else iteration
                if table == TEST:
                    last = -1  # of epoch 0 too, which is tested where nothing is trained
                connection.execute(f'DELETE FROM "{table}" WHERE "{ITERATION}" > ?', (last,))
                connection.execute("DELETE FROM sqlite_sequence WHERE name = ?", (table,))
                if connection.execute(f'SELECT COUNT(*) FROM "{table}"').fetchone() == (0,):
                    connection.execute(f'DROP TABLE "{table}"')
                (database.parent / f"{table}.csv").unlink(missing_ok=True)
    except sqlite3.OperationalError as error:  # locked, unreadable or on a full disk, but not damaged
        raise DataError(
            f"{database}: rows after the checkpoint cannot be deleted ({error}). Another program may hold "
            f"the file; find it (type: fuser {shlex.quote(str(database))}), end it, and repeat the command"
        ) from None
    except sqlite3.DatabaseError as error:
        aside = database.with_name("damaged.db")
        os.replace(database, aside)
        warn(
            f"{database} is damaged ({one_line(error)}) and was renamed to {aside.name}; the records start "
            f"again at iteration {iteration + 1}"
        )


def write_csv_files(folder: Path) -> None:
    """Write each table of a run's database as CSV."""
    for table, rows in rows_by_table(folder).items():
        columns = [column for column in rows[0] if column != "id"]
        write_csv(folder / f"{table}.csv", [columns, *([row[column] for column in columns] for row in rows)])


def write_csv(path: Path, rows: Iterable[Iterable[Any]]) -> None:
    """Write rows as a CSV file, atomically."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    write_text(path, text.getvalue())


def _tables(connection: sqlite3.Connection) -> list[str]:
    found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    return sorted(name for (name,) in found)


def rows_by_table(folder: Path, tables: tuple[str, ...] = ("",)) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of non-empty tables in order; ``tables`` are prefixes of names."""
    if not (folder / "logs.db").exists():
        return {}
    with closing(sqlite3.connect(folder / "logs.db")) as connection:
        connection.row_factory = sqlite3.Row
        found = {}
        for name in _tables(connection):
            if name.startswith(tables):
                rows = connection.execute(f'SELECT * FROM "{name}" ORDER BY "{ITERATION}"').fetchall()
                if rows:
                    found[name] = list(map(dict, rows))
    return found
