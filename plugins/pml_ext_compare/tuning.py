"""Tuning of recipes by Optuna: equally many trials for each, chosen on validation classes, shared by processes."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from pml_ext.tool import (
    QUICK,
    ConfigError,
    DataError,
    Recipe,
    Records,
    Run,
    TrainingError,
    TuneTable,
    flat,
    load_recipes,
    locked,
    locked_folder,
    merged,
    needs_extra,
    nested,
    one_line,
    ranges_of,
    train_run,
    write_text,
)

from .comparing import Group
from .executors import BusyError, Executor, OnProgress, UselessError, do
from .running import ProgressShares, digest_of, run_lock, slug, validation_settings

VALIDATION = 0.2  # share of the training classes, for recipes without validation
_SEED = 0  # seed of all trials' runs
_TESTS = 5  # validations of a trial over its epochs


def best_value(run: Run, _: Records) -> dict[str, Any]:
    """Return the best value on the validation classes: all that a trial's run tests; it writes no report."""
    return {"value": run.history.best["value"]}


@dataclass(frozen=True)
class Study:
    """The tuning of one recipe: its ranges, and the folder with Optuna's journal and the trials' runs."""

    name: str  # of the recipe, or of one variant
    settings: tuple[str, ...]  # overrides, which hold out validation classes too
    recipe: Recipe  # with these settings
    folds: int
    ranges: Mapping[str, TuneTable]
    trials: int
    place: Path

    def optuna_study(self) -> Any:
        """Open the study in its journal, or create it."""
        with needs_extra("tune", "--tune"):
            import optuna
        from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.place.mkdir(parents=True, exist_ok=True)
        path = self.place / "journal.log"
        lock = JournalFileOpenLock(str(path))
        _drop_incomplete_line(path, lock)
        try:
            storage = optuna.storages.JournalStorage(JournalFileBackend(str(path), lock_obj=lock))
        except ValueError as error:
            text = f"{path}: not Optuna's journal ({one_line(error)}); delete it, and the trials begin anew"
            raise DataError(text) from None
        pruner = optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=self.recipe.schedule.epochs // 3)
        return optuna.create_study(
            storage=storage, study_name="study", pruner=pruner, direction="maximize", load_if_exists=True
        )

    def begin(self, study: Any) -> Any:
        """Return a new trial; the first has the recipe's own values where they are in the ranges.

        Call it alone in the study's folder: the sampler's seed is the trial's number, so that no two processes draw
        the same values.
        """
        import optuna

        study.sampler = optuna.samplers.TPESampler(seed=len(study.get_trials(deepcopy=False)))
        if not study.get_trials(deepcopy=False):
            own = flat(self.recipe.as_dict())
            study.enqueue_trial({key: own[key] for key, each in self.ranges.items() if _within(own.get(key), each)})
        return study.ask({key: _distribution(each) for key, each in self.ranges.items()})

    def best(self) -> dict[str, Any]:
        """Return the values of the best trial; empty if no trial ended with a value."""
        with contextlib.suppress(ValueError):
            return dict(self.optuna_study().best_params)
        return {}

    def about(self) -> dict[str, Any]:
        """Return ranges, all trials, importance of the keys and best values, as plain values."""
        import optuna

        study = self.optuna_study()
        trials = study.get_trials(deepcopy=False)
        importance: dict[str, float] = {}
        with contextlib.suppress(ValueError, RuntimeError):  # too few trials, or equal values in all
            importance = optuna.importance.get_param_importances(study)
        return {
            "recipe": self.name,
            "sampler": "TPE",
            "pruner": "median",
            "metric": self.recipe.evaluation.select,
            "chosen on": f"{self.folds} folds of the training classes" if self.folds else "held-out training classes",
            "ranges": {key: each.model_dump(exclude_defaults=True) for key, each in self.ranges.items()},
            "importance": {key: round(float(value), 4) for key, value in importance.items()},
            "best": self.best(),
            "trials": [
                {"number": each.number, "state": each.state.name.lower(), "value": each.value}
                | {"seconds": round(each.duration.total_seconds(), 1) if each.duration else None}
                | {"values": dict(each.params)}
                for each in trials
            ],
        }

    def save_recipe(self, out: Path) -> Path:
        """Write the tuned recipe, which extends the recipe by the best values; return its file."""
        parent = str(Path(self.name).resolve()) if ".toml" in self.name else self.name
        best, metric = self.best(), self.recipe.evaluation.select
        origin = dict.fromkeys(best, f"tuned: best of {self.trials} trials by {metric} of validation classes")
        tables: dict[str, Any] = {"extends": parent, "origin": origin}
        for key, value in best.items():
            tables = merged(tables, nested(key, value))
        write_text(path := out / f"{slug(self.name)}-tuned.toml", tomli_w.dumps(tables))
        return path


