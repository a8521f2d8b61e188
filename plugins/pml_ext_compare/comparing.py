"""Comparison of runs: rows of one recipe each, paired differences from a baseline, and marks of unequal settings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from pml_ext.tool import (
    ConfigError,
    DamagedError,
    DataError,
    PaperTable,
    check_unchanged,
    flat,
    is_full,
    one_line,
    phases_of,
    quoted,
    read_metrics,
    read_toml,
    shortened,
    title_of,
)

from .statistics import LEVEL, Difference, Estimate, estimate, holm, paired_difference, sentence, too_few_for_ranks

FOLD = "evaluation.fold"  # the setting in which the runs of a row may differ
# Settings that a fair comparison shares: patterns of keys, by the name of the mark.
FAIR = {
    "data": r"data\.(name|split)",
    "trunk": r"model\.(trunk\.(?!weights$).*|freeze.*|lora.*|init)",
    "weights": r"model\.trunk\.weights",
    "embedding size": r"model\.embedding_size",
    "image size": r"data\.(image_size|images\.(crop|resize))",
    "batch": r"sampler\.batch_size",
    "iterations": r"sampler\.iterations|schedule\.epochs",
    "augmentation": r"data\.augment.*|data\.images\.(random_crop.*|flip)|model\.views",
}


@dataclass
class Group:
    """Runs of one recipe with the same settings: a row of the comparison."""

    name: str  # of the recipe, and the settings in which groups of that name differ
    settings: dict[str, Any]  # of the recipe, by dotted key
    runs: dict[int, dict[int, Mapping[str, Any]]] = field(default_factory=dict)  # metrics and folder, by seed and fold
    paper: dict[str, Any] | None = None  # the recipe's [paper]
    trials: int = 0  # of tuning
    errors: dict[str, str] = field(default_factory=dict)  # of runs that failed, by "seed 0"

    @property
    def folders(self) -> dict[int, Path]:
        """The folder of one run per seed."""
        return {seed: Path(next(iter(runs.values()))["folder"]) for seed, runs in sorted(self.runs.items())}

    def values(self, phase: str, metric: str) -> dict[int, float]:
        """Return a metric (``"recall_at_1"``) of a phase (``"after"``) by seed, for the runs that have it.

        Of several folds it is the mean; seeds that lack a fold are left out.
        """
        folds = {fold for runs in self.runs.values() for fold in runs}
        found: dict[int, float] = {}
        for seed, runs in sorted(self.runs.items()):
            values = [run[phase].get(metric) for run in runs.values() if isinstance(run.get(phase), dict)]
            numbers = [float(value) for value in values if isinstance(value, (int, float))]
            if numbers and len(numbers) == len(folds):
                found[seed] = fmean(numbers)
        return found

    def seconds(self) -> float | None:
        """Return the mean training time of a run in seconds."""
        seconds = [run.get("seconds", {}).get("train") for runs in self.runs.values() for run in runs.values()]
        known = [float(value) for value in seconds if value is not None]
        return fmean(known) if known else None

    def selection(self) -> str:
        """Return the images by which values and the tested epoch were chosen."""
        share, on = self.settings.get("evaluation.validation", 0), self.settings.get("evaluation.select_on")
        epoch = f"{100 * share:.0f} % of training classes" if share else "last epoch"
        epoch = "test images" if on == "test" else epoch
        return f"trials: validation classes; {epoch}" if self.trials else epoch

    def marks(self, baseline: Group) -> list[str]:
        """Return the settings of :data:`FAIR`, and the number of trials, in which the row differs from another."""
        texts = []
        mine, others = self.settings, baseline.settings
        differ = [key for key in {**mine, **others} if mine.get(key) != others.get(key)] if mine and others else []
        for name, pattern in FAIR.items():
            if key := next((key for key in differ if re.fullmatch(pattern, key)), None):
                texts.append(f"{name}: {mine.get(key, 'default')} ({others.get(key, 'default')} in {baseline.name})")
        if self.trials != baseline.trials:
            texts.append(f"trials: {self.trials} ({baseline.trials} in {baseline.name})")
        return texts

    def paper_values(self, phase: str, metric: str) -> list[dict[str, Any]]:
        """Return the values that the recipe's paper prints for a metric, with their descriptions."""
        if self.paper is None:
            return []
        data, paper = str(self.settings.get("data.name")), PaperTable.model_validate(self.paper)
        try:
            values, own = quoted(paper, data), is_full(paper.table, data)
        except ConfigError:  # the paper's file has changed since the run
            return []
        return [
            {"value": each.value, "text": each.text, "row": each.row, "data": each.heading, "same_data": own}
            for each in values
            if (each.metric, each.phase) == (metric, phase)
        ]


def groups_below(folders: Sequence[Path]) -> list[Group]:
    """Find the finished runs in folders, at any depth, and group them by recipe and settings."""
    groups: list[Group] = []
    for folder in folders:
        if not (places := sorted(file.parent for file in folder.rglob("metrics.json"))):
            raise ConfigError(f"{folder}: no finished run in it; type: pml-ext train RECIPE --out {folder}")
        for place in places:
            add_run(groups, place)
    disambiguate_names(groups)
    return groups


def add_run(groups: list[Group], place: Path) -> None:
    """Add the finished run in a folder to the group of its recipe and settings, or to a new one."""
    about, tables, metrics = _read(place)
    paper = tables.pop("paper", None)
    fold, settings = settings_of(tables)
    trials, seed = int(about.get("trials", 0)), int(about["seed"])
    if (group := find_group(groups, settings, trials)) is None:
        groups.append(group := Group(str(about["recipe"]), settings, paper=paper, trials=trials))
    if group.runs.setdefault(seed, {}).setdefault(fold, metrics)["after"] != metrics["after"]:
        text = f"{place}: another run has the same recipe, settings and seed, but other results"
        raise ConfigError(f"{text}; name one of both")


