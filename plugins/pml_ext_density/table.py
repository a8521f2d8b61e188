"""A run's table of target and measured densities, and its figure."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS = ["epoch", "label", "target", "density"]


def write_epoch(path: Path, epoch: int, classes: Iterable[tuple[int, float, float]]) -> None:
    """Add an epoch to the table; drop later ones, of a run that was stopped and resumed.

    Args:
        path: the CSV file.
        epoch: from 0, before training.
        classes: label, target density and measured density (NaN where none was measured) of every class.
    """
    path.parent.mkdir(exist_ok=True)
    rows = [row for row in read_rows(path) if int(row["epoch"]) < epoch]
    for label, target, density in classes:
        rows.append({"epoch": str(epoch), "label": str(label), "target": f"{target:.7g}", "density": f"{density:.7g}"})
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, _COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of the table; none, if it was not written yet."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def plot(rows: list[dict[str, str]]) -> Figure:
    """Targets and measured densities of the classes over the epochs."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.2, 3.2), dpi=110, layout="constrained")
    panels = figure.subplots(1, 2, sharex=True)
    for axes, name, title in zip(
        panels, ("target", "density"), ("target densities", "measured densities"), strict=True
    ):
        by_label: dict[str, list[tuple[int, float]]] = {}
        for row in rows:
            by_label.setdefault(row["label"], []).append((int(row["epoch"]), float(row[name])))
        for points in by_label.values():
            axes.plot(*zip(*points, strict=True), color="#2b6cb0", alpha=max(0.08, 0.6 / len(by_label) ** 0.4), lw=0.9)
        epochs = sorted({int(row["epoch"]) for row in rows})
        means = [_mean(float(row[name]) for row in rows if int(row["epoch"]) == epoch) for epoch in epochs]
        axes.plot(epochs, means, color="#dd6b20", lw=2, label="mean of the classes")
        axes.set(title=title, xlabel="epoch")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend(frameon=False, fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    return figure


def compared(parts: Mapping[str, Sequence[float]]) -> Figure:
    """Densities of the classes, one histogram over the other on one scale.

    Args:
        parts: the densities of every class, by what the classes are called.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.4, 3.2), dpi=110, layout="constrained")
    axes = figure.subplots()
    every = [value for values in parts.values() for value in values]
    low, high = min(every), max(every)
    edges = [low + (max(high - low, 1e-9)) * number / 30 for number in range(31)]
    for (name, values), color in zip(parts.items(), ("#2b6cb0", "#dd6b20"), strict=False):
        shares = [1 / len(values)] * len(values)
        axes.hist(
            list(values),
            edges,
            weights=shares,
            color=color,
            alpha=0.55,
            label=f"{name}: {sum(values) / len(values):.3f}",
        )
    axes.set(xlabel="density (mean squared distance to the class's mean)", ylabel="share of the classes")
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    return figure


def _mean(values: Iterable[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan
