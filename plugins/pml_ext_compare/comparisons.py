"""Comparison of groups of runs: rows, paired differences, and sentences."""

import itertools
from collections.abc import Sequence
from dataclasses import asdict, replace
from statistics import fmean
from typing import Any

import numpy as np

from pml_ext.errors import ConfigError
from pml_ext.evaluation import is_known_metric, title_of
from pml_ext_train.records import phases_of
from pml_ext_train.report import percent

from .groups import Group
from .statistics import (
    LEVEL,
    NO_SPREAD,
    Difference,
    Estimate,
    estimate,
    holm,
    paired_difference,
    sentence,
    t_test,
    too_few_for_ranks,
)
from .tables import direction, goodness


def compare(
    groups: Sequence[Group], metrics: Sequence[str], phase: str = "after", baseline: str | None = None
) -> dict[str, Any]:
    """Rows, differences from the baseline, and sentences, as plain values.

    ``p`` comes from the uncorrected t-test; ``p_holm`` is corrected for the number of rows.
    """
    base = chosen_baseline(groups, baseline)
    sentences: list[str] = []
    if not base.runs and any(group.runs for group in groups):
        failed = base
        base = chosen_baseline(groups, None)
        sentences.append(f"{failed.name} has no finished run; the differences are from {base.name}.")
    _check_reported(base, phase, metrics)
    others = [group for group in groups if group is not base]

    differences: list[dict[str, Any]] = [{"recipe": group.name} for group in others]  # metrics follow, by name
    for metric in metrics:
        found = _differences(base, others, phase, metric)
        corrected = holm([difference.p for difference in found])
        for row, difference, p in zip(differences, found, corrected, strict=True):
            row[metric] = {**asdict(difference), "p_holm": p}
        if metric == metrics[0]:
            sentences += _sentences(base, others, metric, found, corrected)

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
    """Name the best row by the mean of a metric, and the rows that are not significantly worse.

    The tested values also choose the best row, so Holm's correction covers all pairs of rows.
    """
    means: dict[int, float] = {}  # of rows with values, by number
    for number, group in enumerate(groups):
        by_seed = group.values(phase, metric)
        if by_seed:
            means[number] = fmean(by_seed.values())
    if len(means) < 2:
        return ""
    best, *others = sorted(means, key=lambda number: goodness(metric, means[number]), reverse=True)

    tests = f"paired t-tests, p < {LEVEL} after Holm's correction for all pairs of rows"
    alike = f"Not significantly worse ({tests})"
    always_worse = "Worse by the same difference in each pair, without a test"
    not_tested = "Not tested (fewer than two common seeds)"
    without_values = [group.name for number, group in enumerate(groups) if group.runs and number not in means]
    names: dict[str, list[str]] = {alike: [], always_worse: [], not_tested: without_values}
    p_by_pair = _corrected_p_values(groups, [best, *others], phase, metric)
    for number in others:
        name = groups[number].name
        best_values, values = _paired_values(groups[best], groups[number], phase, metric)
        p = p_by_pair[best, number]
        if len(values) < 2:
            names[not_tested].append(name)
            continue

        # On the seeds that both have, a row with fewer seeds may be the better one.
        lead = goodness(metric, fmean(best_values)) - goodness(metric, fmean(values))
        if lead <= NO_SPREAD or (p is not None and p >= LEVEL):
            names[alike].append(name)
        elif p is None:
            names[always_worse].append(name)

    text = f"Best by {title_of(metric)}: {groups[best].name}, {percent(means[best])} %"
    if not any(names.values()):
        return f"{text}; all other rows are worse ({tests})."
    found = [f"{verdict}: {', '.join(rows)}." for verdict, rows in names.items() if rows]
    return " ".join([f"{text}.", *found])


def _corrected_p_values(
    groups: Sequence[Group], numbers: Sequence[int], phase: str, metric: str
) -> dict[tuple[int, int], float | None]:
    pairs = list(itertools.combinations(numbers, 2))
    p_values = []
    for first, second in pairs:
        one, other = _paired_values(groups[first], groups[second], phase, metric)
        p_values.append(t_test(np.subtract(other, one)))
    return dict(zip(pairs, holm(p_values), strict=True))


def chosen_baseline(groups: Sequence[Group], name: str | None) -> Group:
    """The group with a name, full or only the recipe's; for None, the first group with runs."""
    if name is None:
        return next((group for group in groups if group.runs), groups[0])

    fitting = [group for group in groups if name in (group.name, group.recipe_name)]
    candidates = [group for group in groups if group.name == name] or fitting
    if len(candidates) != 1:
        rows = ", ".join(group.name for group in groups)
        raise ConfigError(f"--baseline {name}: {len(fitting)} rows have the name {name!r}; rows: {rows}")
    return candidates[0]


def _check_reported(base: Group, phase: str, metrics: Sequence[str]) -> None:
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
    row: dict[str, Any] = {
        "recipe": group.name,
        "seeds": sorted(group.runs),
        "trials": group.trials,
        "seconds": group.seconds(),
        "selection": group.selection(),
        "unequal_settings": group.unequal_settings(base),
        "errors": group.errors,
        "folders": {str(seed): str(folder) for seed, folder in group.folders.items()},
    }
    for metric in metrics:
        values = list(group.values(phase, metric).values())
        about = _cut_to_shares(metric, estimate(values))
        row[metric] = {**about, "values": values, "paper": group.paper_values(phase, metric)}
    return row


def _cut_to_shares(metric: str, about: Estimate) -> dict[str, Any]:
    """An estimate as a dict; intervals of metrics from 0 to 1 are cut there."""
    if is_known_metric(metric) and about.low is not None and about.high is not None:
        about = replace(about, low=max(0.0, about.low), high=min(1.0, about.high))
    return asdict(about)


def _differences(base: Group, others: Sequence[Group], phase: str, metric: str) -> list[Difference]:
    tested = sum(bool(group.runs) for group in others)
    level = LEVEL / max(1, tested)  # for the number of pairs wanted: the strictest of Holm's levels
    differences = []
    for group in others:
        base_values, values = _paired_values(base, group, phase, metric)
        differences.append(paired_difference(base_values, values, alpha=level, better_is_less=direction(metric) < 0))
    return differences


def _paired_values(base: Group, group: Group, phase: str, metric: str) -> tuple[list[float], list[float]]:
    base_by_seed = base.values(phase, metric)
    by_seed = group.values(phase, metric)
    seeds = sorted(base_by_seed.keys() & by_seed.keys())
    return [base_by_seed[seed] for seed in seeds], [by_seed[seed] for seed in seeds]


def _sentences(
    base: Group,
    others: Sequence[Group],
    metric: str,
    differences: Sequence[Difference],
    corrected: Sequence[float | None],
) -> list[str]:
    tests = sum(difference.p is not None for difference in differences)
    sentences = [
        sentence(group.name, base.name, title_of(metric), difference, p, tests)
        for group, difference, p in zip(others, differences, corrected, strict=True)
        if group.runs
    ]
    return sentences + too_few_for_ranks(difference.pairs for difference in differences)
