"""Tuning of recipes by Optuna: equally many trials for each, chosen on validation classes, shared by processes."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from pml_ext.tool import (
    ConfigError,
    DataError,
    Override,
    PmlExtError,
    Recipe,
    TrainingError,
    TuneTable,
    choose_device,
    flat,
    keep_freed_memory,
    load_recipes,
    locked_folder,
    needs_extra,
    one_line,
    overridden,
    ranges_of,
    train_and_validate,
    write_text,
)

from .executors import BusyError, Executor, OnProgress, ReportProgress, UselessError, do
from .groups import Group
from .runs import ProgressShares, digest_of, fold_numbers, run_lock, slug, validation_settings, with_settings

VALIDATION_SHARE = 0.2  # of the training classes, for recipes without validation
SEED = 0  # of all trials' runs
VALIDATIONS = 5  # of a trial, over its epochs
TRIALS_BEFORE_PRUNING = 5
DEATHS = 3  # of the processes of a trial, after which it counts as failed: memory may run out again and again

# A trial is neither tracked nor reported, and nothing is tested but its validation classes, which do not train.
TRIAL_SETTINGS: dict[str, Any] = {
    "track": [],
    "evaluation.baselines": False,
    "evaluation.figures": "few",
    "evaluation.training_images": 0,
    "evaluation.test_every": 0,
    "evaluation.validation_trains": False,
}

# Studies: what is tuned, and how the trials went


@dataclass(frozen=True)
class Study:
    """The tuning of one recipe: its ranges, and the folder with Optuna's journal and the trials' runs."""

    name: str  # of the recipe, or of one variant
    own_recipe: Recipe  # as it is run with the best values
    recipe: Recipe  # as it is run in trials: validation classes are held out, and nothing else is tested
    folds: int
    ranges: Mapping[str, TuneTable]
    trials: int
    place: Path

    def optuna_study(self) -> Any:
        """Open the study in its journal, or create it."""
        with needs_extra("tune", "--tune"):
            import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        epochs_before_pruning = self.recipe.schedule.epochs // 3
        return optuna.create_study(
            storage=self._open_journal(),
            study_name="study",
            pruner=optuna.pruners.MedianPruner(
                n_startup_trials=TRIALS_BEFORE_PRUNING, n_warmup_steps=epochs_before_pruning
            ),
            direction="maximize",
            load_if_exists=True,
        )

    def _open_journal(self) -> Any:
        """Return Optuna's storage; DataError if the file is not its journal."""
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

        self.place.mkdir(parents=True, exist_ok=True)
        path = self.place / "journal.log"
        lock = JournalFileOpenLock(str(path))
        _drop_incomplete_line(path, lock)
        try:
            return JournalStorage(JournalFileBackend(str(path), lock_obj=lock))
        except ValueError as error:
            text = f"{path}: not Optuna's journal ({one_line(error)}); delete it, and the trials begin anew"
            raise DataError(text) from None

    def begin(self, study: Any) -> Any:
        """Return a new trial; the first has the recipe's own values where they are in the ranges.

        Call it alone in the study's folder: the sampler's seed is the trial's number, so that no two processes draw
        the same values.
        """
        import optuna

        trials = study.get_trials(deepcopy=False)
        if not trials:  # a process that was killed here leaves a trial that waits; study.ask takes that one
            study.enqueue_trial(self._recipe_values())
        number = sum(has_begun(trial) for trial in trials)
        study.sampler = optuna.samplers.TPESampler(seed=number)

        own_values = flat(self.recipe.as_dict())
        distributions = {}
        for key, range_ in self.ranges.items():
            distributions[key] = _distribution(range_, own_values.get(key))
        return study.ask(distributions)

    def fail_incomplete_trials(self, study: Any) -> None:
        """Count trials as failed whose process was killed before it had drawn all values.

        Call it alone in the study's folder, as :meth:`begin`.
        """
        from optuna.trial import TrialState

        for trial in study.get_trials(deepcopy=False):
            if trial.state == TrialState.RUNNING and trial.params.keys() != self.ranges.keys():
                study.tell(trial.number, state=TrialState.FAIL)

    def own_trials(self, study: Any) -> list[Any]:
        """Return the first :attr:`trials` trials; the journal has more where the recipe was tuned for longer."""
        return [trial for trial in study.get_trials(deepcopy=False) if trial.number < self.trials]

    def count_finished(self) -> int:
        """Return how many of the trials have ended."""
        return sum(trial.state.is_finished() for trial in self.own_trials(self.optuna_study()))

    def _recipe_values(self) -> dict[str, Any]:
        """Return the recipe's own values of the tuned keys, where they are in the ranges."""
        settings = flat(self.recipe.as_dict())
        values = {}
        for key, range_ in self.ranges.items():
            value = settings.get(key)
            if _is_within(value, range_):
                values[key] = value
        return values

    def begins_with_own_values(self) -> bool:
        """Return whether the first trial has the recipe's own value of every tuned key."""
        return self._recipe_values().keys() == self.ranges.keys()

    def best(self) -> dict[str, Any]:
        """Return the values of the best trial; empty if no trial ended with a value."""
        try:
            return dict(self._study_of_own_trials().best_params)
        except ValueError:
            return {}

    def _study_of_own_trials(self) -> Any:
        """Return a study in memory with :meth:`own_trials`."""
        import optuna

        own_trials = self.own_trials(self.optuna_study())
        study = optuna.create_study(direction="maximize")
        study.add_trials(own_trials)
        return study

    def about(self) -> dict[str, Any]:
        """Return ranges, all trials, importance of the keys and best values, as plain values."""
        study = self._study_of_own_trials()
        if self.folds:
            chosen_on = f"{self.folds} folds of the training classes"
        else:
            chosen_on = "held-out training classes"
        ranges = {}
        for key, range_ in self.ranges.items():
            ranges[key] = range_.model_dump(exclude_defaults=True)
        return {
            "recipe": self.name,
            "sampler": "TPE",
            "pruner": "median",
            "metric": self.recipe.evaluation.select,
            "chosen on": chosen_on,
            "ranges": ranges,
            "importance": _importance(study),
            "best": self.best(),
            "trials": list(map(_about_trial, study.get_trials(deepcopy=False))),
        }

    def save_recipe(self, out: Path) -> Path:
        """Write the tuned recipe, which extends the recipe by the best values; return its file."""
        is_file = ".toml" in self.name
        if is_file:
            parent = str(Path(self.name).resolve())
        else:
            parent = self.name
        best = self.best()
        metric = self.recipe.evaluation.select
        origin = f"tuned: best of {self.trials} trials by {metric} of validation classes"

        tables = overridden({"extends": parent, "origin": dict.fromkeys(best, origin)}, best.items())
        path = out / f"{slug(self.name)}-tuned.toml"
        write_text(path, tomli_w.dumps(tables))
        return path


