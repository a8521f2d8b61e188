"""Groups of runs with the same recipe and settings, the rows of a comparison."""

import itertools
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Self

from pml_ext.errors import ConfigError, DataError, one_line, shortened
from pml_ext_train.files import DamagedError, read_toml
from pml_ext_train.recipe import flat, paper_values
from pml_ext_train.records import METRICS, RECIPE, check_unchanged, read_metrics

FOLD = "evaluation.fold"  # the setting in which the runs of a group may differ
NOT_SETTINGS = ("paper", "description", "track")  # tables of a recipe on which results do not depend

# Settings that a fair comparison shares: the name that a reader sees, and a pattern of dotted keys.
FAIR_SETTINGS = {
    "trunk": r"model\.(trunk\.(?!weights$).*|freeze.*|lora.*|init)",
    "weights": r"model\.trunk\.weights",
    "embedding size": r"model\.embedding_size",
    "image size": r"data\.(image_size|images\.(crop|resize))",
    "batch": r"sampler\.batch_size",
    "iterations": r"sampler\.iterations|schedule\.epochs",
    "augmentation": r"data\.augment.*|data\.images\.(random_crop.*|flip)|(model|data)\.views",
    "data": r"data\.(?!workers$|cache$|unreadable$).*",  # other than those above
}

RunMetrics = Mapping[str, Any]  # the content of metrics.json, and the run's "folder"


@dataclass
class Group:
    """Runs of one recipe with the same settings."""

    name: str  # of the recipe, and the settings in which groups of that name differ
    settings: dict[str, Any]  # of the recipe, by dotted key
    runs: dict[int, dict[int, RunMetrics]] = field(default_factory=dict)  # by seed and fold
    paper: dict[str, Any] | None = None  # the recipe's [paper]
    trials: int = 0  # of tuning
    errors: dict[str, str] = field(default_factory=dict)  # of runs that failed, by "cbml/a, seed 0, fold 1"
    wanted_folds: set[int] = field(default_factory=set)  # of each seed, whether or not a run of them exists
    recipe_name: str = field(init=False)  # the first name, without settings

    def __post_init__(self) -> None:
        self.recipe_name = self.name

    @property
    def folders(self) -> dict[int, Path]:
        """The folder of one run per seed."""
        return {seed: Path(next(iter(folds.values()))["folder"]) for seed, folds in sorted(self.runs.items())}

    def all_runs(self) -> list[RunMetrics]:
        """The runs of all seeds and folds."""
        return list(itertools.chain.from_iterable(folds.values() for folds in self.runs.values()))

    def values(self, phase: str, metric: str) -> dict[int, float]:
        """A metric (``"recall_at_1"``) of a phase (``"after"``) by seed, averaged over folds.

        Leaves out seeds without the metric or with missing folds.
        """
        all_folds = self.wanted_folds.union(*self.runs.values())
        means: dict[int, float] = {}
        for seed, folds in sorted(self.runs.items()):
            numbers = [run.get(phase, {}).get(metric) for run in folds.values()]
            if numbers and len(numbers) == len(all_folds) and all(map(_is_finite, numbers)):
                means[seed] = fmean(numbers)
        return means

    def seconds(self) -> float | None:
        """Mean training time of a run in seconds."""
        seconds = [run["seconds"]["train"] for run in self.all_runs() if "train" in run.get("seconds", {})]
        return fmean(seconds) if seconds else None

    def selection(self) -> str:
        """The images that chose the settings and the tested epoch."""
        share = self.settings.get("evaluation.validation", 0)
        if self.settings.get("evaluation.select_on") == "test":
            epoch = "test images"
        elif self.settings.get("evaluation.select_on") == "split":
            epoch = "validation images of the data"
        elif share:
            epoch = f"{100 * share:.0f} % of training classes"
        else:
            epoch = "last epoch"

        return f"trials: validation classes; {epoch}" if self.trials else epoch

    def unequal_settings(self, baseline: Self) -> list[str]:
        """Settings of :data:`FAIR_SETTINGS`, and numbers of trials, that differ from the baseline's."""
        texts = []
        different_keys = _keys_that_differ([self, baseline])
        for name, pattern in FAIR_SETTINGS.items():
            keys = [key for key in different_keys if re.fullmatch(pattern, key)]
            different_keys = [key for key in different_keys if key not in keys]
            if keys:
                key = keys[0]
                value = self.settings.get(key, "default")
                baseline_value = baseline.settings.get(key, "default")
                label = key if name == "data" and key != "data.name" else name
                texts.append(f"{label}: {value} ({baseline_value} in {baseline.name})")

        if self.trials != baseline.trials:
            texts.append(f"trials: {self.trials} ({baseline.trials} in {baseline.name})")
        return texts

    def paper_values(self, phase: str, metric: str) -> list[dict[str, Any]]:
        """The paper's values of a metric."""
        if self.paper is None:
            return []
        data_set = str(self.settings.get("data.name"))
        try:
            values, same_data = paper_values(self.paper, data_set)
        except ConfigError:  # the paper's file has changed since the run
            return []

        return [
            {"value": each.value, "text": each.text, "row": each.row, "data": each.heading, "same_data": same_data}
            for each in values
            if (each.metric, each.phase) == (metric, phase)
        ]


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def groups_below(folders: Sequence[Path]) -> list[Group]:
    """Group the finished runs below folders by recipe and settings."""
    groups: list[Group] = []
    for folder in folders:
        run_folders = sorted(file.parent for file in folder.rglob(METRICS))
        if not run_folders:
            raise ConfigError(f"{folder}: no finished run in it; type: pml-ext train RECIPE --out {folder}")
        for run_folder in run_folders:
            add_run(groups, run_folder)
    disambiguate_names(groups)
    return groups


