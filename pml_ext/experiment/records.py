"""A run's records: tables of numbers and TensorBoard's events, cut back on resume and read for the report."""

from __future__ import annotations

import csv
import functools
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensorboard.compat.proto.summary_pb2 import Summary
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter

Rows = Mapping[str, Mapping[str, Any]]  # values by table and column
_ITERATION = "~iteration~"  # the first column of every table
_BY_EPOCH = "accuracies"  # tables that start so are indexed by epoch
VALIDATION, CURVE = "accuracies_validation", "accuracies_test_by_epoch"  # metrics between epochs


class Terms:
    """The numbers that a loss, its miner and the optimizers hold for the records.

    PML's classes and ours list the names of such attributes in ``_record_these`` (settings) and ``_record_these_stats``
    (what they measured in the last call). They are recorded together with parameters and buffers of one element, and
    with the learning rates.

    Args:
        loss: with the losses, regularizers, distances and reducers inside it.
        miner: or None.
        optimizers: by name.

    Attributes:
        places: the table and the column of each value.
    """

    def __init__(
        self, loss: nn.Module, miner: nn.Module | None, optimizers: Mapping[str, torch.optim.Optimizer]
    ) -> None:
        self.places: list[tuple[str, str]] = []
        self._readers: list[Callable[[], Any]] = []
        root = f"metric_loss_{type(loss).__name__}"
        for path, module in loss.named_modules():
            inside = f"__modules_{path.replace('.', '__modules_')}_{type(module).__name__}" if path else ""
            self._add_module(module, root + inside)
        if miner is not None:
            self._add_module(miner, f"tuple_miner_{type(miner).__name__}")
        for name, optimizer in optimizers.items():
            self._add(f"{name}_{type(optimizer).__name__}", "lr", functools.partial(_rate, optimizer))

    def values(self) -> list[Any]:
        """What each holds now: a number, a tensor of one element, or None where it holds something else."""
        return [_number(read()) for read in self._readers]

    def rows(self, values: Sequence[Any]) -> Rows:
        """Values by table and column.

        Args:
            values: one for each of the places, as numbers.
        """
        rows: dict[str, dict[str, Any]] = {}
        for (table, column), value in zip(self.places, values, strict=True):
            if value is not None:
                rows.setdefault(table, {})[column] = value
        return rows

    def _add_module(self, module: nn.Module, table: str) -> None:
        for name in (*getattr(module, "_record_these", ()), *getattr(module, "_record_these_stats", ())):
            self._add(table, name, functools.partial(getattr, module, name, None))
        for suffix, held in (("parameters", module.named_parameters), ("buffers", module.named_buffers)):
            for name, tensor in held(recurse=False):
                if tensor.numel() == 1:
                    self._add(f"{table}__{suffix}", name, functools.partial(getattr, module, name))

    def _add(self, table: str, column: str, read: Callable[[], Any]) -> None:
        if (table, column) not in self.places:
            self.places.append((table, column))
            self._readers.append(read)


def _rate(optimizer: torch.optim.Optimizer) -> Any:
    return optimizer.param_groups[0]["lr"]


