"""A run's table of target and measured densities, and its figure."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

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
    """Return the rows of the table; none, if it was not written yet."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def plot(rows: list[dict[str, str]]) -> Figure:
    """Plot targets and measured densities of the classes over the epochs."""
    from pml_ext.plugin import figures

    figure, panels = figures.panels_of(9.2, 2, sharex=True)
    epochs = sorted({int(row["epoch"]) for row in rows})
    for axes, name in zip(panels, ("target", "density"), strict=True):
        by_label: dict[str, list[float]] = {}
        for row in rows:
            by_label.setdefault(row["label"], []).append(float(row[name]))
        values = np.array(list(by_label.values()))  # [classes, epochs]
        axes.plot(epochs, values.T, color=figures.BLUE, alpha=max(0.08, 0.6 / len(values) ** 0.4), lw=0.9)
        means = np.ma.masked_invalid(values).mean(axis=0)
        axes.plot(epochs, means, color=figures.ORANGE, lw=2, label="mean of the classes")
        axes.xaxis.get_major_locator().set_params(integer=True)
        figures.finish(axes, legend=True, title=f"{name} of the classes", xlabel="epoch")
    return figure


def compared(parts: Mapping[str, Sequence[float]]) -> Figure:
    """Plot densities of the classes, one histogram over the other on one scale, by the names of the sets of classes."""
    from pml_ext.plugin import figures

    figure, (axes,) = figures.panels_of(5.4, 1)
    edges = np.histogram_bin_edges(np.concatenate([*map(np.asarray, parts.values())]), 30)
    for (name, values), color in zip(parts.items(), (figures.BLUE, figures.ORANGE), strict=False):
        shares, label = [1 / len(values)] * len(values), f"{name}: {np.mean(values):.3f}"
        axes.hist(values, edges, weights=shares, color=color, alpha=0.55, label=label)
    labels = {"xlabel": "density (mean squared distance to the class's mean)", "ylabel": "share of the classes"}
    figures.finish(axes, legend=True, **labels)
    return figure