def _drop_incomplete_line(journal: Path, lock: Any) -> None:
    """Cut a journal after its last complete line, with a warning: a full disk or a kill may leave half a line."""
    if not journal.exists():
        return
    lock.acquire()
    try:
        with journal.open("rb+") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            if file.read(1) in (b"", b"\n"):
                return
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
    finally:
        lock.release()
    warnings.warn(f"{journal}: its last line was incomplete and is dropped", stacklevel=3)


def _distribution(range_: TuneTable) -> Any:
    import optuna

    if range_.choices:
        return optuna.distributions.CategoricalDistribution(range_.choices)
    if isinstance(range_.low, int) and isinstance(range_.high, int):
        return optuna.distributions.IntDistribution(range_.low, range_.high, range_.log)
    return optuna.distributions.FloatDistribution(range_.low, range_.high, range_.log)


def _within(value: Any, range_: TuneTable) -> bool:
    if range_.choices:
        return value in range_.choices
    return isinstance(value, (int, float)) and range_.low <= value <= range_.high


def studies_of(
    name: str, out: Path, trials: int, folds: int = 0, data: Path | None = None, overrides: Sequence[str] = ()
) -> list[Study]:
    """Return the study of each of a recipe's variants, in the folder of :func:`digest_of`."""
    studies = []
    for full, ranges in ranges_of(name, overrides).items():
        if not ranges:
            example = '"optimizer.lr" = { low = 1e-4, high = 1e-2, log = true }'
            raise ConfigError(f"{full} has no [tune] table; --tune wants ranges in it, such as {example}")
        recipe = load_recipes(full, overrides)[full]
        table, every = recipe.evaluation, math.ceil(recipe.schedule.epochs / _TESTS)
        share = table.validation if table.validation and table.select_on == "validation" else VALIDATION
        settings = [*overrides, *validation_settings(1 / folds if folds else share, table.select, min(folds, 1))]
        settings += ["track=[]", *QUICK, f"evaluation.every={every}"]
        recipe = load_recipes(full, settings)[full]
        digest = digest_of(recipe, data, folds, {key: each.model_dump() for key, each in ranges.items()})
        place = out / "studies" / f"{slug(full)}-{digest}"
        studies.append(Study(full, tuple(settings), recipe, folds, ranges, trials, place))
    return studies


