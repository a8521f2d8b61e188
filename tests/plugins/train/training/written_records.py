"""What a run has recorded, as its files have it."""

import csv
import sqlite3
from contextlib import closing

from record_keeper import RecordWriter

from pml_ext_train.records.recorder import Records
from pml_ext_train.records.trackers import TensorBoard

from ....faults import events


def tables(folder):
    """The tables as record-keeper reads them, without its own numbers of rows."""
    with closing(sqlite3.connect(folder / "records" / "logs.db")) as connection:
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    reader = RecordWriter(str(folder / "records"))
    rows = {name: [dict(row) for row in reader.query(f"SELECT * FROM {name}")] for name in sorted(names)}
    rows.pop("sqlite_sequence", None)
    return {name: [{k: v for k, v in row.items() if k != "id"} for row in table] for name, table in rows.items()}


def csv_rows(path):
    with path.open(newline="") as file:
        return list(csv.reader(file))


def scalars(folder):
    found = {}
    for place in ("tensorboard", "tensorboard/epochs"):
        for tag, points in events.scalars(folder / place).items():
            found[tag] = sorted({*points})
    return found


def opened(folder, iteration, epoch, warn=print):
    return Records(folder, iteration, epoch, warn, [("tensorboard", lambda: TensorBoard(folder, {}, iteration, epoch))])


def record(folder, first, last, warn=None):
    records = opened(folder, first - 1, (first - 1) // 2, *([warn] if warn else []))
    for iteration in range(first, last + 1):
        records.add(iteration, {"loss_histories": {"total_loss": iteration / 4, "flag": True}})
        if iteration % 2 == 0:
            records.add(iteration // 2, {"accuracies_validation": {"map_at_r": iteration / 8}})
            records.save()
    records.add(4, {"accuracies_test": {"map_at_r": 0.5}})
    records.close()


def everything(folder):
    return tables(folder), {path.name: csv_rows(path) for path in (folder / "records").glob("*.csv")}, scalars(folder)
