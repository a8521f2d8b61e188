"""The table of targets and densities over a run's epochs, and its plots."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS = ["epoch", "label", "target", "density"]


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of the table; an empty list if it does not exist yet."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_epoch(
    path: Path, epoch: int, labels: Sequence[int], targets: Sequence[float], densities: Sequence[float]
) -> None:
    """Add an epoch to the table; drop later ones."""
    from pml_ext.plugin import write_atomically

    rows = [list(row.values()) for row in read_rows(path) if int(row["epoch"]) < epoch]
    for label, target, density in zip(labels, targets, densities, strict=True):
        rows.append([str(epoch), str(label), f"{target:.7g}", f"{density:.7g}"])

    def write_table(temporary: Path) -> None:
        with temporary.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([_COLUMNS, *rows])

    write_atomically(path, write_table)  # a kill leaves the old table whole


def plotted(rows: list[dict[str, str]]) -> Figure:
    """Plot targets and densities of the classes over the epochs."""
    from pml_ext.plugin import figures

    figure, panels = figures.subplots(9.2, 2, sharex=True)
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
        figures.label_axes(axes, legend=True, title=f"{name} of the classes", xlabel="epoch")
    return figure


def compared(parts: Mapping[str, Sequence[float]]) -> Figure:
    """Plot overlaid density histograms of ``{name: densities}`` with common bins."""
    from pml_ext.plugin import figures

    figure, (axes,) = figures.subplots(5.4, 1)
    edges = np.histogram_bin_edges(np.concatenate([*map(np.asarray, parts.values())]), 30)
    for (name, values), color in zip(parts.items(), (figures.BLUE, figures.ORANGE), strict=False):
        shares = [1 / len(values)] * len(values)
        axes.hist(values, edges, weights=shares, color=color, alpha=0.55, label=f"{name}: {np.mean(values):.3f}")
    labels = {"xlabel": "density (mean squared distance to the class's mean)", "ylabel": "share of the classes"}
    figures.label_axes(axes, legend=True, **labels)
    return figure
