"""Comparison of groups of runs: a row for each, paired differences from a baseline, and sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pml_ext.tool import ConfigError, is_known_metric, percent, phases_of, title_of

from .groups import Group
from .statistics import LEVEL, Difference, Estimate, estimate, holm, paired_difference, sentence, too_few_for_ranks
from .tables import direction


def compare(
    groups: Sequence[Group], metrics: Sequence[str], phase: str = "after", baseline: str | None = None
) -> dict[str, Any]:
    """Return the comparison as plain values: a row per group, its differences from the baseline, and sentences.

    P-values ``p`` are of the t-test as it is, ``p_holm`` corrected for the rows by Holm's procedure.
    """
    base = chosen_baseline(groups, baseline)
    _check_reported(base, phase, metrics)
    others = [group for group in groups if group is not base]

    differences: list[dict[str, Any]] = [{"recipe": group.name} for group in others]  # metrics follow, by name
    sentences: list[str] = []
    for metric in metrics:
        found = _differences(base, others, phase, metric)
        corrected = holm([difference.p for difference in found])
        for row, difference, p in zip(differences, found, corrected, strict=True):
            row[metric] = {**asdict(difference), "p_holm": p}
        if metric == metrics[0]:
            sentences = _sentences(base, others, metric, found, corrected)

    return {
        "phase": phase,
        "metrics": [*metrics],
        "best": best_rows(groups, phase, metrics[0]),
        "recipes": [_row(group, base, phase, metrics) for group in groups],
        "differences_from": base.name,
        "differences": differences,
        "sentences": sentences,
    }


def best_rows(groups: Sequence[Group], phase: str, metric: str) -> str:
    """Name the row with the best mean of a metric, and the rows that its test does not show to be worse."""
    ranked = by_mean([group for group in groups if group.runs], phase, metric)
    if len(ranked) < 2:
        return ""
    best, *others = ranked
    found = _differences(best, others, phase, metric)
    corrected = holm([difference.p for difference in found])
    alike = []
    for group, difference, p in zip(others, found, corrected, strict=True):
        is_shown = p is not None and p < LEVEL
        # On the seeds that both have, a row of fewer seeds may be the better one.
        is_worse = difference.mean is not None and direction(metric) * difference.mean < 0
        if not (is_shown and is_worse):
            alike.append(group.name)

    mean = estimate(list(best.values(phase, metric).values())).mean
    text = f"Best by {title_of(metric)}: {best.name}, {percent(mean)} %"
    if not alike:
        return f"{text}; all other rows are worse (paired t-tests, p < {LEVEL} after Holm's correction)."
    rows = ", ".join(alike)
    return f"{text}. Not told from it (paired t-tests, p < {LEVEL} after Holm's correction): {rows}."


def by_mean(groups: Sequence[Group], phase: str, metric: str) -> list[Group]:
    """Return groups with runs in the order of the mean of a metric, the best first."""

    def goodness(group: Group) -> float:
        value = estimate(list(group.values(phase, metric).values())).mean
        return -math.inf if value is None else direction(metric) * value

    return sorted(groups, key=goodness, reverse=True)


def chosen_baseline(groups: Sequence[Group], name: str | None) -> Group:
    """Return the group of a name, full or only the recipe's; for None, the first group with runs."""
    if name is None:
        return next((group for group in groups if group.runs), groups[0])

    exact = [group for group in groups if group.name == name]
    fitting = [group for group in groups if name in (group.name, group.recipe_name)]
    candidates = exact or fitting
    if len(candidates) != 1:
        rows = ", ".join(group.name for group in groups)
        raise ConfigError(f"--baseline {name}: {len(fitting)} rows have the name {name!r}; rows: {rows}")
    return candidates[0]


def _check_reported(base: Group, phase: str, metrics: Sequence[str]) -> None:
    """Raise ConfigError unless the baseline's runs have the phase and the metrics."""
    if not base.runs and base.errors:
        which, error = next(iter(base.errors.items()))
        raise ConfigError(f"{base.name} has no finished run; {which}: {error}")

    run = next(iter(base.all_runs()), {})
    phases = phases_of(run)
    if phase not in phases:
        raise ConfigError(f"--phase {phase}: {base.name} has {', '.join(phases) or 'no finished run'}")

    known = [name for name, value in run[phase].items() if isinstance(value, (int, float))]
    for name in metrics:
        if name not in known:
            raise ConfigError(f"--metric {name}: {base.name} has {', '.join(known)}")


def _row(group: Group, base: Group, phase: str, metrics: Sequence[str]) -> dict[str, Any]:
    """Return what a comparison says of one group alone."""
    folders = {}
    for seed, folder in group.folders.items():
        folders[str(seed)] = str(folder)
    row: dict[str, Any] = {
        "recipe": group.name,
        "seeds": sorted(group.runs),
        "trials": group.trials,
        "seconds": group.seconds(),
        "selection": group.selection(),
        "marks": group.unequal_settings(base),
        "errors": group.errors,
        "folders": folders,
    }
    for metric in metrics:
        values = list(group.values(phase, metric).values())
        printed = group.paper_values(phase, metric)
        row[metric] = {**_cut_to_shares(metric, estimate(values)), "values": values, "paper": printed}
    return row


def _cut_to_shares(metric: str, about: Estimate) -> dict[str, Any]:
    """Return an estimate as a dict, its interval cut at 0 and 1 for the package's metrics, which are shares."""
    values = asdict(about)
    if is_known_metric(metric) and about.low is not None and about.high is not None:
        values["low"] = max(0.0, about.low)
        values["high"] = min(1.0, about.high)
    return values


def _differences(base: Group, others: Sequence[Group], phase: str, metric: str) -> list[Difference]:
    """Return each group's difference from the baseline, over the seeds that both have."""
    tested = [group for group in others if group.runs]
    level = LEVEL / max(1, len(tested))  # for the number of pairs wanted: the strictest of Holm's levels
    base_values = base.values(phase, metric)
    differences = []
    for group in others:
        values = group.values(phase, metric)
        baseline_by_seed = []
        row_by_seed = []
        for seed in sorted(base_values.keys() & values.keys()):
            baseline_by_seed.append(base_values[seed])
            row_by_seed.append(values[seed])
        differences.append(
            paired_difference(baseline_by_seed, row_by_seed, alpha=level, better_is_less=direction(metric) < 0)
        )
    return differences


def _sentences(
    base: Group,
    others: Sequence[Group],
    metric: str,
    differences: Sequence[Difference],
    corrected: Sequence[float | None],
) -> list[str]:
    """Say of each group with runs what its test shows, and which tests have too few pairs."""
    tests = sum(difference.p is not None for difference in differences)
    sentences = []
    for group, difference, p in zip(others, differences, corrected, strict=True):
        if group.runs:
            sentences.append(sentence(group.name, base.name, title_of(metric), difference, p, tests))
    sentences += too_few_for_ranks(difference.pairs for difference in differences)
    return sentences
