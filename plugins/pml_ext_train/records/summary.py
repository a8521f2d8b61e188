"""Mean and spread of several runs."""

import statistics
from collections.abc import Sequence
from typing import Any

from .trackers import phases_of

Metrics = dict[str, Any]


def summarize(results: Sequence[Metrics]) -> Metrics:
    """Return ``{recipe: {phase: {metric: spread}}}``; see :func:`spread`."""
    summary: Metrics = {}
    by_recipe: dict[str, list[Metrics]] = {}
    for result in results:
        by_recipe.setdefault(result["recipe"], []).append(result)
    for name, results_of_recipe in by_recipe.items():
        summary[name] = {}
        for phase, metrics in phases_of(results_of_recipe[0]).items():
            tested = [result.get(phase, {}) for result in results_of_recipe]
            common = [metric for metric in metrics if all(metric in each for each in tested)]  # else it failed in a run
            summary[name][phase] = {metric: spread([each[metric] for each in tested]) for metric in common}
    return summary


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """Return mean and sample standard deviation; None for the deviation of one value."""
    std = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "std": std}