def add_run(groups: list[Group], folder: Path) -> None:
    """Add a finished run to the group of its recipe and settings."""
    about, tables = _read_recipe(folder)
    metrics = {**read_metrics(folder / METRICS), "folder": str(folder)}
    paper = tables.pop("paper", None)
    fold, settings = settings_of(tables)
    group = find_or_add_group(groups, about["recipe"], settings, int(about.get("trials", 0)), paper)
    known_metrics = group.runs.setdefault(about["seed"], {}).setdefault(fold, metrics)
    # compared as text, since NaN differs from itself
    if json.dumps(known_metrics["after"], sort_keys=True) != json.dumps(metrics["after"], sort_keys=True):
        raise ConfigError(
            f"{folder}: another run has the same recipe, settings and seed, but different results; leave out one of "
            "them"
        )


def find_group(groups: Iterable[Group], settings: dict[str, Any], trials: int) -> Group | None:
    """The group with these settings and number of trials."""
    return next((each for each in groups if (each.settings, each.trials) == (settings, trials)), None)


def find_or_add_group(groups: list[Group], name: str, settings: dict[str, Any], trials: int, paper: Any) -> Group:
    """The group with these settings and number of trials, new if it is missing."""
    group = find_group(groups, settings, trials)
    if group is None:
        group = Group(name, settings, paper=paper, trials=trials)
        groups.append(group)
    return group


def settings_of(tables: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
    """The fold of a recipe (0 without folds), and its other settings by dotted key."""
    settings = flat({name: table for name, table in tables.items() if name not in NOT_SETTINGS})
    return settings.pop(FOLD, 0), settings


def disambiguate_names(groups: Sequence[Group]) -> None:
    """Append differing settings, or else the trials, to the names of groups of one recipe."""
    by_name: dict[str, list[Group]] = defaultdict(list)
    for group in groups:
        by_name[group.name].append(group)

    for same_name in by_name.values():
        different_keys = _keys_that_differ(same_name)
        for group in same_name:
            for key in different_keys if group.settings else ():
                group.name += f" {key}={group.settings[key]}" if key in group.settings else f" {key} left out"

    counts = Counter(group.name for group in groups)
    for group in groups:
        if counts[group.name] > 1:
            group.name += f" trials={group.trials}"


def _keys_that_differ(groups: Sequence[Group]) -> list[str]:
    """Keys whose values differ between groups. Groups with failed tuning have no settings."""
    known = [group.settings for group in groups if group.settings]
    all_keys = dict.fromkeys(itertools.chain.from_iterable(known))
    return [key for key in all_keys if any(settings.get(key) != known[0].get(key) for settings in known)]


def _read_recipe(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    for file in (RECIPE, METRICS):
        check_unchanged(folder, file)
    path = folder / RECIPE
    try:
        tables = read_toml(path, "run")
        about = tables.pop("run")
        about["recipe"] = str(about["recipe"])
        about["seed"] = int(about["seed"])
    except (DamagedError, OSError, KeyError, TypeError, ValueError) as error:
        raise DataError(shortened(f"{path}: not the recipe of a run ({one_line(error)})")) from None
    return about, tables
