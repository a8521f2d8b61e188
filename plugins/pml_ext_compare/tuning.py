"""Tuning by Optuna: equally many trials per recipe, on validation classes."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pml_ext.errors import ConfigError
from pml_ext_train.recipe import Override, Recipe, load_recipes, ranges_of

from .groups import Group
from .job_queue import do
from .jobs import Executor, OnProgress
from .runs import digest_of, slug, validation_settings, with_settings
from .study import Study
from .trials import TrialJob

VALIDATION_SHARE = 0.2  # of the training classes, for recipes without validation
VALIDATIONS = 5  # of a trial, over its epochs
# A trial is neither tracked nor reported, and nothing is tested but its validation classes, which do not train.
TRIAL_SETTINGS: dict[str, Any] = {
    "track": [],
    "evaluation.baselines": False,
    "evaluation.figures": "few",
    "evaluation.training_images": 0,
    "evaluation.test_every": 0,
    "evaluation.validation_trains": False,
}


def studies_of(
    name: str, out: Path, trials: int, folds: int = 0, data: Path | None = None, overrides: Sequence[Override] = ()
) -> list[Study]:
    """The study of each of a recipe's variants."""
    recipes = load_recipes(name, overrides)
    studies = []
    for full_name, ranges in ranges_of(name, overrides).items():
        if not ranges:
            raise ConfigError(
                f"{full_name} has no [tune] table; --tune needs ranges in it, such as "
                '"optimizer.lr" = { low = 1e-4, high = 1e-2, log = true }'
            )

        own_recipe = recipes[full_name]
        recipe = with_settings(own_recipe, _settings_of_trials(own_recipe, folds), full_name)
        digest = digest_of(recipe, data, folds, {key: range_.model_dump() for key, range_ in ranges.items()})
        place = out / "studies" / f"{slug(full_name)}-{digest}"
        studies.append(Study(full_name, own_recipe, recipe, folds, ranges, trials, place))
    return studies


def _settings_of_trials(recipe: Recipe, folds: int) -> dict[str, Any]:
    evaluation = recipe.evaluation
    if folds:
        share = 1 / folds
    elif evaluation.validation and evaluation.select_on == "validation":
        share = evaluation.validation
    else:
        share = VALIDATION_SHARE

    held_out = validation_settings(share, evaluation.select, fold=min(folds, 1))
    return {**held_out, **TRIAL_SETTINGS, "evaluation.every": math.ceil(recipe.schedule.epochs / VALIDATIONS)}


def trial_jobs(studies: Sequence[Study], device: str, data: Path | None) -> list[TrialJob]:
    """A job for each missing trial, the studies in turn."""
    finished = [study.count_finished() for study in studies]
    most_trials = max((study.trials for study in studies), default=0)
    jobs = []
    for number in range(most_trials):
        for study, finished_trials in zip(studies, finished, strict=True):
            if finished_trials <= number < study.trials:
                jobs.append(TrialJob(study, number, device, data))
    return jobs


def tuned(
    studies: Sequence[Study],
    executor: Executor,
    on_progress: OnProgress,
    device: str = "auto",
    data: Path | None = None,
    begin: Callable[[int], None] = lambda trials: None,
) -> tuple[dict[str, Recipe], list[Group]]:
    """Do the trials; return the recipes with their best values, and rows for recipes without.

    ``begin`` receives the number of missing trials.
    """
    errors = _do_trials(studies, executor, on_progress, device, data, begin)
    recipes = {}
    failed = []
    by_name = {study.name: study for study in studies}  # a recipe may be named twice
    for name, study in by_name.items():
        best = study.best()
        finished = study.count_finished()
        if best and finished == study.trials:
            recipes[name] = with_settings(study.own_recipe, best, name)
            continue
        error = errors.get(name, "no trial ended with a value")
        if finished < study.trials:
            error = f"{finished} of {study.trials} trials have ended; repeat the command to run the others ({error})"
        failed.append(Group(name, {}, trials=study.trials, errors={f"{name}, tuning": error}))
    return recipes, failed


def _do_trials(
    studies: Sequence[Study],
    executor: Executor,
    on_progress: OnProgress,
    device: str,
    data: Path | None,
    begin: Callable[[int], None],
) -> dict[str, str]:
    """Do the missing trials; return the last error of each recipe.

    A trial whose process is killed needs another job, until two rounds end no trial.
    """
    errors = {}
    rounds_in_vain = 0
    jobs = trial_jobs(studies, device, data)
    while jobs and rounds_in_vain < 2:
        begin(len(jobs))
        for job, error in do(jobs, executor, on_progress).items():
            errors[job.study.name] = error

        missing = trial_jobs(studies, device, data)
        rounds_in_vain = rounds_in_vain + 1 if len(missing) == len(jobs) else 0
        jobs = missing
    return errors
