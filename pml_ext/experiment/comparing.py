"""Comparison of finished runs: mean and spread per recipe, and paired t-tests of the differences."""

from __future__ import annotations

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
from .recipe import flat


@dataclass
class Group:
    """Finished runs of one recipe with the same settings."""

    name: str  # of the recipe, and the settings in which groups of that name differ
    settings: dict[str, Any]  # of the recipe, by dotted key
    runs: dict[int, Mapping[str, Any]] = field(default_factory=dict)  # contents of metrics.json by seed

    def values(self, phase: str, metric: str) -> dict[int, float]:
        """Return a metric (``"recall_at_1"``) of a phase (``"after"``) by seed, for the runs that have it."""
        values = {seed: run[phase].get(metric) for seed, run in self.runs.items() if isinstance(run.get(phase), dict)}
        return {seed: float(value) for seed, value in sorted(values.items()) if isinstance(value, (int, float))}


def difference(first: Mapping[int, float], second: Mapping[int, float]) -> dict[str, float | None]:
    """Return ``mean``, ``std`` and ``pairs`` of the second metric less the first, seed by seed, and ``p``.

    ``p`` is of the two-sided paired t-test, which needs a spread; None stands for what too few seeds do not give.
    """
    seeds = sorted(set(first) & set(second))
    one, other = (np.array([values[seed] for seed in seeds]) for values in (first, second))
    std = float((other - one).std(ddof=1)) if len(seeds) > 1 else None
    p = float(stats.ttest_rel(other, one).pvalue) if std is not None and std > 1e-12 else None
    return {"mean": float((other - one).mean()) if seeds else None, "std": std, "p": p, "pairs": len(seeds)}


def groups_below(folders: Sequence[Path]) -> list[Group]:
    """Find the finished runs in folders, at any depth, and group them by recipe and settings."""
    groups: list[Group] = []
    for folder in folders:
        places = sorted(file.parent for file in folder.rglob("metrics.json"))
        if not places:
            text = f"{folder}: no finished run in it (no metrics.json)"
            raise ConfigError(f"{text}; type: pml-ext train RECIPE --out {folder}")
        for place in places:
            name, seed, settings, metrics = _read(place)
            group = next((group for group in groups if group.settings == settings), None)
            if group is None:
                groups.append(group := Group(name, settings))
            if group.runs.setdefault(seed, metrics)["after"] != metrics["after"]:
                text = f"{place}: another run has the same recipe, settings and seed, but other results"
                raise ConfigError(f"{text}; name one of both")
    named = {name: [group for group in groups if group.name == name] for name in {group.name for group in groups}}
    for name, same in named.items():
        keys = dict.fromkeys(key for group in same for key in group.settings)
        differ = [key for key in keys if any(each.settings.get(key) != same[0].settings.get(key) for each in same)]
        for group in same:
            texts = (f"{key}={group.settings[key]}" if key in group.settings else f"{key} left out" for key in differ)
            group.name = " ".join([name, *texts])
    return groups


def _read(place: Path) -> tuple[str, int, dict[str, Any], dict[str, Any]]:
    for file in ("recipe.toml", "metrics.json"):
        check_unchanged(place, file)
    try:
        tables = read_toml(place / "recipe.toml", "run")
        about = tables.pop("run")
        name, seed = str(about["recipe"]), int(about["seed"])
    except (DamagedError, OSError, KeyError, TypeError, ValueError) as error:
        raise DataError(shortened(f"{place / 'recipe.toml'}: not the recipe of a run ({one_line(error)})")) from None
    metrics = read_metrics(place / "metrics.json")
    for key in ("paper", "description", "track"):
        tables.pop(key, None)
    return name, seed, flat(tables), metrics
