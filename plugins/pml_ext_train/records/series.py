"""Recorded values, read back."""

from collections.abc import Iterable
from pathlib import Path

from .database import CURVE, ITERATION, VALIDATION, rows_by_table

Series = dict[str, tuple[list[int], list[float]]]  # iterations or epochs and values, by name


def metric_series(folder: Path, metric: str) -> Series:
    """Return epochs and values of a metric, by table."""
    return {table: columns[metric] for table, columns in _series(folder, [metric], (VALIDATION, CURVE)).items()}


def metric_by_epoch(folder: Path, metric: str) -> Series:
    """Return epochs and values of a metric, on ``"validation"`` and ``"test"`` images."""
    names = {VALIDATION: "validation", CURVE: "test"}
    return {names[table]: series for table, series in metric_series(folder, metric).items()}


def loss_series(folder: Path, terms: Iterable[str]) -> Series:
    """Return the loss, first, and its terms: ``{name: (iterations, values)}``."""
    found = _series(folder, dict.fromkeys(["total_loss", *terms]), ("loss_histories", "metric_loss"))
    series: Series = {"loss": found.pop("loss_histories")["total_loss"]} if "loss_histories" in found else {}
    for table, columns in found.items():
        for term, (iterations, values) in columns.items():
            label = term.removesuffix("_loss")
            # Two parts of a loss may record a term of one name in the same iterations: each gets its class's name.
            # The losses of two stages follow one another, and share a curve.
            if label in series and series[label][0][-1] >= iterations[0]:
                label = f"{label} ({table.rpartition('_')[2]})"
            known = series.setdefault(label, ([], []))
            known[0].extend(iterations)
            known[1].extend(values)
    return series


def _series(folder: Path, columns: Iterable[str], tables: tuple[str, ...]) -> dict[str, Series]:
    """Return iterations or epochs and values of columns, by table."""
    found: dict[str, Series] = {}
    for table, rows in rows_by_table(folder / "records", tables).items():
        for column in columns:
            recorded = [row for row in rows if row.get(column) is not None]
            if recorded:
                numbers = [row[ITERATION] for row in recorded]
                values = [float(row[column]) for row in recorded]
                found.setdefault(table, {})[column] = (numbers, values)
    return found
