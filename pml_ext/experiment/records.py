"""A run's records: tables of numbers with one row each, cut back where a run goes on and read for the report."""

from __future__ import annotations

import contextlib
import csv
import functools
import os
import socket
import sqlite3
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from ..errors import one_line
from ..files import remove_left_overs, write_atomically
from .terms import Rows

Table = tuple[str, list[str], list[tuple[Any, ...]]]  # its name, its columns and its rows
Series = dict[str, tuple[list[int], list[float]]]  # iterations or epochs and values, by name
ITERATION = "~iteration~"  # the first column of every table
_BY_EPOCH = "accuracies"  # tables that start so are indexed by epoch
_AT_THE_END = "accuracies_test"  # written after the last checkpoint, so that a run which goes on writes it again
_OFTEN = 30.0  # seconds after which records are written inside of an epoch, for those who watch


class Records:
    """A run's records: tables in SQLite, and what is made from these, CSV files and TensorBoard's events.

    A table has one row per iteration, or per epoch. The database is written in one transaction; CSV files and events
    are added to, and made anew from the database, each in one step, when a run goes on: what was recorded after its
    checkpoint, twice, or in part, is gone then. Records that cannot be read or written are told of and never end a
    training.

    Args:
        folder: the run's folder.
        iteration: the last iteration to keep, counted over all epochs from 1; 0 for a new run.
        epoch: the last epoch to keep.
        warn: told of records that could not be read or written.
    """

    def __init__(
        self, folder: Path, iteration: int, epoch: int, warn: Callable[[str], None] = lambda text: None
    ) -> None:
        self._folder = folder / "records"
        self._warn, self._warned = warn, False
        self._database = self._folder / "logs.db"
        self._columns: dict[str, list[str]] = {}  # of each table that has been written, in the database's order
        self._waiting: dict[str, dict[int, dict[str, Any]]] = {}
        self._events = _Events(folder / "tensorboard")
        self._saved = time.monotonic()
        with self._forgiving():
            self._folder.mkdir(parents=True, exist_ok=True)
            remove_left_overs(self._folder)
            for table, columns, lines in self._kept(iteration, epoch):
                self._columns[table] = columns
                write_atomically(self._folder / f"{table}.csv", functools.partial(_write_csv, columns, lines))
                self._events.add_rows(table, columns, lines)
            for path in self._folder.glob("*.csv"):
                if path.stem not in self._columns and _last_header(path):  # others are of components
                    path.unlink()
            self._events.begin()

    def _kept(self, iteration: int, epoch: int) -> list[Table]:
        """The name, the columns and the rows of each table, once what came later is cut off."""
        if not self._database.exists():
            return []
        if iteration == 0 and epoch == 0:
            self._remove_database()
            return []
        try:
            with closing(sqlite3.connect(self._database)) as connection, connection:
                tables = _whole_tables(connection)
                kept = [_trimmed(connection, table, _last(table, iteration, epoch)) for table in tables]
        except sqlite3.DatabaseError as error:
            saved = list(_from_csv(self._folder, lambda table: _last(table, iteration, epoch)))
            self._remove_database()
            with closing(sqlite3.connect(self._database)) as connection, connection:
                for table, columns, lines in saved:
                    _insert(connection, table, columns, lines)
            self._warn(
                f"{self._database} was damaged ({one_line(error)}); it is made again from the CSV files beside it"
            )
            return saved
        for each in kept:
            number = _first_difference(self._folder, each, _last(each[0], iteration, epoch))
            if number is not None:
                self._warn(
                    f"{self._database} and {each[0]}.csv beside it differ in row {number}, so that one of them "
                    "is damaged; the database is believed"
                )
        return kept

    def _remove_database(self) -> None:
        for path in self._folder.glob("logs.db*"):  # its journal too
            path.unlink()

    def add(self, number: int, rows: Rows) -> None:
        """Records values of an iteration or an epoch; again, they replace the first.

        Args:
            number: of the iteration, or of the epoch for tables whose name begins with "accuracies".
            rows: values by table and column.
        """
        for table, row in rows.items():
            self._waiting.setdefault(table, {}).setdefault(number, {}).update(
                {column: _cell(value) for column, value in row.items()}
            )
        if time.monotonic() - self._saved > _OFTEN:
            self.save()

    def save(self) -> None:
        """Writes what was added since the last time, in one transaction."""
        waiting, self._waiting = self._waiting, {}
        with self._forgiving():
            new: dict[str, tuple[list[str], list[list[Any]]]] = {}
            with closing(sqlite3.connect(self._database)) as connection, connection:
                for table, rows in waiting.items():
                    columns = [ITERATION, *dict.fromkeys(column for row in rows.values() for column in row)]
                    lines = [[number, *(row.get(column) for column in columns[1:])] for number, row in rows.items()]
                    new[table] = columns, lines
                    _insert(connection, table, columns, lines)
            for table, (columns, lines) in new.items():
                self._append(table, columns, lines)
                self._events.add_rows(table, columns, lines)
            self._events.write()
        self._saved = time.monotonic()

    def _append(self, table: str, columns: list[str], lines: list[list[Any]]) -> None:
        """Adds rows to a CSV file; a column that it does not have yet, or a row again, makes the file anew."""
        path, known = self._folder / f"{table}.csv", self._columns.get(table, [])
        if not path.exists() or not set(columns) <= set(known) or table.startswith(_BY_EPOCH):
            with closing(sqlite3.connect(self._database)) as connection:
                _, self._columns[table], everything = _read(connection, table)
            write_atomically(path, functools.partial(_write_csv, self._columns[table], everything))
            return
        places = {column: place for place, column in enumerate(columns)}
        with path.open("a", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(
                [line[places[column]] if column in places else None for column in known] for line in lines
            )

    @contextlib.contextmanager
    def _forgiving(self) -> Iterator[None]:
        """What the disk refuses is told once."""
        try:
            yield
        except (OSError, sqlite3.Error, UnicodeError) as error:
            if not self._warned:
                self._warned = True
                self._warn(f"{self._folder}: records are not written ({one_line(error)}); training goes on without")

    def close(self) -> None:
        """Writes what is left."""
        self.save()


class _Events:
    """TensorBoard's events, written without a thread: a file per process, begun with all that was recorded before.

    Args:
        folder: to write to.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        # A viewer that has read older files forgets them: all of theirs is in this one.
        start = SessionLog(status=SessionLog.START)
        self._waiting = [
            Event(wall_time=time.time(), file_version="brain.Event:2"),
            Event(wall_time=time.time(), step=0, session_log=start),
        ]

    def add_rows(self, table: str, columns: Sequence[str], lines: Iterable[Sequence[Any]]) -> None:
        """Adds rows of a table, whose first column is their step."""
        for number, *row in lines:
            values = [
                Summary.Value(tag=f"{table}/{column}", simple_value=float(value))
                for column, value in zip(columns[1:], row, strict=True)
                if value is not None
            ]
            self._waiting.append(Event(wall_time=time.time(), step=int(number), summary=Summary(value=values)))

    def begin(self) -> None:
        """Writes the file in one step, and removes those that it replaces."""
        self._folder.mkdir(exist_ok=True)
        remove_left_overs(self._folder)
        old = list(self._folder.glob("events.out.tfevents.*"))
        write_atomically(self._path, self._write_waiting)
        for path in old:
            path.unlink(missing_ok=True)

    def write(self) -> None:
        """Adds what waits to the file."""
        self._write_waiting(self._path)

    def _write_waiting(self, path: Path) -> None:
        waiting, self._waiting = self._waiting, []
        with path.open("ab") as file:
            writer = RecordWriter(file)
            for event in waiting:
                writer.write(event.SerializeToString())


def _last(table: str, iteration: int, epoch: int) -> int:
    """The last row of a table that is kept."""
    if table == _AT_THE_END:
        return 0
    return epoch if table.startswith(_BY_EPOCH) else iteration


def _tables(connection: sqlite3.Connection) -> list[str]:
    names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    return [name for (name,) in names if not name.startswith("sqlite_")]


def _whole_tables(connection: sqlite3.Connection) -> list[str]:
    """The tables of a database; :class:`sqlite3.DatabaseError` if it is none, or damaged where that can be seen."""
    if not (tables := _tables(connection)):
        raise sqlite3.DatabaseError("no table in it")
    if (problem := connection.execute("PRAGMA integrity_check(1)").fetchone()[0]) != "ok":
        raise sqlite3.DatabaseError(problem)
    return tables


def _first_difference(folder: Path, table: Table, last: int) -> int | None:
    """The first row of a table's CSV file that the database has not, or has with other values."""
    name, columns, lines = table
    known = {int(line[0]): dict(zip(columns, line, strict=True)) for line in lines}
    for _, names, rows in _from_csv(folder, lambda _: last, f"{name}.csv"):
        for row in rows:
            held = known.get(row[0])
            if held is None or any(held.get(key, cell) != cell for key, cell in zip(names, row, strict=True)):
                return int(row[0])
    return None


def mend_records(folder: Path, changed: Collection[str]) -> None:
    """Makes the records of a finished run again: the database from CSV files, if it has changed, and all else from it.

    Args:
        folder: the run's folder.
        changed: the files that are not what the run wrote, by their paths in the folder. A table whose CSV file is
            among them is lost with the database.
    """
    place, database = folder / "records", folder / "records" / "logs.db"
    if f"records/{database.name}" in changed:
        tables = [table for table in _from_csv(place, lambda name: 1 << 62) if f"records/{table[0]}.csv" not in changed]

        def fill(path: Path) -> None:
            with closing(sqlite3.connect(path)) as connection, connection:
                for table, columns, lines in tables:
                    _insert(connection, table, columns, lines)

        write_atomically(database, fill)
    events = _Events(folder / "tensorboard")
    with closing(sqlite3.connect(database)) as connection:
        for table, columns, lines in [_read(connection, table) for table in _tables(connection)]:
            write_atomically(place / f"{table}.csv", functools.partial(_write_csv, columns, lines))
            events.add_rows(table, columns, lines)
    events.begin()


def _trimmed(connection: sqlite3.Connection, table: str, last: int) -> Table:
    connection.execute(f'DELETE FROM "{table}" WHERE "{ITERATION}" > ?', (last,))
    return _read(connection, table)


def _read(connection: sqlite3.Connection, table: str) -> Table:
    columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
    return table, columns, connection.execute(f'SELECT * FROM "{table}" ORDER BY "{ITERATION}"').fetchall()


def _insert(connection: sqlite3.Connection, table: str, columns: Sequence[str], lines: Iterable[Sequence[Any]]) -> None:
    """Puts rows into a table, in the place of rows of the same number."""
    connection.execute(f'CREATE TABLE IF NOT EXISTS "{table}" ("{ITERATION}" INTEGER PRIMARY KEY)')
    known = {row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')}
    for column in columns:
        if column not in known:
            connection.execute(f'ALTER TABLE "{table}" ADD COLUMN "{column}"')
    names = ", ".join(f'"{column}"' for column in columns)
    news = ", ".join(f'"{column}" = excluded."{column}"' for column in columns)
    connection.executemany(
        f'INSERT INTO "{table}" ({names}) VALUES ({", ".join("?" * len(columns))}) '
        f'ON CONFLICT ("{ITERATION}") DO UPDATE SET {news}',
        lines,
    )


def _cell(value: Any) -> Any:
    """A number as the database gives it back: truth values are 0 and 1, and NaN is no number."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        return value if -(1 << 63) <= value < 1 << 63 else float(value)
    return None if value != value else value


def _write_csv(columns: Sequence[str], lines: Iterable[Sequence[Any]], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([columns, *lines])


def _last_header(path: Path) -> list[str]:
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        return next((row for row in csv.reader(file) if row[:1] == [ITERATION]), [])


def _from_csv(folder: Path, last: Callable[[str], int], pattern: str = "*.csv") -> Iterator[Table]:
    """What can be read of CSV files: name, columns and rows of each, up to the last of its table to keep."""
    for path in sorted(folder.glob(pattern)):
        with path.open(newline="", encoding="utf-8", errors="replace") as file:
            lines = [line.replace("\0", "") for line in file if line.endswith(("\n", "\r"))]  # none that was cut
        rows = list(csv.reader(lines))
        if not rows or rows[0][:1] != [ITERATION] or len(set(rows[0])) < len(rows[0]):
            continue
        values = {}
        for row in rows[1:]:
            with contextlib.suppress(ValueError):
                if len(row) == len(rows[0]) and 0 < int(row[0]) <= last(path.stem):
                    values[int(row[0])] = (int(row[0]), *(_parsed(cell) for cell in row[1:]))
        yield path.stem, rows[0], [values[number] for number in sorted(values)]


def _parsed(cell: str) -> Any:
    if not cell:
        return None
    return int(cell) if cell.lstrip("-").isdigit() else float(cell)


def loss_series(folder: Path, terms: Iterable[str]) -> Series:
    """The loss and its terms over the iterations.

    Args:
        folder: the run's folder.
        terms: names of the statistics that losses recorded, such as ``"positive_loss"``.

    Returns:
        ``{name: (iterations, values)}``, the whole loss first as ``"loss"``.
    """
    return from_records(folder, lambda database: _loss_series(database, terms))


def from_records(folder: Path, read: Callable[[Path], Series]) -> Series:
    """What ``read`` gives of a run's tables; where their database is damaged, of the CSV files beside it.

    Args:
        folder: the run's folder.
        read: called with the path of a database; raises an error of ``sqlite3`` if it is none.

    Returns:
        ``{name: (numbers, values)}``; nothing where there are no records.
    """
    database = folder / "records" / "logs.db"
    if not database.exists():
        return {}
    try:
        return read(database)
    except sqlite3.DatabaseError:  # the CSV files beside it have the same
        with tempfile.TemporaryDirectory() as place, contextlib.suppress(OSError, sqlite3.DatabaseError):
            mended = Path(place) / "logs.db"
            with closing(sqlite3.connect(mended)) as connection, connection:
                for table, columns, lines in _from_csv(folder / "records", lambda name: 1 << 62):
                    _insert(connection, table, columns, lines)
            return read(mended)
        return {}


def _loss_series(database: Path, terms: Iterable[str]) -> Series:
    series: Series = {}
    wanted = list(dict.fromkeys(terms))
    with closing(sqlite3.connect(database)) as connection:
        if not (tables := _tables(connection)):
            raise sqlite3.DatabaseError("no table in it")
        for table in sorted(tables, key=lambda name: name != "loss_histories"):
            columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
            if table == "loss_histories":
                names = {"total_loss": "loss"}
            elif table.startswith("metric_loss"):
                names = {term: term.removesuffix("_loss") for term in wanted}
            else:
                continue
            for column, label in names.items():
                if column in columns:
                    rows = connection.execute(
                        f'SELECT "{ITERATION}", "{column}" FROM "{table}" WHERE "{column}" IS NOT NULL ORDER BY 1'
                    ).fetchall()
                    if rows:
                        if label in series and series[label][0][-1] >= rows[0][0]:  # another part's, at the same time
                            label = f"{label} ({table.rpartition('_')[2]})"
                        iterations, values = series.setdefault(label, ([], []))
                        iterations += [int(row[0]) for row in rows]
                        values += [float(row[1]) for row in rows]
    return series
