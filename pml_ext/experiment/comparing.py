"""Comparison of finished runs: mean and spread per recipe, and paired t-tests of the differences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from ..checksums import check_unchanged
from ..errors import ConfigError, DataError, one_line, shortened
from ..files import DamagedError, read_toml
from .launch import read_metrics


@dataclass
class Group:
    """Finished runs of one recipe with the same settings."""

    name: str  # of the recipe, and the settings in which groups of that name differ
    tables: dict[str, Any]  # of the recipe
    runs: dict[int, Mapping[str, Any]] = field(default_factory=dict)  # contents of metrics.json by seed

    def values(self, phase: str, metric: str) -> dict[int, float]:
        """Return a metric (``"recall_at_1"``) of a phase (``"after"``) by seed, for the runs that have it."""
        values = {seed: run[phase].get(metric) for seed, run in self.runs.items() if isinstance(run.get(phase), dict)}
        return {seed: float(value) for seed, value in sorted(values.items()) if isinstance(value, (int, float))}


@dataclass(frozen=True)
class Difference:
    """The difference of two groups over their common seeds; NaN where there are too few of them.

    ``p`` is of the two-sided paired t-test (:func:`scipy.stats.ttest_rel`), NaN for differences that are all the same.
    """

    mean: float
    std: float  # sample standard deviation of the differences
    p: float
    pairs: int  # number of common seeds


def difference(first: Mapping[int, float], second: Mapping[int, float]) -> Difference:
    """Compare the second group's metric with the first group's, seed by seed."""
    seeds = sorted(set(first) & set(second))
    one, other = (np.array([values[seed] for seed in seeds]) for values in (first, second))
    gains = other - one
    std = float(gains.std(ddof=1)) if len(seeds) > 1 else math.nan
    p = float(stats.ttest_rel(other, one).pvalue) if std > 1e-12 else math.nan  # a t-test needs a spread
    return Difference(float(gains.mean()) if seeds else math.nan, std, p, len(seeds))


def groups_below(folders: Sequence[Path]) -> list[Group]:
    """Find the finished runs in folders, at any depth, and group them by recipe and settings.

    Raises:
        ConfigError: no such folder, no finished run in it, or two runs of the same settings and seed that differ.
        DataError: a recipe or a ``metrics.json`` is damaged, or was written by another run.
    """
    groups: list[Group] = []
    places: dict[tuple[int, int], Path] = {}
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"{folder}: no such folder; wanted folders of finished runs")
        finished = sorted(file.parent for file in folder.rglob("metrics.json"))
        if not finished:
            raise ConfigError(
                f"{folder}: no finished run in it (no metrics.json); type: pml-ext train RECIPE --out {folder}"
            )
        for place in finished:
            name, seed, tables, metrics = _read(place)
            number = next((i for i, group in enumerate(groups) if group.tables == tables), len(groups))
            if number == len(groups):
                groups.append(Group(name, tables))
            before = places.setdefault((number, seed), place)
            if before != place and groups[number].runs[seed]["after"] != metrics["after"]:
                raise ConfigError(
                    f"{before} and {place}: the same recipe, settings and seed, but other results; name one of the two"
                )
            groups[number].runs[seed] = metrics
    _add_differing_settings(groups)
    return groups


def _read(place: Path) -> tuple[str, int, dict[str, Any], dict[str, Any]]:
    """Read the recipe's name, the seed, the recipe's tables and the metrics of a run."""
    for file in ("recipe.toml", "metrics.json"):
        check_unchanged(place, file)
    try:
        tables = read_toml(place / "recipe.toml", "run")
        about = tables.pop("run")
        name, seed = str(about["recipe"]), int(about["seed"])
    except (DamagedError, OSError, KeyError, TypeError, ValueError) as error:
        text = shortened(one_line(error), 200)
        raise DataError(f"{place / 'recipe.toml'}: not the recipe of a run ({text})") from None
    metrics = read_metrics(place / "metrics.json")
    if (metrics.get("recipe"), metrics.get("seed")) != (name, seed):
        raise DataError(
            f"{place / 'metrics.json'}: of {metrics.get('recipe')} with seed {metrics.get('seed')}, but the run beside "
            f"it is {name} with seed {seed}; put its own file back"
        )
    for key in ("paper", "description"):
        tables.pop(key, None)
    return name, seed, tables, metrics


def _add_differing_settings(groups: Sequence[Group]) -> None:
    """Add the settings in which groups of one recipe differ to their names."""
    for name in {group.name for group in groups}:
        same = [group for group in groups if group.name == name]
        settings = [_flat(group.tables) for group in same]
        keys = [
            key
            for key in dict.fromkeys(key for each in settings for key in each)
            if any(each.get(key) != settings[0].get(key) for each in settings)
        ]
        for group, mine in zip(same, settings, strict=True):
            group.name = " ".join([name, *(f"{key}={mine[key]}" if key in mine else f"{key} left out" for key in keys)])


def _flat(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