def _importance(study: Any) -> dict[str, float]:
    """Return the importance of each key; empty for too few trials, or equal values in all."""
    import optuna

    try:
        importance = optuna.importance.get_param_importances(study)
    except (ValueError, RuntimeError):
        return {}
    return {key: round(float(value), 4) for key, value in importance.items()}


def _about_trial(trial: Any) -> dict[str, Any]:
    if trial.duration:
        seconds = round(trial.duration.total_seconds(), 1)
    else:
        seconds = None
    return {
        "number": trial.number,
        "state": trial.state.name.lower(),
        "value": trial.value,
        "seconds": seconds,
        "values": dict(trial.params),
    }


def _drop_incomplete_line(journal: Path, lock: Any) -> None:
    """Cut a journal after its last complete line, with a warning: a full disk or a kill may leave half a line."""
    if not journal.exists():
        return
    lock.acquire()
    try:
        with journal.open("rb+") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            last_byte = file.read(1)
            if last_byte in (b"", b"\n"):
                return
            file.seek(0)
            end_of_last_line = file.read().rfind(b"\n") + 1
            file.truncate(end_of_last_line)
    finally:
        lock.release()
    warnings.warn(f"{journal}: its last line was incomplete and is dropped", stacklevel=4)


def _distribution(range_: TuneTable, own_value: Any) -> Any:
    """Return Optuna's distribution of a range: of whole numbers where its ends are, unless the recipe's own is none."""
    import optuna

    if range_.choices:
        return optuna.distributions.CategoricalDistribution(range_.choices)
    ends_are_whole = isinstance(range_.low, int) and isinstance(range_.high, int)
    if ends_are_whole and not isinstance(own_value, float):
        return optuna.distributions.IntDistribution(range_.low, range_.high, range_.log)
    return optuna.distributions.FloatDistribution(range_.low, range_.high, range_.log)


