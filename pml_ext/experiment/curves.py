"""Metrics that a run measured between its epochs: where they are recorded, and how they are read for the report."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from .records import ITERATION, Series, from_records

VALIDATION, CURVE = "accuracies_validation", "accuracies_test_by_epoch"  # tables of the records
PSEUDO = "accuracies_pseudo_labels"  # what is known of clusters without labels


def metric_series(folder: Path, metric: str, tables: Sequence[str] = (VALIDATION, CURVE)) -> Series:
    """A metric over the epochs after which it was measured.

    Args:
        folder: the run's folder.
        metric: its name, such as ``"recall_at_1"``.
        tables: of the records, in which it is looked for.

    Returns:
        ``{table: (epochs, values)}`` of these tables, without those that do not have it.
    """

    def read(database: Path) -> Series:
        series: Series = {}
        with closing(sqlite3.connect(database)) as connection:
            for table in tables:
                if metric in {row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')}:
                    rows = connection.execute(
                        f'SELECT "{ITERATION}", "{metric}" FROM "{table}" WHERE "{metric}" IS NOT NULL ORDER BY 1'
                    ).fetchall()
                    series[table] = [int(row[0]) for row in rows], [float(row[1]) for row in rows]
        return series

    return from_records(folder, read)
