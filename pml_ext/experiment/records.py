"""A run's records: record-keeper's tables and TensorBoard's events, cut back on resume and read for the report."""

from __future__ import annotations

import csv
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import record_keeper
import torch
from pytorch_metric_learning.utils import common_functions
from torch.utils.tensorboard import SummaryWriter

_ITERATION = "~iteration~"  # record-keeper's name of the column
_BY_EPOCH = "accuracies"  # tables that start so are indexed by epoch


class _Scalars(record_keeper.RecordKeeper):  # type: ignore[misc]
    """PML hands over the parameters of losses as well, whole, in every iteration; records are of numbers."""

    def append_primitive(self, group: str, series: str, value: Any, global_iteration: int) -> None:
        if not (isinstance(value, torch.Tensor) and value.numel() != 1):
            super().append_primitive(group, series, value, global_iteration)


def open_records(folder: Path, iteration: int, epoch: int) -> record_keeper.RecordKeeper:
    """A record keeper over a run's folder, without what was recorded after a point.

    Args:
        folder: the run's folder.
        iteration: the last iteration to keep, counted over all epochs from 1; 0 for a new run.
        epoch: the last epoch to keep.
    """
    _trim(folder / "records", iteration, epoch)
    return _Scalars(
        SummaryWriter(log_dir=str(folder / "tensorboard"), purge_step=iteration + 1),
        record_keeper.RecordWriter(str(folder / "records")),
        common_functions.list_of_recordable_attributes_list_names(),
    )


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
                        iterations, values = series.setdefault(label, ([], []))
                        iterations += [int(row[0]) for row in rows]
                        values += [float(row[1]) for row in rows]
    return series