def find_group(groups: Iterable[Group], settings: dict[str, Any], trials: int) -> Group | None:
    """Return the group of runs with these settings, whose values were chosen by so many trials; None for none."""
    return next((each for each in groups if (each.settings, each.trials) == (settings, trials)), None)


def settings_of(tables: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
    """Return the fold of a recipe's tables (0 without folds) and its other settings by dotted key."""
    settings = flat({key: table for key, table in tables.items() if key not in ("paper", "description", "track")})
    return settings.pop(FOLD, 0), settings


def disambiguate_names(groups: Sequence[Group]) -> None:
    """Add to the names of groups of one recipe the settings in which they differ."""
    named = {name: [group for group in groups if group.name == name] for name in {group.name for group in groups}}
    for name, same in named.items():
        keys = dict.fromkeys(key for group in same for key in group.settings)
        differ = [key for key in keys if any(each.settings.get(key) != same[0].settings.get(key) for each in same)]
        for group in same:
            texts = (f"{key}={group.settings[key]}" if key in group.settings else f"{key} left out" for key in differ)
            group.name = " ".join([name, *texts])


def _read(place: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return ``[run]`` and the other tables of a run's recipe, and its metrics."""
    for file in ("recipe.toml", "metrics.json"):
        check_unchanged(place, file)
    try:
        tables = read_toml(place / "recipe.toml", "run")
        about = tables.pop("run")
        about["recipe"], about["seed"] = str(about["recipe"]), int(about["seed"])
    except (DamagedError, OSError, KeyError, TypeError, ValueError) as error:
        raise DataError(shortened(f"{place / 'recipe.toml'}: not the recipe of a run ({one_line(error)})")) from None
    return about, tables, {**read_metrics(place / "metrics.json"), "folder": str(place)}


def chosen_baseline(groups: Sequence[Group], name: str | None) -> Group:
    """Return the group of a name, full or only the recipe's; for None, the first group with runs."""
    if name is None:
        return next((group for group in groups if group.runs), groups[0])
    fitting = [group for group in groups if name in (group.name, group.name.partition(" ")[0])]
    exact = [group for group in fitting if group.name == name]
    if len(exact or fitting) != 1:
        rows = ", ".join(group.name for group in groups)
        raise ConfigError(f"--baseline {name}: {len(fitting)} rows have the name {name!r}; rows: {rows}")
    return (exact or fitting)[0]


def compare(
    groups: Sequence[Group], metrics: Sequence[str], phase: str = "after", baseline: str | None = None
) -> dict[str, Any]:
    """Return the comparison as plain values: a row per group, its differences from the baseline, and sentences.

    P-values ``p`` are of the t-test as it is, ``p_holm`` corrected for the rows by Holm's procedure.
    """
    first = chosen_baseline(groups, baseline)
    _check(first, phase, metrics)
    others = [group for group in groups if group is not first]
    recipes = []
    for group in groups:
        row: dict[str, Any] = {"recipe": group.name, "seeds": sorted(group.runs)}
        row |= {"trials": group.trials, "seconds": group.seconds(), "selection": group.selection()}
        row |= {"marks": group.marks(first), "errors": group.errors}
        row["folders"] = {str(seed): str(folder) for seed, folder in group.folders.items()}
        for name in metrics:
            values = [*group.values(phase, name).values()]
            row[name] = _possible(name, estimate(values))
            row[name] |= {"values": values, "paper": group.paper_values(phase, name)}
        recipes.append(row)
    tested = [group for group in others if group.runs]
    differences: list[dict[str, Any]] = [{"recipe": group.name} for group in others]
    sentences: list[str] = []
    for name in metrics:
        base, found = first.values(phase, name), list[Difference]()
        for group in others:
            own = group.values(phase, name)
            seeds = sorted(base.keys() & own.keys())
            pairs = [base[seed] for seed in seeds], [own[seed] for seed in seeds]
            found.append(paired_difference(*pairs, alpha=LEVEL / max(1, len(tested))))
        corrected = holm([each.p for each in found])
        for row, each, p in zip(differences, found, corrected, strict=True):
            row[name] = asdict(each) | {"p_holm": p}
        if name == metrics[0]:
            tests = sum(each.p is not None for each in found)
            for group, each, p in zip(others, found, corrected, strict=True):
                sentences += [sentence(group.name, first.name, title_of(name), each, p, tests)] if group.runs else []
            sentences += too_few_for_ranks(each.pairs for each in found)
    return {
        "phase": phase,
        "metrics": [*metrics],
        "recipes": recipes,
        "differences_from": first.name,
        "differences": differences,
        "sentences": sentences,
    }


def _possible(metric: str, about: Estimate) -> dict[str, Any]:
    """Return an estimate with its interval cut at 0 and 1 for the package's metrics, which are shares."""
    values = asdict(about)
    if title_of(metric) != metric and about.low is not None and about.high is not None:
        values |= {"low": max(0.0, about.low), "high": min(1.0, about.high)}
    return values


def _check(first: Group, phase: str, metrics: Sequence[str]) -> None:
    if not first.runs and first.errors:
        which, error = next(iter(first.errors.items()))
        raise ConfigError(f"{first.name} has no finished run; {which}: {error}")
    run = next((run for runs in first.runs.values() for run in runs.values()), {})
    if phase not in (phases := phases_of(run)):
        raise ConfigError(f"--phase {phase}: {first.name} has {', '.join(phases) or 'no finished run'}")
    known = [name for name, value in run[phase].items() if isinstance(value, (int, float))]
    for name in metrics:
        if name not in known:
            raise ConfigError(f"--metric {name}: {first.name} has {', '.join(known)}")