def _number(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value if value.numel() == 1 else None
    if isinstance(value, np.number):
        return value.item()
    return value if isinstance(value, (int, float)) else None


class Records:
    """A run's records: tables in SQLite and CSV, written by :meth:`save`, and TensorBoard's events, written at once.

    What was recorded after a point is cut off when they are opened, so that a run which goes on records it again.

    Args:
        folder: the run's folder.
        iteration: the last iteration to keep, counted over all epochs from 1; 0 for a new run.
        epoch: the last epoch to keep.
    """

    def __init__(self, folder: Path, iteration: int, epoch: int) -> None:
        self._folder = folder / "records"
        self._folder.mkdir(parents=True, exist_ok=True)
        _trim(self._folder, iteration, epoch)
        self._events = SummaryWriter(log_dir=str(folder / "tensorboard"), purge_step=iteration + 1)
        self._waiting: dict[str, list[dict[str, Any]]] = {}
        self._headers: dict[str, list[str]] = {}

    def add(self, number: int, rows: Rows) -> None:
        """Records values of an iteration or an epoch.

        Args:
            number: of the iteration, or of the epoch for tables whose name begins with "accuracies".
            rows: values by table and column.
        """
        values = [
            Summary.Value(tag=f"{table}/{column}", simple_value=float(value))
            for table, row in rows.items()
            for column, value in row.items()
        ]
        writer = self._events.file_writer
        assert writer is not None  # until it is closed
        writer.add_summary(Summary(value=values), number)
        for table, row in rows.items():
            self._waiting.setdefault(table, []).append({_ITERATION: number, **row})

    def save(self) -> None:
        """Writes what was added since the last time, in one transaction."""
        waiting, self._waiting = self._waiting, {}
        with closing(sqlite3.connect(self._folder / "logs.db")) as connection, connection:
            for table, rows in waiting.items():
                columns = list(dict.fromkeys(column for row in rows for column in row))
                lines = [[row.get(column) for column in columns] for row in rows]
                _insert(connection, table, columns, lines)
                self._append(table, columns, lines)

    def _append(self, table: str, columns: list[str], lines: list[list[Any]]) -> None:
        """Adds rows to a CSV file, below a line of the columns where the last such line names others."""
        path = self._folder / f"{table}.csv"
        header = self._headers[table] if table in self._headers else _last_header(path)
        self._headers[table] = columns
        with path.open("a", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([*([] if header == columns else [columns]), *lines])

    def close(self) -> None:
        """Writes what is left, and ends TensorBoard's file."""
        self.save()
        self._events.close()


def _insert(connection: sqlite3.Connection, table: str, columns: list[str], lines: list[list[Any]]) -> None:
    connection.execute(f'CREATE TABLE IF NOT EXISTS "{table}" ("{_ITERATION}" INTEGER)')
    known = {row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')}
    for column in columns:
        if column not in known:
            connection.execute(f'ALTER TABLE "{table}" ADD COLUMN "{column}"')
    names = ", ".join(f'"{column}"' for column in columns)
    connection.executemany(f'INSERT INTO "{table}" ({names}) VALUES ({", ".join("?" * len(columns))})', lines)


def _last_header(path: Path) -> list[str]:
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return next((row for row in reversed(list(csv.reader(file))) if row[:1] == [_ITERATION]), [])


def _trim(folder: Path, iteration: int, epoch: int) -> None:
    database = folder / "logs.db"
    if database.exists():
        with closing(sqlite3.connect(database)) as connection, connection:
            for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                if table.startswith("sqlite_"):
                    continue
                last = epoch if table.startswith(_BY_EPOCH) else iteration
                connection.execute(f'DELETE FROM "{table}" WHERE "{_ITERATION}" > ?', (last,))
    for path in folder.glob("*.csv"):
        last = epoch if path.name.startswith(_BY_EPOCH) else iteration
        with path.open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.reader(file) if row and (not row[0].isdigit() or int(row[0]) <= last)]
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)


def loss_series(folder: Path, terms: Iterable[str]) -> dict[str, tuple[list[int], list[float]]]:
    """The loss and its terms over the iterations.

    Args:
        folder: the run's folder.
        terms: names of the statistics that losses recorded, such as ``"positive_loss"``.

    Returns:
        ``{name: (iterations, values)}``, the whole loss first as ``"loss"``.
    """
    database = folder / "records" / "logs.db"
    if not database.exists():
        return {}
    series: dict[str, tuple[list[int], list[float]]] = {}
    wanted = list(dict.fromkeys(terms))
    with closing(sqlite3.connect(database)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
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
                        f'SELECT "{_ITERATION}", "{column}" FROM "{table}" WHERE "{column}" IS NOT NULL ORDER BY 1'
                    ).fetchall()
                    if rows:
                        if label in series and series[label][0][-1] >= rows[0][0]:  # another part's, at the same time
                            label = f"{label} ({table.rpartition('_')[2]})"
                        iterations, values = series.setdefault(label, ([], []))
                        iterations += [int(row[0]) for row in rows]
                        values += [float(row[1]) for row in rows]
    return series


def metric_series(folder: Path, metric: str) -> dict[str, tuple[list[int], list[float]]]:
    """A metric over the epochs after which it was measured.

    Args:
        folder: the run's folder.
        metric: its name, such as ``"recall_at_1"``.

    Returns:
        ``{table: (epochs, values)}`` of the tables ``accuracies_validation`` and ``accuracies_test_by_epoch``, without
        those that do not have it.
    """
    database = folder / "records" / "logs.db"
    series: dict[str, tuple[list[int], list[float]]] = {}
    if not database.exists():
        return series
    with closing(sqlite3.connect(database)) as connection:
        for table in (VALIDATION, CURVE):
            if metric in {row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')}:
                rows = connection.execute(
                    f'SELECT "{_ITERATION}", "{metric}" FROM "{table}" WHERE "{metric}" IS NOT NULL ORDER BY 1'
                ).fetchall()
                series[table] = [int(row[0]) for row in rows], [float(row[1]) for row in rows]
    return series