def _is_within(value: Any, range_: TuneTable) -> bool:
    if range_.choices:
        return value in range_.choices
    return isinstance(value, (int, float)) and range_.low <= value <= range_.high


def studies_of(
    name: str, out: Path, trials: int, folds: int = 0, data: Path | None = None, overrides: Sequence[Override] = ()
) -> list[Study]:
    """Return the study of each of a recipe's variants, in the folder of :func:`digest_of`."""
    recipes = load_recipes(name, overrides)
    studies = []
    for full_name, ranges in ranges_of(name, overrides).items():
        if not ranges:
            example = '"optimizer.lr" = { low = 1e-4, high = 1e-2, log = true }'
            raise ConfigError(f"{full_name} has no [tune] table; --tune wants ranges in it, such as {example}")

        own_recipe = recipes[full_name]
        recipe = with_settings(own_recipe, _settings_of_trials(own_recipe, folds), full_name)
        plain_ranges = {key: range_.model_dump() for key, range_ in ranges.items()}
        digest = digest_of(recipe, data, folds, plain_ranges)
        study = Study(
            name=full_name,
            own_recipe=own_recipe,
            recipe=recipe,
            folds=folds,
            ranges=ranges,
            trials=trials,
            place=out / "studies" / f"{slug(full_name)}-{digest}",
        )
        studies.append(study)
    return studies


def _settings_of_trials(recipe: Recipe, folds: int) -> dict[str, Any]:
    """Return the settings by which the trials of a recipe are validated, and nothing else is tested."""
    evaluation = recipe.evaluation
    if folds:
        share = 1 / folds
    elif evaluation.validation and evaluation.select_on == "validation":
        share = evaluation.validation
    else:
        share = VALIDATION_SHARE

    first_fold = min(folds, 1)
    epochs_between = math.ceil(recipe.schedule.epochs / VALIDATIONS)
    held_out = validation_settings(share, evaluation.select, first_fold)
    return {**held_out, **TRIAL_SETTINGS, "evaluation.every": epochs_between}


# Trials: the jobs of a study


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

    def do(self, on_progress: ReportProgress) -> None:
        """Do a trial, unless all have begun; BusyError if other processes have not ended the last ones."""
        keep_freed_memory(choose_device(self.device))
        study = self.study.optuna_study()
        with contextlib.ExitStack() as locks:
            with locked_folder(self.study.place):
                self.study.fail_incomplete_trials(study)
                trials = [trial for trial in self.study.own_trials(study) if has_begun(trial)]
                unfinished = [trial for trial in trials if not trial.state.is_finished()]
                left_behind = self._claim_one(unfinished, locks)
                begun = None
                if left_behind is None and len(trials) < self.study.trials:
                    begun = self.study.begin(study)
                    self._claim(begun.number, locks)

            if left_behind is not None:
                _TrialTraining(self, study, left_behind, on_progress).do()
            elif begun is not None:
                _TrialTraining(self, study, begun, on_progress, live_trial=begun).do()
            elif unfinished:
                raise BusyError

    def folder(self, number: int) -> Path:
        """Return the folder of a trial's runs."""
        return self.study.place / f"trial-{number}"

    def _claim_one(self, trials: Sequence[Any], locks: contextlib.ExitStack) -> Any:
        """Return the first trial that no other process does; None for none."""
        for trial in trials:
            if self._claim(trial.number, locks):
                return trial
        return None

    def _claim(self, number: int, locks: contextlib.ExitStack) -> bool:
        """Lock a trial's folder; return False if another process has the lock."""
        try:
            locks.enter_context(run_lock(self.folder(number)))
        except BusyError:
            return False
        return True


