"""Draws time and peak memory over the batch: ``pml-ext bench --scale --json > points.json``, then this file.

``python -m benchmarks.scale_figure points.json scale.png``; a line ends where its loss failed.
"""

import json
import sys
from pathlib import Path

from matplotlib import colormaps
from matplotlib.figure import Figure

points = json.loads(Path(sys.argv[1]).read_text())
for point in points:
    point["batch"] = int(point["shape"].partition("x")[0])
figure = Figure(figsize=(13, 4.5), layout="constrained")
batches = sorted({point["batch"] for point in points})
panels = {"milliseconds": ("s, forward and backward", 1e3), "peak_bytes": ("MiB above the inputs", 2**20)}
for axes, (field, (label, unit)) in zip(figure.subplots(1, 2), panels.items(), strict=True):
    axes.set_prop_cycle(color=colormaps["tab20"].colors)
    for name in dict.fromkeys(point["loss"] for point in points):
        there = [point for point in points if point["loss"] == name and not point["failed"]]
        style = "k--" if name == "floor" else "o:" if name.startswith("pml/") else "o-"
        values = [point[field] / unit for point in there]
        axes.plot([point["batch"] for point in there], values, style, label=name, markersize=4)
    axes.set(xscale="log", yscale="log", xlabel="batch", ylabel=label)
    axes.set_xticks(batches, [f"{batch:,}" for batch in batches])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right center", fontsize=8)
figure.savefig(sys.argv[2])
