"""Records of a run: numbers of every iteration and epoch, in SQLite and CSV files by record-keeper, and in trackers."""

from __future__ import annotations

import contextlib
import copy
import csv
import functools
import io
import math
import os
import re
import shlex
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import ConfigError, DataError, MissingExtraError, one_line
from ..files import write_text
from .engine import Step
from .trackers import Tracker, of_epochs

Rows = Mapping[str, Mapping[str, Any]]  # values by table and column
Series = dict[str, tuple[list[int], list[float]]]  # iterations or epochs and values, by name
ITERATION = "~iteration~"  # record-keeper's name for the column that counts
VALIDATION = "accuracies_validation"
CURVE = "accuracies_test_by_epoch"
TEST = "accuracies_test"  # written after the last checkpoint, so that a resumed run writes it again
_SAVE_SECONDS = 30.0  # interval of writes inside an epoch, to monitor the run
_LOCK_SECONDS = 60.0  # for which a resumed run waits for another program that reads the database


class Records:
    """The records of a run: by record-keeper in ``records/``, and in its trackers.

    Values are kept in memory and written together, at the end of an epoch or after 30 seconds. Rows of an earlier
    process after ``iteration`` and ``epoch``, those of the checkpoint that the run resumes from, are deleted. A tracker
    that fails is left out from then on, with a warning; it never ends a training. DataError if the rows of an earlier
    process cannot be deleted.

    ``trackers`` are names and factories, which are called without arguments; ``warn`` is called with a text.
    """

    def __init__(
        self,
        folder: Path,
        iteration: int,
        epoch: int,
        warn: Callable[[str], None] = lambda text: None,
        trackers: Iterable[tuple[str, Callable[[], Tracker]]] = (),
    ) -> None:
        self._folder = folder / "records"
        self._warn = warn
        if (self._folder / "logs.db").exists():
            _delete_rows_after(self._folder / "logs.db", iteration, epoch, warn)
        self._rows: list[tuple[int, Rows]] = []
        self._saved = time.monotonic()
        self._trackers: list[tuple[str, Tracker]] = []
        record_keeper: Callable[[], Tracker] = functools.partial(RecordKeeper, self._folder)
        for name, factory in [("records", record_keeper), *trackers]:
            with self._errors_as_warnings(name):
                self._trackers.append((name, factory()))

    def add(self, number: int, rows: Rows) -> None:
        """Record values of an iteration, or of an epoch for tables whose name begins with "accuracies"."""
        self._rows.append((number, rows))
        if time.monotonic() - self._saved > _SAVE_SECONDS:
            self.save()

    def save(self) -> None:
        """Write the values added since the last call."""
        flattened = [(number, _flattened(tables)) for number, tables in self._rows]
        self._rows = []
        self._saved = time.monotonic()
        for name, tracker in [*self._trackers]:
            with self._errors_as_warnings(name, tracker):
                for number, values in flattened:
                    tracker.log(dict(values), number)
                if hasattr(tracker, "flush"):
                    tracker.flush()

    def close(self) -> None:
        """Write the remaining values, and the CSV files."""
        self.save()
        with self._errors_as_warnings("records"):
            write_csv_files(self._folder)

    def finish(self, status: str, metrics: Mapping[str, Any], report: Path) -> None:
        """End the trackers, for a finished run after :meth:`close`; see :meth:`.Tracker.finish`."""
        if status != "finished":
            self.close()
        for name, tracker in [*self._trackers]:
            with self._errors_as_warnings(name, tracker):
                tracker.finish(status, copy.deepcopy(dict(metrics)), report)

    @contextlib.contextmanager
    def _errors_as_warnings(self, name: str, tracker: Tracker | None = None) -> Iterator[None]:
        try:
            yield
        except (Exception, SystemExit) as error:  # a tracker's code may raise anything
            if tracker is None and isinstance(error, (ConfigError, MissingExtraError)):
                raise
            if not isinstance(tracker, RecordKeeper):  # which may write again, once a disk has room
                self._trackers = [each for each in self._trackers if each[1] is not tracker]
            self._warn(f"{name}: what happens is not recorded there ({one_line(error)}); training goes on without")


