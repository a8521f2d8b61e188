"""Studies of Optuna."""

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
    """The tuning of one recipe; ``place`` has Optuna's journal and the trials' runs."""

    name: str  # of the recipe, or of one variant
    own_recipe: Recipe  # trained with the best values
    recipe: Recipe  # of trials: validation classes are held out, and nothing else is tested
    folds: int
    ranges: Mapping[str, TuneTable]
    trials: int
    place: Path

    def optuna_study(self) -> Any:
        """Open or create the study in its journal."""
        with needs_extra("tune", "--tune"):
            import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        pruner = optuna.pruners.MedianPruner(
            n_startup_trials=TRIALS_BEFORE_PRUNING, n_warmup_steps=self.recipe.schedule.epochs // 3
        )
        return optuna.create_study(
            storage=self._open_journal(),
            study_name="study",
            pruner=pruner,
            direction="maximize",
            load_if_exists=True,
        )

    def _open_journal(self) -> Any:
        """Optuna's storage; DataError for a file of another kind."""
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

        self.place.mkdir(parents=True, exist_ok=True)
        path = self.place / "journal.log"
        lock = JournalFileOpenLock(str(path))
        _drop_incomplete_line(path, lock)
        try:
            return JournalStorage(JournalFileBackend(str(path), lock_obj=lock))
        except ValueError as error:
            raise DataError(
                f"{path}: not Optuna's journal ({one_line(error)}); delete it to start the trials again"
            ) from None

    def begin(self, study: Any) -> Any:
        """Start a trial; the first has the recipe's own values that lie within the ranges.

        The caller must hold the lock of the study's folder, because the trial's number seeds the sampler.
        """
        import optuna

        trials = study.get_trials(deepcopy=False)
        if not trials:  # a process killed here leaves a waiting trial, which study.ask returns
            study.enqueue_trial(self._recipe_values())
        study.sampler = optuna.samplers.TPESampler(seed=sum(map(has_begun, trials)))

        own_values = flat(self.recipe.as_dict())
        return study.ask({key: _distribution(range_, own_values.get(key)) for key, range_ in self.ranges.items()})

    def fail_incomplete_trials(self, study: Any) -> None:
        """Fail trials whose process was killed before all values were drawn; needs the same lock."""
        from optuna.trial import TrialState

        for trial in study.get_trials(deepcopy=False):
            if trial.state == TrialState.RUNNING and trial.params.keys() != self.ranges.keys():
                study.tell(trial.number, state=TrialState.FAIL)

    def own_trials(self, study: Any) -> list[Any]:
        """The first :attr:`trials` trials; a longer tuning may have added more."""
        return [trial for trial in study.get_trials(deepcopy=False) if trial.number < self.trials]

    def count_finished(self) -> int:
        """The number of ended trials."""
        return sum(trial.state.is_finished() for trial in self.own_trials(self.optuna_study()))

    def _recipe_values(self) -> dict[str, Any]:
        settings = flat(self.recipe.as_dict())
        return {key: settings[key] for key, range_ in self.ranges.items() if _is_within(settings.get(key), range_)}

    def begins_with_own_values(self) -> bool:
        """Whether the first trial has the recipe's own value of every tuned key."""
        return self._recipe_values().keys() == self.ranges.keys()

    def best(self) -> dict[str, Any]:
        """The values of the best trial; empty if no trial has a value."""
        try:
            return dict(self._study_of_own_trials().best_params)
        except ValueError:
            return {}

    def _study_of_own_trials(self) -> Any:
        import optuna

        study = optuna.create_study(direction="maximize")
        study.add_trials(self.own_trials(self.optuna_study()))
        return study

    def about(self) -> dict[str, Any]:
        """Ranges, trials, importance of the keys and best values, as plain values."""
        study = self._study_of_own_trials()
        chosen_on = f"{self.folds} folds of the training classes" if self.folds else "held-out training classes"
        return {
            "recipe": self.name,
            "sampler": "TPE",
            "pruner": "median",
            "metric": self.recipe.evaluation.select,
            "chosen on": chosen_on,
            "ranges": {key: range_.model_dump(exclude_defaults=True) for key, range_ in self.ranges.items()},
            "importance": _importance(study),
            "best": self.best(),
            "trials": list(map(_about_trial, study.get_trials(deepcopy=False))),
        }

    def save_recipe(self, out: Path) -> Path:
        """Write a recipe that extends the original by the best values."""
        parent = str(Path(self.name).resolve()) if ".toml" in self.name else self.name
        best = self.best()
        origin = f"tuned: best of {self.trials} trials by {self.recipe.evaluation.select} of validation classes"
        tables = overridden({"extends": parent, "origin": dict.fromkeys(best, origin)}, best.items())
        path = out / f"{slug(self.name)}-tuned.toml"
        write_text(path, tomli_w.dumps(tables))
        return path


def _importance(study: Any) -> dict[str, float]:
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
    """Cut a journal after its last complete line, with a warning."""
    if not journal.exists():
        return
    lock.acquire()
    try:
        with journal.open("rb+") as file:
            content = file.read()
            complete = content.rfind(b"\n") + 1
            if complete < len(content):
                file.truncate(complete)
                warnings.warn(f"{journal}: its last line was incomplete and is dropped", stacklevel=4)
    finally:
        lock.release()


def _distribution(range_: TuneTable, own_value: Any) -> Any:
    """Optuna's distribution of a range: integers, unless an end or the recipe's value is not."""
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
    """Whether a trial has left Optuna's queue."""
    return bool(trial.state.name != "WAITING")
