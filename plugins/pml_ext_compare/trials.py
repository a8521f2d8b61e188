"""Trials of a study as jobs."""

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pml_ext.distributed import choose_device, keep_freed_memory
from pml_ext.errors import ConfigError, PmlExtError, TrainingError, one_line
from pml_ext_train.files import locked_folder
from pml_ext_train.launch import train_and_validate

from .jobs import BusyError, ReportProgress, UselessError
from .runs import ProgressShares, fold_numbers, run_lock, with_settings
from .study import Study, has_begun

SEED = 0  # of all trials' runs
DEATHS = 3  # of the processes of a trial, after which it counts as failed: memory may run out again and again


@dataclass(frozen=True, eq=False)
class TrialJob:
    """One trial of a study: a new one, or one whose process died."""

    study: Study
    number: int  # of the job
    device: str
    data: Path | None

    @property
    def name(self) -> str:
        """The recipe and the number of the job."""
        return f"{self.study.name}, trial {self.number + 1} of {self.study.trials}"

    def do(self, on_progress: ReportProgress) -> None:
        """Do a trial unless all have begun; BusyError while other processes do the last ones."""
        keep_freed_memory(choose_device(self.device))
        study = self.study.optuna_study()
        with contextlib.ExitStack() as locks:
            with locked_folder(self.study.place):
                self.study.fail_incomplete_trials(study)
                trials = [trial for trial in self.study.own_trials(study) if has_begun(trial)]
                unfinished = [trial for trial in trials if not trial.state.is_finished()]
                trial = next((each for each in unfinished if self._claim(each.number, locks)), None)
                is_new = trial is None and len(trials) < self.study.trials
                if is_new:
                    trial = self.study.begin(study)
                    self._claim(trial.number, locks)

            if trial is not None:
                _TrialTraining(self, study, trial, is_new, on_progress).do()
            elif unfinished:
                raise BusyError

    def folder(self, number: int) -> Path:
        """The folder of a trial's runs."""
        return self.study.place / f"trial-{number}"

    def _claim(self, number: int, locks: contextlib.ExitStack) -> bool:
        """Lock a trial's folder; False if another process holds it."""
        try:
            locks.enter_context(run_lock(self.folder(number)))
        except BusyError:
            return False
        return True


@dataclass(frozen=True)
class _TrialTraining:
    job: TrialJob
    study: Any  # Optuna's
    trial: Any  # Optuna's
    is_new: bool  # only new trials can be pruned, not resumed ones
    on_progress: ReportProgress
    values: list[float] = field(default_factory=list)  # by fold

    @property
    def folder(self) -> Path:
        return self.job.folder(self.trial.number)

    def do(self) -> None:
        """Train with the trial's values, tell the study the result, and delete the trial's runs.

        Values that fail count as a trial. After an error of the machine, such as a full disk, the trial can be resumed.
        """
        from optuna import TrialPruned
        from optuna.trial import TrialState

        try:
            with self._counting_deaths():
                for fold in fold_numbers(self.job.study.folds):
                    self.values.append(self._train(fold))
            self.study.tell(self.trial.number, sum(self.values) / len(self.values))
        except TrialPruned:
            self.study.tell(self.trial.number, state=TrialState.PRUNED)
        except Exception as error:  # torch and components raise any
            of_machine = isinstance(error, (OSError, PmlExtError))
            if of_machine and not isinstance(error, (ConfigError, TrainingError)):
                raise
            has_own_values = self.trial.number == 0 and self.job.study.begins_with_own_values()
            if isinstance(error, ConfigError) and has_own_values:  # all trials would fail
                raise UselessError(f"{self.job.study.name}: {error}") from None
            self.on_progress(f"{self.job.name} failed: {one_line(error)}")
            self.study.tell(self.trial.number, state=TrialState.FAIL)
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextlib.contextmanager
    def _counting_deaths(self) -> Iterator[None]:
        """Count killed processes of this trial in a file; TrainingError after too many."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / "deaths"
        deaths = len(file.read_text()) if file.exists() else 0
        if deaths >= DEATHS:
            raise TrainingError(f"its process was killed {deaths} times, perhaps for lack of memory")
        file.write_text("x" * (deaths + 1))
        try:
            yield
        finally:
            file.unlink(missing_ok=True)

    def _train(self, fold: int) -> float:
        name = self.job.study.name
        settings = dict(self.trial.params)
        if fold:
            settings["evaluation.fold"] = fold
        recipe = with_settings(self.job.study.recipe, settings, name)
        return train_and_validate(
            recipe=recipe,
            name=name,
            folder=self.folder / f"fold-{fold}",
            seed=SEED,
            device=self.job.device,
            data=self.job.data,
            listener=ProgressShares(self.on_progress, recipe.schedule.epochs, self.job.name),
            report=self._report,
        )

    def _report(self, epoch: int, value: float) -> None:
        """Report a value of the first fold to Optuna; TrialPruned if the trial falls behind."""
        from optuna import TrialPruned

        if not self.is_new or self.values:
            return
        self.trial.report(value, epoch)
        if self.trial.should_prune():
            raise TrialPruned