class RecordKeeper:
    """Tracker that writes record-keeper's tables, in SQLite."""

    def __init__(self, folder: Path) -> None:
        from record_keeper import RecordWriter

        self._writer = RecordWriter(str(folder))

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Store the values of a step; NaN becomes NULL."""
        for name, value in values.items():
            table, column = name.split("/", 1)
            stored = None if math.isnan(value) else value
            self._writer.append(table, column, stored, step)

    def flush(self) -> None:
        """Write the values to the database."""
        try:
            self._writer.save_records()
        finally:
            self._writer.records.clear()  # else unwritten rows stay in memory

    def finish(self, status: str, metrics: Mapping[str, Any], report: Path) -> None:
        """Do nothing: all values are written already."""


def _delete_rows_after(database: Path, iteration: int, epoch: int, warn: Callable[[str], None]) -> None:
    """Delete the rows after a checkpoint; move a damaged database aside. DataError if the database is in use."""
    try:
        with closing(sqlite3.connect(database, timeout=_LOCK_SECONDS)) as connection, connection:
            problem = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
            if problem != "ok":
                raise sqlite3.DatabaseError(problem)
            for table in _tables(connection):
                last = iteration
                if table == TEST:
                    last = -1  # of epoch 0 too, which is tested where nothing is trained
                elif of_epochs(table):
                    last = epoch
                connection.execute(f'DELETE FROM "{table}" WHERE "{ITERATION}" > ?', (last,))
                connection.execute("DELETE FROM sqlite_sequence WHERE name = ?", (table,))
                if connection.execute(f'SELECT COUNT(*) FROM "{table}"').fetchone() == (0,):
                    connection.execute(f'DROP TABLE "{table}"')
                (database.parent / f"{table}.csv").unlink(missing_ok=True)
    except sqlite3.OperationalError as error:  # locked, unreadable or on a full disk, but not damaged
        command = f"fuser {shlex.quote(str(database))}"
        raise DataError(
            f"{database}: the rows after the checkpoint cannot be deleted ({error}); another program, such as a "
            f"monitor of the run, may hold the file (type: {command}); end it, then repeat the command"
        ) from None
    except sqlite3.DatabaseError as error:
        aside = database.with_name("damaged.db")
        os.replace(database, aside)
        begin = f"it is now {aside.name}, and the records begin with iteration {iteration + 1}"
        warn(f"{database} is damaged ({one_line(error)}); {begin}")


def write_csv_files(folder: Path) -> None:
    """Write the CSV file of every table of a run's database."""
    for table, rows in _rows(folder).items():
        columns = [column for column in rows[0] if column != "id"]
        lines = [columns]
        for row in rows:
            lines.append([row[column] for column in columns])
        write_csv(folder / f"{table}.csv", lines)


