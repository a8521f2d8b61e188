"""Runs of a comparison: planned, done once where they are missing, and grouped into rows."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pml_ext.tool import (
    METRICS,
    ConfigError,
    Plan,
    Recipe,
    Silence,
    __version__,
    execute,
    is_finished,
    load_recipes,
    locked_folder,
    plugins_in,
    reported_phases,
    tables_of_papers,
)

from .comparing import Group, add_run, disambiguate_names, find_group, groups_below, settings_of
from .executors import BusyError, Executor, Job, OnProgress, do


def run_lock(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Lock a folder that may be deleted, in a folder next to it; BusyError if another process has the lock."""
    return locked_folder(folder.with_name(f".{folder.name}"), BusyError())


class ProgressShares(Silence):
    """A listener that forwards a run's progress (0 to 1) and its warnings."""

    def __init__(self, on_progress: Callable[[float | str], None], epochs: int, name: str) -> None:
        self._on_progress, self._epochs, self._name = on_progress, epochs, name

    def iteration(self, epoch: int, done: int, iterations: int, loss: float) -> None:  # type: ignore[override]
        """Forward the progress."""
        self._on_progress(min(0.99, (epoch - 1 + done / iterations) / self._epochs))  # tests follow

    def warn(self, text: str) -> None:  # type: ignore[override]
        """Forward a warning."""
        self._on_progress(f"{self._name}: warning: {text}")


@dataclass(frozen=True, eq=False)
class RunJob:
    """A run to start or to resume."""

    plan: Plan
    device: str
    data: Path | None

    @property
    def name(self) -> str:
        """The recipe and the seed."""
        return f"{self.plan.name}, seed {self.plan.seed}"

    def do(self, on_progress: Callable[[float | str], None]) -> None:
        """Execute the run, once for all comparisons that need it."""
        listener = ProgressShares(on_progress, self.plan.recipe.schedule.epochs, self.name)
        with run_lock(self.plan.folder):
            execute(self.plan, self.device, self.data, listener, resume=True)


def validation_settings(share: float, select: str | None, fold: int = 0) -> list[str]:
    """Return the overrides that hold out a share, or one fold, of the training classes to choose the epoch by."""
    settings = {"validation": share, "select": select or "map_at_r", "select_on": "validation"}
    return [f"evaluation.{key}={value}" for key, value in (settings | ({"fold": fold} if fold else {})).items()]


def plans_of(
    name: str,
    out: Path,
    seeds: int = 1,
    folds: int = 0,
    data: Path | None = None,
    overrides: Sequence[str] = (),
    trials: int = 0,
) -> list[Plan]:
    """Return the runs of a recipe's variants, by seed and fold, each in the folder of :func:`digest_of`.

    ``trials`` is the number of trials of tuning by which the recipe's values were chosen.
    """
    plans = []
    select = next(iter(load_recipes(name, overrides).values())).evaluation.select
    for fold in range(1, folds + 1) if folds else [0]:
        settings = [*overrides, *(validation_settings(1 / folds, select, fold) if folds else [])]
        for full, recipe in load_recipes(name, settings).items():
            place = out / "runs" / f"{slug(full)}-{digest_of(recipe, data, trials)}"
            for seed in range(seeds):
                folder = place / (f"seed-{seed}-fold-{fold}" if fold else f"seed-{seed}")
                plans.append(Plan(full, recipe, seed, folder, trials))
    return plans


def digest_of(recipe: Recipe, data: Path | None, *more: Any) -> str:
    """Return a short checksum of all that results depend on: recipe without fold, data, versions, and more values."""
    tables = recipe.as_dict()
    about = [settings_of(tables)[1], str(data.resolve()) if data else "", *more, __version__, plugins_in(tables)]
    return hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()[:10]


def slug(name: str) -> str:
    """Return a recipe's name in a form fit for a file name."""
    return re.sub(r"[^\w.=-]+", "-", name.removesuffix(".toml")).strip("-.")


def recipes_of_table(name: str, full: bool) -> list[str]:
    """Return the recipes that quote a table of a paper: on its own data with ``full``, else on small data."""
    entries = {each["name"]: each["recipes"] for each in tables_of_papers()}
    if name not in entries:
        raise ConfigError(f"--table {name}: wanted one of {', '.join(entries)}")
    recipes: list[str] = entries[name]["full" if full else "small"]
    if not recipes:
        option = "leave out --data" if full else "name the folder of the data with --data"
        raise ConfigError(f"--table {name}: no recipe {'on its own' if full else 'on small'} data; {option}")
    return recipes


def check_reported(
    recipes: Iterable[str], overrides: Sequence[str], phase: str, metrics: Iterable[str], baseline: str | None
) -> None:
    """Check before any training that runs of the recipes report a phase and metrics, and that the baseline is a row."""
    rows = {full: recipe for name in recipes for full, recipe in load_recipes(name, overrides).items()}
    phases = dict.fromkeys(each for recipe in rows.values() for each in reported_phases(recipe))
    if phase not in phases:
        raise ConfigError(f"--phase {phase}: the recipes' runs have {', '.join(phases)}")
    if not any(recipe.data.relation for recipe in rows.values()):  # its levels have metrics of their own
        known = dict.fromkeys(each for recipe in rows.values() for each in recipe.evaluation.metric_names())
        for name in metrics:
            if name not in known:
                raise ConfigError(f"--metric {name}: the recipes' runs have {', '.join(known)}")
    if baseline is not None and not any(f"{baseline} ".startswith(f"{name} ") for name in rows):
        raise ConfigError(f"--baseline {baseline}: no row has the name {baseline!r}; rows: {', '.join(rows)}")


def rows_of(
    plans: Iterable[Plan],
    folders: Sequence[Path],
    executor: Executor,
    on_progress: OnProgress,
    device: str = "auto",
    data: Path | None = None,
    begin: Callable[[int], None] = lambda runs: None,
) -> list[Group]:
    """Execute the missing runs, and return the rows of all planned runs and of the folders' runs.

    A run counts as there if its folder has it, or one of ``folders`` has a run of the same recipe, settings, seed and
    version; recipes of the same settings share their runs. A run that fails stands in its row with its error.
    ``begin`` is called with the number of missing runs before the first.
    """
    found = groups_below(folders) if folders else []
    groups: list[Group] = []
    jobs: dict[Job, Group] = {}  # of the runs that are missing
    planned: dict[tuple[int, int, int], Path] = {}  # folders of the runs, by row, seed and fold
    for plan in plans:
        fold, settings = settings_of(plan.recipe.as_dict())
        own, there = (find_group(rows, settings, plan.trials) for rows in (groups, found))
        if own is None:
            paper = plan.recipe.paper.model_dump() if plan.recipe.paper is not None else None
            groups.append(own := Group(plan.name, settings, paper=paper, trials=plan.trials))
        run = there.runs.get(plan.seed, {}).get(fold) if there is not None else None
        if run is not None and run["versions"].get("pml-ext") == __version__:
            own.runs.setdefault(plan.seed, {})[fold] = run
        elif (key := (id(own), plan.seed, fold)) not in planned:
            planned[key] = plan.folder
            if not is_finished(plan.folder):
                jobs[RunJob(plan, device, data)] = own
    begin(len(jobs))
    for job, error in do(jobs, executor, on_progress).items():
        jobs[job].errors[job.name] = error
    for place in planned.values():
        if (place / METRICS).exists():
            add_run(groups, place)
    for other in found:
        if find_group(groups, other.settings, other.trials) is None:
            other.name = other.name.partition(" ")[0]
            groups.append(other)
    disambiguate_names(groups)
    return groups
