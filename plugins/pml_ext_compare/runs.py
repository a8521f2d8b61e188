"""Runs of a comparison: planned, executed if missing, and grouped into rows."""

import contextlib
import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pml_ext import __version__
from pml_ext.distributed import choose_device, keep_freed_memory
from pml_ext.errors import ConfigError
from pml_ext.evaluation import is_of_clusters, is_of_protocol
from pml_ext_train.files import locked_folder
from pml_ext_train.launch import Plan, execute
from pml_ext_train.recipe import (
    Override,
    Recipe,
    load_recipes,
    overridden,
    plugins_in,
    reported_phases,
    tables_of_papers,
    validate,
)
from pml_ext_train.records import METRICS, is_finished

from .groups import (
    Group,
    add_run,
    disambiguate_names,
    find_group,
    find_or_add_group,
    groups_below,
    settings_of,
)
from .job_queue import do
from .jobs import BusyError, Executor, Job, OnProgress, ReportProgress

MOST_PROGRESS = 0.99  # of a run that trains; tests follow
PHASES_WITH_PROTOCOLS = ("before", "after")  # tests with metrics of protocols
PHASES_WITHOUT_CLUSTERS = ("training", "learned_metric", "shortlist")  # tests without metrics of clusters

# Jobs of an executor


def run_lock(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Lock a folder by a folder beside it, since it may be deleted; BusyError if it is taken."""
    return locked_folder(folder.with_name(f".{folder.name}"), BusyError())


@dataclass(frozen=True)
class ProgressShares:
    """A listener that forwards a run's progress, from 0 to 1, and its warnings."""

    on_progress: ReportProgress
    epochs: int
    name: str

    def step(self, text: str) -> None:
        """Ignore the line."""

    def iteration(self, epoch: int, done: int, iterations: int, loss: float) -> None:
        """Forward the progress."""
        self.on_progress(min(MOST_PROGRESS, (epoch - 1 + done / iterations) / self.epochs))

    def warn(self, text: str) -> None:
        """Forward a warning."""
        self.on_progress(f"{self.name}: warning: {text}")


@dataclass(frozen=True, eq=False)
class RunJob:
    """A run to start or to resume."""

    plan: Plan
    device: str
    data: Path | None

    @property
    def name(self) -> str:
        """The recipe, the seed and the fold."""
        name = f"{self.plan.name}, seed {self.plan.seed}"
        fold = self.plan.recipe.evaluation.fold
        return name if fold is None else f"{name}, fold {fold}"

    def do(self, on_progress: ReportProgress) -> None:
        """Execute the run, once for all comparisons that need it."""
        keep_freed_memory(choose_device(self.device))
        listener = ProgressShares(on_progress, self.plan.recipe.schedule.epochs, self.name)
        with run_lock(self.plan.folder):
            execute(self.plan, self.device, self.data, listener, resume=True)


# Plans: the runs of a comparison, and their folders


def fold_numbers(folds: int) -> Sequence[int]:
    """Folds from 1 on; only 0 without folds."""
    return range(1, folds + 1) if folds else [0]


def validation_settings(share: float, select: str | None, fold: int = 0) -> dict[str, Any]:
    """Settings that choose the epoch on a held-out share, or fold, of the training classes."""
    settings = {
        "evaluation.validation": share,
        "evaluation.select": select or "map_at_r",
        "evaluation.select_on": "validation",
    }
    if fold:
        settings["evaluation.fold"] = fold
    return settings


def with_settings(recipe: Recipe, settings: Mapping[str, Any], name: str) -> Recipe:
    """A recipe with other values of dotted keys; errors quote ``name``."""
    return validate(overridden(recipe.as_dict(), settings.items()), name)


def plans_of(
    recipes: Mapping[str, Recipe],
    out: Path,
    seeds: int = 1,
    folds: int = 0,
    data: Path | None = None,
    trials: int = 0,
) -> list[Plan]:
    """The runs of recipes for each seed and fold.

    ``trials``: the number of tuning trials that chose the recipes' values.
    """
    plans = []
    for fold in fold_numbers(folds):
        for name, recipe in recipes.items():
            if folds:
                recipe = with_settings(recipe, validation_settings(1 / folds, recipe.evaluation.select, fold), name)
            place = out / "runs" / f"{slug(name)}-{digest_of(recipe, data, trials)}"
            for seed in range(seeds):
                folder = place / (f"seed-{seed}-fold-{fold}" if fold else f"seed-{seed}")
                plans.append(Plan(name, recipe, seed, folder, trials))
    return plans


def digest_of(recipe: Recipe, data: Path | None, *more: Any) -> str:
    """A short checksum of all that changes results: recipe, data, versions, and ``more``."""
    tables = recipe.as_dict()
    _, settings = settings_of(tables)
    about = [settings, "" if data is None else str(data.resolve()), *more, __version__, plugins_in(tables)]
    text = json.dumps(about, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def slug(name: str) -> str:
    """A recipe's name as a file name."""
    return re.sub(r"[^\w.=-]+", "-", name.removesuffix(".toml")).strip("-.")


def recipes_of_table(name: str, full: bool) -> list[str]:
    """The recipes that quote a paper's table, on its own data (``full``) or on small data."""
    by_table = {table["name"]: table["recipes"] for table in tables_of_papers()}
    if name not in by_table:
        raise ConfigError(f"--table {name}: wanted one of {', '.join(by_table)}")

    recipes: list[str] = by_table[name]["full" if full else "small"]
    if not recipes:
        remedy = "its own data; leave out --data" if full else "small data; name the folder of its own data by --data"
        raise ConfigError(f"--table {name}: no recipe on {remedy}")
    return recipes


def check_reported(
    recipes: Iterable[str], overrides: Sequence[Override], phase: str, metrics: Iterable[str], baseline: str | None
) -> None:
    """Raise ConfigError before any training for an unknown phase, metric or baseline."""
    rows: dict[str, Recipe] = {}
    for name in recipes:
        rows |= load_recipes(name, overrides)

    phases = {name: reported_phases(recipe) for name, recipe in rows.items()}
    all_phases = dict.fromkeys(itertools.chain.from_iterable(phases.values()))
    known_metrics = dict.fromkeys(itertools.chain.from_iterable(recipe.metric_names() for recipe in rows.values()))
    if phase not in all_phases:
        raise ConfigError(f"--phase {phase}: the recipes' runs have {', '.join(all_phases)}")

    has_relation = any(recipe.data.relation for recipe in rows.values())  # its levels have metrics of their own
    reported = reported_of(phase, known_metrics)
    for name in metrics:
        is_level = has_relation and name not in known_metrics
        if name not in reported and not is_level:
            raise ConfigError(f"--metric {name}: the recipes' runs have {', '.join(reported)}")

    # A row's name is that of its recipe, perhaps followed by settings.
    fitting = [name for name in rows if baseline is None or f"{baseline} ".startswith(f"{name} ")]
    if not fitting:
        raise ConfigError(f"--baseline {baseline}: no row has the name {baseline!r}; rows: {', '.join(rows)}")
    if phase not in phases[fitting[0]]:
        raise ConfigError(
            f"--phase {phase}: the baseline, {fitting[0]}, has {', '.join(phases[fitting[0]])}; name another one by "
            "--baseline"
        )


def reported_of(phase: str, metrics: Iterable[str]) -> list[str]:
    """The metrics that a phase reports; some phases have none of clusters or protocols."""
    has_clusters = phase not in PHASES_WITHOUT_CLUSTERS
    has_protocols = phase in PHASES_WITH_PROTOCOLS
    return [
        name
        for name in metrics
        if (has_clusters or not is_of_clusters(name)) and (has_protocols or not is_of_protocol(name))
    ]


# Rows: existing and missing runs


def rows_of(
    plans: Iterable[Plan],
    folders: Sequence[Path],
    executor: Executor,
    on_progress: OnProgress,
    device: str = "auto",
    data: Path | None = None,
    begin: Callable[[int], None] = lambda runs: None,
) -> list[Group]:
    """Execute the missing runs; return rows of all planned runs and of those in ``folders``.

    Runs in ``folders`` with the same recipe, settings, seed and version are not repeated. A failed run stays in its row
    with its error. ``begin`` receives the number of missing runs.
    """
    found = groups_below(folders) if folders else []
    groups: list[Group] = []
    run_folders: dict[tuple[int, int, int], Path] = {}  # by id of the group, seed and fold
    missing: dict[Job, Group] = {}
    for plan in plans:
        fold, settings = settings_of(plan.recipe.as_dict())
        paper = None if plan.recipe.paper is None else plan.recipe.paper.model_dump()
        group = find_or_add_group(groups, plan.name, settings, plan.trials, paper)
        group.wanted_folds.add(fold)
        key = (id(group), plan.seed, fold)
        if key in run_folders:  # another recipe with the same settings
            continue
        existing = _existing_run(found, plan, settings, fold)
        run_folders[key] = existing or plan.folder
        if existing is None and not is_finished(plan.folder):
            missing[RunJob(plan, device, data)] = group

    begin(len(missing))
    for job, error in do(missing, executor, on_progress).items():
        missing[job].errors[job.name] = error
    for folder in run_folders.values():
        if (folder / METRICS).exists():
            add_run(groups, folder)
    for group in found:
        if find_group(groups, group.settings, group.trials) is None:
            group.name = group.recipe_name
            groups.append(group)
    disambiguate_names(groups)
    return groups


def _existing_run(found: Iterable[Group], plan: Plan, settings: dict[str, Any], fold: int) -> Path | None:
    """The folder of the same run, by this version."""
    group = find_group(found, settings, plan.trials)
    run = group.runs.get(plan.seed, {}).get(fold) if group is not None else None
    if run is None or run["versions"].get("pml-ext") != __version__:
        return None
    return Path(run["folder"])