def write_csv(path: Path, rows: Iterable[Iterable[Any]]) -> None:
    """Write rows as a CSV file, atomically."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    write_text(path, text.getvalue())


def _tables(connection: sqlite3.Connection) -> list[str]:
    found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    return sorted(name for (name,) in found)


def _rows(folder: Path, tables: tuple[str, ...] = ("",)) -> dict[str, list[dict[str, Any]]]:
    """Return the rows, in the order of iterations, of the tables with such beginnings that have any."""
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


def _flattened(tables: Rows) -> dict[str, float]:
    """Return values by table and column, ``"loss_histories/total_loss"``; booleans become 0 and 1."""
    values: dict[str, float] = {}
    for table, row in tables.items():
        name = re.sub(r"\W", "_", table)  # record-keeper does not quote names
        for column, value in row.items():
            if isinstance(value, int):
                values[f"{name}/{column}"] = int(value)
            else:
                values[f"{name}/{column}"] = float(value)
    return values


class RecordedValues:
    """The attributes that PML's hooks record of a loss, its miner and the optimizers.

    Classes list them in ``_record_these`` and ``_record_these_stats``; parameters and buffers of one element follow.
    """

    def __init__(
        self, loss: nn.Module, miner: nn.Module | None, optimizers: Mapping[str, torch.optim.Optimizer]
    ) -> None:
        self._holders: dict[tuple[str, str], Any] = {}  # the object with this attribute, by table and column
        for table, module in self._modules_by_table(loss, miner).items():
            for name in (*getattr(module, "_record_these", ()), *getattr(module, "_record_these_stats", ())):
                self._holders[table, name] = module
            for name, parameter in module.named_parameters(recurse=False):
                if parameter.numel() == 1:
                    self._holders[f"{table}__parameters", name] = module
            for name, buffer in module.named_buffers(recurse=False):
                if buffer.numel() == 1:
                    self._holders[f"{table}__buffers", name] = module
        self._optimizers = {}  # by table
        for name, optimizer in optimizers.items():
            self._optimizers[f"{name}_{type(optimizer).__name__}"] = optimizer

    @staticmethod
    def _modules_by_table(loss: nn.Module, miner: nn.Module | None) -> dict[str, nn.Module]:
        """Return the modules of a loss and the miner by the names of their tables, which are those of PML's hooks."""
        root = f"metric_loss_{type(loss).__name__}"
        modules: dict[str, nn.Module] = {}
        for path, module in loss.named_modules():
            inside = ""
            if path:
                inside = f"__modules_{path.replace('.', '__modules_')}_{type(module).__name__}"
            modules[root + inside] = module
        if miner is not None:
            modules[f"tuple_miner_{type(miner).__name__}"] = miner
        return modules

    def values(self) -> list[Any]:
        """Return each value now: a number, a tensor of one element, or None for anything else."""
        values = []
        for (_, name), holder in self._holders.items():
            values.append(_number(getattr(holder, name, None)))
        for optimizer in self._optimizers.values():
            values.append(optimizer.param_groups[0]["lr"])
        return values

    def rows(self, step: Step) -> Rows:
        """Return the loss of a step, and the values that it recorded, by table and column."""
        rows: dict[str, dict[str, Any]] = {"loss_histories": {"total_loss": step.loss}}
        places = list(self._holders)  # table and column of each of values()
        for table in self._optimizers:
            places.append((table, "lr"))
        for (table, column), value in zip(places, step.recorded, strict=True):
            if value is not None:
                rows.setdefault(table, {})[column] = value
        return rows


def _number(value: Any) -> Any:
    if isinstance(value, np.number):
        value = value.item()
    if isinstance(value, (int, float)) or (isinstance(value, Tensor) and value.numel() == 1):
        return value
    return None


def metric_series(folder: Path, metric: str) -> Series:
    """Return epochs and values of a metric between epochs, by table."""
    series = {}
    for table, columns in _series(folder, [metric], (VALIDATION, CURVE)).items():
        series[table] = columns[metric]
    return series


def metric_by_epoch(folder: Path, metric: str) -> Series:
    """Return the epochs in which a run measured a metric, and its values, on ``"validation"`` and ``"test"`` images.

    What it did not measure between epochs is left out.
    """
    names = {VALIDATION: "validation", CURVE: "test"}
    return {names[table]: series for table, series in metric_series(folder, metric).items()}


def loss_series(folder: Path, terms: Iterable[str]) -> Series:
    """Return the loss and its terms over the iterations, ``{name: (iterations, values)}``, ``"loss"`` first."""
    found = _series(folder, dict.fromkeys(["total_loss", *terms]), ("loss_histories", "metric_loss"))
    series: Series
    if "loss_histories" in found:
        series = {"loss": found.pop("loss_histories")["total_loss"]}
    else:
        series = {}
    for table, columns in found.items():
        for term, (iterations, values) in columns.items():
            label = term.removesuffix("_loss")
            # Two parts of a loss may record a term of one name in the same iterations: each gets its class's name.
            # The losses of two stages follow one another, and share a curve.
            overlaps = label in series and series[label][0][-1] >= iterations[0]
            if overlaps:
                class_name = table.rpartition("_")[2]
                label = f"{label} ({class_name})"
            known = series.setdefault(label, ([], []))
            known[0].extend(iterations)
            known[1].extend(values)
    return series


def _series(folder: Path, columns: Iterable[str], tables: tuple[str, ...]) -> dict[str, Series]:
    """Return iterations or epochs, and values, of the columns that a table has, by table."""
    found: dict[str, Series] = {}
    for table, rows in _rows(folder / "records", tables).items():
        for column in columns:
            numbers = []
            values = []
            for row in rows:
                if row.get(column) is not None:
                    numbers.append(row[ITERATION])
                    values.append(float(row[column]))
            if values:
                found.setdefault(table, {})[column] = (numbers, values)
    return found
