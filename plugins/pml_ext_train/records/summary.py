"""Mean and spread of several runs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from .trackers import phases_of

Metrics = dict[str, Any]


def summarize(results: Sequence[Metrics]) -> Metrics:
    """Return ``{recipe: {phase: {metric: spread}}}`` of several runs; see :func:`spread`."""
    summary: Metrics = {}
    by_recipe: dict[str, list[Metrics]] = {}
    for result in results:
        by_recipe.setdefault(result["recipe"], []).append(result)
    for name, results_of_recipe in by_recipe.items():
        summary[name] = {}
        for phase, metrics in phases_of(results_of_recipe[0]).items():
            spreads = {}
            for metric in metrics:
                if all(metric in result.get(phase, {}) for result in results_of_recipe):  # else it failed in a run
                    spreads[metric] = spread([result[phase][metric] for result in results_of_recipe])
            summary[name][phase] = spreads
    return summary


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """Return mean and sample standard deviation; the deviation of one value is None."""
    std = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "std": std}