class _TrialTraining:
    """The training of one trial, by folds if the study has any.

    ``live_trial`` is Optuna's handle of a new trial, by which it may be pruned; a resumed one has no such handle.
    """

    def __init__(
        self, job: TrialJob, study: Any, trial: Any, on_progress: ReportProgress, live_trial: Any = None
    ) -> None:
        self.job = job
        self.study = study
        self.number: int = trial.number
        self.tuned = dict(trial.params)
        self.on_progress = on_progress
        self.live_trial = live_trial
        self.values: list[float] = []  # by fold

    def do(self) -> None:
        """Train with the trial's values, tell the study the result, and delete the trial's runs.

        Values that fail count as a trial. An error of the machine, such as a full disk, leaves the trial to be resumed.
        """
        from optuna import TrialPruned
        from optuna.trial import TrialState

        try:
            with self._counting_deaths():
                for fold in fold_numbers(self.job.study.folds):
                    self.values.append(self._train(fold))
            self.study.tell(self.number, sum(self.values) / len(self.values))
        except TrialPruned:
            self.study.tell(self.number, state=TrialState.PRUNED)
        except Exception as error:  # torch and components raise any
            of_machine = isinstance(error, (OSError, PmlExtError))
            if of_machine and not isinstance(error, (ConfigError, TrainingError)):
                raise
            first_is_own = self.number == 0 and self.job.study.begins_with_own_values()
            if isinstance(error, ConfigError) and first_is_own:  # all trials would fail
                raise UselessError(f"{self.job.study.name}: {error}") from None
            self.on_progress(f"{self.job.name} failed: {one_line(error)}")
            self.study.tell(self.number, state=TrialState.FAIL)
        shutil.rmtree(self.job.folder(self.number), ignore_errors=True)

    @contextlib.contextmanager
    def _counting_deaths(self) -> Iterator[None]:
        """Note in a file that a process trains, so that the next one sees how many were killed; TrainingError for many.

        A process that ends in another way, by an error or a signal, deletes the file.
        """
        folder = self.job.folder(self.number)
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "deaths"
        deaths = len(file.read_text()) if file.exists() else 0
        if deaths >= DEATHS:
            raise TrainingError(f"its process was killed {deaths} times, as where memory runs out")
        file.write_text("x" * (deaths + 1))
        try:
            yield
        finally:
            file.unlink(missing_ok=True)

    def _train(self, fold: int) -> float:
        """Return the best value of a run on its validation classes."""
        name = self.job.study.name
        settings = dict(self.tuned)
        if fold:
            settings["evaluation.fold"] = fold
        recipe = with_settings(self.job.study.recipe, settings, name)
        return train_and_validate(
            recipe=recipe,
            name=name,
            folder=self.job.folder(self.number) / f"fold-{fold}",
            seed=SEED,
            device=self.job.device,
            data=self.job.data,
            listener=ProgressShares(self.on_progress, recipe.schedule.epochs, self.job.name),
            report=self._report,
        )

    def _report(self, epoch: int, value: float) -> None:
        """Tell Optuna a value of the first fold; TrialPruned if the trial is worse than others at this epoch."""
        from optuna import TrialPruned

        if self.live_trial is None or self.values:
            return
        self.live_trial.report(value, epoch)
        if self.live_trial.should_prune():
            raise TrialPruned


def has_begun(trial: Any) -> bool:
    """Return whether a trial has begun, and does not wait in Optuna's queue."""
    waits: bool = trial.state.name == "WAITING"
    return not waits


def trial_jobs(studies: Sequence[Study], device: str, data: Path | None) -> list[TrialJob]:
    """Return a job for each trial that the studies lack, the studies in turn."""
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
    """Do the trials; return the recipes with their best values, and the rows of recipes that lack values or trials.

    ``begin`` is called with the number of trials that are missing, before the first of them.
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
            error = f"{finished} of {study.trials} trials have ended; the same command does the others ({error})"
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
    """Do the trials that the studies lack; return the last error of each recipe.

    A trial whose processes are killed uses up more than one job. Jobs are made again until no trial is missing, or two
    rounds of them have ended none.
    """
    errors = {}
    rounds_in_vain = 0
    jobs = trial_jobs(studies, device, data)
    while jobs and rounds_in_vain < 2:
        begin(len(jobs))
        for job, error in do(jobs, executor, on_progress).items():
            errors[job.study.name] = error

        missing = trial_jobs(studies, device, data)
        if len(missing) == len(jobs):
            rounds_in_vain += 1
        else:
            rounds_in_vain = 0
        jobs = missing
    return errors
