"""Studies of Optuna: what is tuned, and how the trials went."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from pml_ext.errors import DataError, needs_extra, one_line
from pml_ext_train.files import write_text
from pml_ext_train.recipe import Recipe, TuneTable, flat, overridden

from .runs import slug

TRIALS_BEFORE_PRUNING = 5


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
        return study.ask({key: _distribution(range_, own_values.get(key)) for key, range_ in self.ranges.items()})

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
        return {key: settings[key] for key, range_ in self.ranges.items() if _is_within(settings.get(key), range_)}

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
        ranges = {key: range_.model_dump(exclude_defaults=True) for key, range_ in self.ranges.items()}
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
        parent = str(Path(self.name).resolve()) if ".toml" in self.name else self.name
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
    seconds = round(trial.duration.total_seconds(), 1) if trial.duration else None
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


def has_begun(trial: Any) -> bool:
    """Return whether a trial has begun, and does not wait in Optuna's queue."""
    waits: bool = trial.state.name == "WAITING"
    return not waits
