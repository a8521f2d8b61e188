"""Finished runs side by side: mean and spread of each recipe, and what a paired test says of their differences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from ..errors import ConfigError, DataError, one_line, shortened
from ..files import DamagedError, read_toml
from .runs import read_metrics

Tables = dict[str, Any]


@dataclass
class Group:
    """Finished runs of one recipe with the same settings.

    Args:
        name: the recipe's, and the settings in which groups of that name differ.
        tables: the recipe.
        runs: what stands in ``metrics.json``, by seed.
    """

    name: str
    tables: Tables
    runs: dict[int, Mapping[str, Any]] = field(default_factory=dict)

    def values(self, phase: str, metric: str) -> dict[int, float]:
        """A metric of each run that has it, by seed.

        Args:
            phase: ``"after"``, ``"before"``, ``"learned_metric"`` ...
            metric: ``"recall_at_1"`` ...
        """
        values = {seed: run[phase].get(metric) for seed, run in self.runs.items() if isinstance(run.get(phase), dict)}
        return {seed: float(value) for seed, value in sorted(values.items()) if isinstance(value, (int, float))}


@dataclass(frozen=True)
class Difference:
    """What changes from one group to another, over the seeds that both have.

    Args:
        mean: of the differences; NaN without a common seed.
        std: their sample standard deviation; NaN for fewer than two.
        p: of the two-sided paired t-test (:func:`scipy.stats.ttest_rel`); NaN where it has no answer: fewer than two
            common seeds, or differences that are all the same.
        pairs: how many seeds both have.
    """

    mean: float
    std: float
    p: float
    pairs: int


def difference(first: Mapping[int, float], second: Mapping[int, float]) -> Difference:
    """The second minus the first, seed by seed.

    Args:
        first: a metric by seed.
        second: the same metric of other runs.
    """
    seeds = sorted(set(first) & set(second))
    one, other = (np.array([values[seed] for seed in seeds]) for values in (first, second))
    gains = other - one
    spread = float(gains.std(ddof=1)) if len(seeds) > 1 else math.nan
    tested = len(seeds) > 1 and spread > 1e-12  # equal runs differ by nothing, which no test can weigh
    p = float(stats.ttest_rel(other, one).pvalue) if tested else math.nan
    return Difference(float(gains.mean()) if seeds else math.nan, spread, p, len(seeds))


def groups_below(folders: Sequence[Path]) -> list[Group]:
    """The finished runs in folders, at any depth, by their recipe and settings, in the order of the folders.

    Args:
        folders: of runs, or folders that hold such.

    Raises:
        ConfigError: no such folder, none with a finished run, or two runs of the same settings and seed that differ.
        DataError: a run's recipe or metrics are damaged.
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
            name, seed, tables = _read(place)
            metrics = read_metrics(place / "metrics.json")
            number = next((i for i, group in enumerate(groups) if group.tables == tables), len(groups))
            if number == len(groups):
                groups.append(Group(name, tables))
            before = places.setdefault((number, seed), place)
            if before != place and groups[number].runs[seed]["after"] != metrics["after"]:
                raise ConfigError(
                    f"{before} and {place}: the same recipe, settings and seed, but other results; name one of the two"
                )
            groups[number].runs[seed] = metrics
    _name_apart(groups)
    return groups


def _read(place: Path) -> tuple[str, int, Tables]:
    try:
        tables = read_toml(place / "recipe.toml", "run")
        about = tables.pop("run")
        name, seed = str(about["recipe"]), int(about["seed"])
    except (DamagedError, OSError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{place / 'recipe.toml'}: not the recipe of a run ({shortened(one_line(error), 200)})"
        ) from None
    for words in ("paper", "description"):
        tables.pop(words, None)
    return name, seed, tables


def _name_apart(groups: Sequence[Group]) -> None:
    """Gives groups of one recipe the settings in which they differ."""
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


def _flat(tables: Tables, prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