@dataclass(frozen=True, eq=False)
class TrialJob:
    """One of a study's trials: a new one, or one whose process died, from its checkpoint."""

    study: Study
    number: int  # of the job
    device: str
    data: Path | None

    @property
    def name(self) -> str:
        """The recipe and the number of the job."""
        return f"{self.study.name}, trial {self.number + 1} of {self.study.trials}"

    def do(self, on_progress: Callable[[float | str], None]) -> None:
        """Do a trial, unless all have begun; BusyError if other processes have not ended the last ones."""
        study = self.study.optuna_study()
        with contextlib.ExitStack() as stack:
            with locked_folder(self.study.place):
                trials, trial = study.get_trials(deepcopy=False), None
                unfinished = [each for each in trials if not each.state.is_finished()]
                left = next((each for each in unfinished if self._claim(each.number, stack)), None)
                if left is None and len(trials) < self.study.trials:
                    left = trial = self.study.begin(study)
                    self._claim(trial.number, stack)
            if left is not None:
                self._run(study, left, trial, on_progress)
            elif unfinished:
                raise BusyError

    def _folder(self, number: int) -> Path:
        return self.study.place / f"trial-{number}"

    def _claim(self, number: int, stack: contextlib.ExitStack) -> bool:
        with contextlib.suppress(BusyError):
            stack.enter_context(run_lock(self._folder(number)))
            return True
        return False

    def _run(self, study: Any, left: Any, trial: Any, on_progress: Callable[[float | str], None]) -> None:
        """Train with a trial's values and tell the study the result; ``trial`` is None for a resumed one."""
        import optuna

        name, values = self.study.name, list[float]()
        tuned = [f"{key}={_toml(value)}" for key, value in left.params.items()]

        def report(epoch: int, value: float) -> None:
            if trial is not None and not values:  # of the first fold
                trial.report(value, epoch)
                if trial.should_prune():
                    raise optuna.TrialPruned

        try:
            for fold in range(1, self.study.folds + 1) if self.study.folds else [0]:
                settings = [*self.study.settings, *tuned, *([f"evaluation.fold={fold}"] if fold else [])]
                recipe, folder = load_recipes(name, settings)[name], self._folder(left.number) / f"fold-{fold}"
                listener = ProgressShares(on_progress, recipe.schedule.epochs, self.name)
                run = Run(recipe, name, folder, _SEED, self.device, self.data, listener)
                with locked(folder):
                    metrics = train_run(run, resume=True, after_validation=report, finish=best_value)
                    values.append(metrics["value"])
            study.tell(left.number, sum(values) / len(values))
        except optuna.TrialPruned:
            study.tell(left.number, state=optuna.trial.TrialState.PRUNED)
        except (ConfigError, TrainingError) as error:  # failing values count as a trial
            if isinstance(error, ConfigError) and left.number == 0:  # the recipe's own values: all trials would fail
                raise UselessError(f"{name}: {error}") from None
            on_progress(f"{self.name} failed: {one_line(error)}")
            study.tell(left.number, state=optuna.trial.TrialState.FAIL)
        shutil.rmtree(self._folder(left.number), ignore_errors=True)


def _toml(value: Any) -> str:
    return tomli_w.dumps({"value": value}).partition("=")[2].strip()


def trial_jobs(studies: Sequence[Study], device: str, data: Path | None) -> list[TrialJob]:
    """Return a job for each trial that the studies lack, the studies in turn."""
    all_trials = [study.optuna_study().get_trials(deepcopy=False) for study in studies]
    finished = [sum(each.state.is_finished() for each in trials) for trials in all_trials]
    return [
        TrialJob(study, number, device, data)
        for number in range(max((study.trials for study in studies), default=0))
        for study, there in zip(studies, finished, strict=True)
        if there <= number < study.trials
    ]


def tuned(
    studies: Sequence[Study], jobs: Sequence[TrialJob], executor: Executor, on_progress: OnProgress
) -> tuple[list[tuple[str, list[str]]], list[Group]]:
    """Do the trials, and return each recipe with its best values as overrides, and rows of those without any."""
    errors = {job.study.name: error for job, error in do(jobs, executor, on_progress).items()}
    best = {study.name: study.best() for study in studies}
    chosen = [(name, [f"{key}={_toml(value)}" for key, value in values.items()]) for name, values in best.items()]
    texts = {name: errors.get(name, "no trial ended with a value") for name, values in best.items() if not values}
    failed = [Group(name, {}, errors={f"{name}, tuning": text}) for name, text in texts.items()]
    return [each for each in chosen if each[0] not in texts], failed
