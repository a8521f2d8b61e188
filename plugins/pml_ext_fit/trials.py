"""Trials of candidates on held-out training items."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pml_ext.distributed import release_freed_memory
from pml_ext.errors import ConfigError, NothingToLearnError
from pml_ext_train.data import DataSplits, LabeledImages
from pml_ext_train.recipe import Override, Recipe, flat, load_recipe, overrides_of, tables_of
from pml_ext_train.training import (
    GIGABYTE,
    Listener,
    Run,
    Silence,
    TrunkCut,
    in_units,
    refit,
    size_of,
    train_run,
)

from .candidates import Candidate
from .closed_forms import ClosedForm, coordinates
from .folds import Fold, Folds
from .scores import Scores, scores_of
from .settings import Settings
from .timing import in_minutes, seconds_of_training

BATCHES = ("sampler", "sampler.name", "sampler.m", "sampler.batch_size")  # settings of the images of a batch
NOT_OF_TRIALS = ("evaluation", "track")  # tables that are of the final run alone
OF_FEATURES = ("data", "engine")  # tables of the command that features depend on
OF_TRIALS: Settings = {
    "data.unreadable": "stop",  # those files are left out by now
    "data.cache": "none",
    "evaluation.baselines": False,
    "evaluation.training_images": 0,
    "track": [],
}


@dataclass(frozen=True)
class Workplace:
    """Where and how trials run; ``say`` receives lines about them."""

    overrides: Sequence[Override]
    folder: Path  # empty
    seed: int
    device: str
    listener: Listener
    say: Callable[[str], None]
    data: Path | None = None  # the folder that the paths in a table are relative to

    def run_of(
        self,
        candidate: Candidate,
        splits: DataSplits,
        train: LabeledImages,
        test: LabeledImages,
        settings: Settings,
        forced: Settings | None = None,
    ) -> Run:
        """The run of a candidate on some items, in a new folder; see :meth:`recipe_of`."""
        return self._run(self.recipe_of(candidate, settings, forced), candidate, splits, train, test)

    def recipe_of(self, candidate: Candidate, settings: Settings, forced: Settings | None = None) -> Recipe:
        """The recipe of a trial, without the tests of the final run.

        The command's settings take precedence over ``settings``, and ``forced`` over both.
        """
        overrides = [*overrides_of(candidate.settings | settings), *self.overrides]
        overrides = [each for each in overrides if _table_of(each) not in NOT_OF_TRIALS]
        return load_recipe(candidate.recipe, [*overrides, *overrides_of(OF_TRIALS | (forced or {}))])

    def features_of(
        self, candidate: Candidate, splits: DataSplits, images: LabeledImages, settings: Settings
    ) -> tuple[Tensor, Any]:
        """Features of images, ``[N, F]``, and the recipe's relation of labels, or None.

        If the candidate trains from activations, the same pass computes them for its trials.
        """
        given = [each for each in self.overrides if _table_of(each) in OF_FEATURES]
        quiet = replace(self, overrides=given, listener=Silence())
        recipe = quiet.recipe_of(candidate, settings)
        run = quiet._run(recipe, candidate, splits, train=images, test=images.subset([0]))
        run.cut = run.inputs.cut_of(run.stages[0])
        if run.cut is None or _size_of_activations(run, run.cut, len(images)) <= _most_of_activations(run.cut):
            run.inputs.compute(run.stages)
        return run.untrained_features("train"), run.relation

    def _run(
        self, recipe: Recipe, candidate: Candidate, splits: DataSplits, train: LabeledImages, test: LabeledImages
    ) -> Run:
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        size = recipe.data.settings.get("image_size", splits.image_size)  # of a small network's own
        parts = replace(splits, image_size=size, train=train, test=test, query=None, gallery=None, validation=None)
        return Run(recipe, candidate.recipe, folder, self.seed, self.device, None, self.listener, splits=parts)

    @property
    def set_keys(self) -> set[str]:
        """The keys that the command sets."""
        return set(flat(tables_of(self.overrides)))


class _WithoutWarnings(Silence):
    """A listener of trials: the final run warns again."""

    def __init__(self, listener: Listener) -> None:
        self.step = listener.step  # type: ignore[assignment, method-assign]
        self.iteration = listener.iteration  # type: ignore[assignment, method-assign]


def _table_of(override: Override) -> str:
    return override.key.partition(".")[0]


class Trials:
    """Scores of candidates on held-out items.

    ``features`` ``[N, F]`` belong to the training items of ``splits``, and ``relation`` to their labels.
    """

    def __init__(
        self, place: Workplace, splits: DataSplits, folds: Folds, features: Tensor, relation: Any = None
    ) -> None:
        self.folds = folds
        self.iterations = 0
        self._place = place
        self._splits = splits
        self._size = features.shape[1]
        self._features = coordinates(features)
        self._labels = torch.as_tensor(splits.train.labels, device=features.device)
        self._relation = relation

    def scores_of_closed_form(self, form: ClosedForm) -> list[Scores] | None:
        """Scores of a closed form in all folds; None if it cannot be fitted."""
        found = []
        for fold in self.folds.parts:
            try:
                layer = form.fit(self._features[fold.fitted], self._labels[fold.fitted], self._relation, self._size)
            except ValueError:
                return None
            with torch.no_grad():
                embeddings = layer(self._features[fold.held_out])
            found.append(scores_of(embeddings, self._labels[fold.held_out]))
        return found

    def scores_of_trained(self, candidate: Candidate, fold: Fold) -> Scores | None:
        """Scores of a candidate in a fold, trained on the other items.

        None, and a line, if the activations are too large, no pair adds to the loss, or the network collapses.
        """
        run = self.run_of(candidate, fold)
        if self._takes_too_much(candidate, run):
            return None
        seconds = seconds_of_training(run)
        if seconds is not None:
            self._place.say(f"  {candidate.title}: a trial takes about {in_minutes(seconds)}")
        self.iterations += run.stages.iterations_until(run.epochs)
        try:
            found = train_run(run, finish=_scores_of_run)
        except NothingToLearnError:
            self._place.say(f"  {candidate.title}: left out, since no pair of the {run.data.noun} adds to the loss")
            return None
        del run
        release_freed_memory()
        scores: Scores | None = found["scores"]
        if scores is None:
            self._place.say(f"  {candidate.title}: left out, since the trained features of each class are all equal")
        return scores

    def run_of(self, candidate: Candidate, fold: Fold) -> Run:
        """The run of a trial, with batches for the remaining classes.

        Batches that the overrides set are kept, or made smaller if there are too few classes.
        """
        train = self._splits.train.subset(fold.fitted)
        test = self._splits.train.subset(fold.held_out)
        classes = len(set(train.labels.tolist()))
        settings = candidate.trial_settings(classes, len(train) / len(self._splits.train))
        forced: Settings = {}
        if not self._place.set_keys.isdisjoint(BATCHES):
            sampler = self._place.recipe_of(candidate, {}).sampler
            most = classes * sampler.settings.get("m", sampler.batch_size)
            settings = {key: value for key, value in settings.items() if key not in BATCHES}
            if sampler.batch_size > most:
                forced = {"sampler.batch_size": most}
        quiet = replace(self._place, listener=_WithoutWarnings(self._place.listener))
        return quiet.run_of(candidate, self._splits, train, test, settings, forced)

    def _takes_too_much(self, candidate: Candidate, run: Run) -> bool:
        """Whether the activations of all training images are too large; says so."""
        cut = run.inputs.cut_of(run.stages[0])
        if cut is None:
            return False
        size = _size_of_activations(run, cut, len(self._splits.train))
        most = _most_of_activations(cut)
        if size <= most:
            return False
        self._place.say(
            f"  {candidate.title}: left out, since their activations would take {in_units(size)}, and {in_units(most)} "
            "is the most; smaller images take less: --set data.image_size=N"
        )
        return True


def _size_of_activations(run: Run, cut: TrunkCut, images: int) -> int:
    return size_of(cut, images, run.recipe.model.views)


def _most_of_activations(cut: TrunkCut) -> float:
    return cut.table.gigabytes * GIGABYTE


def _scores_of_run(run: Run, _: object) -> dict[str, Any]:
    """Scores of the held-out items, with the network that would be delivered."""
    stage = run.stages[-1]
    if run.recipe.model.refit != "none":
        try:
            refit(run, run.inputs.features("train", stage))
        except ConfigError:  # the training made the features of each class equal, and no layer can be fitted to them
            return {"scores": None}
        run.embed_features("test", run.inputs.features("test", stage))
    return {"scores": scores_of(run.embeddings("test"), run.true_labels("test"))}
