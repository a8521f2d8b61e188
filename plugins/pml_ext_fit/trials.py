"""Trials of candidates on training classes that are held out for that."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pml_ext.tool import (
    MOST,
    Listener,
    NothingToLearnError,
    Override,
    Recipe,
    RetrievalAccuracyCalculator,
    Run,
    activations,
    flat,
    load_recipe,
    overrides_of,
    tables_of,
    train_run,
    whitened_components,
)

from .candidates import PRETRAINED, ByClass, Candidate, FrozenFeatures
from .decision import Scored, percent_of, simplest_of_the_best
from .images import OwnImages
from .settings import Settings

HELD_OUT = 0.25  # of the training classes
LEAST_ASPECT = 1.1  # median of the longer side over the shorter, from which on the middle of an image is less than it
BATCHES = ("sampler", "sampler.name", "sampler.m", "sampler.batch_size")  # settings of the images of a batch
CUTS = ("data.images.squash", "data.images.crop", "data.images.resize")  # settings of the part of an image that is seen

TESTS_OF_TRIALS: Settings = {
    "evaluation.validation": HELD_OUT,
    "evaluation.validation_trains": False,
    "evaluation.held_out": "drawn",
    "evaluation.select": "map_at_r",
    "evaluation.select_on": "validation",
    "evaluation.every": MOST,
    "evaluation.baselines": False,
    "evaluation.training_images": 0,
    "track": [],
}

_FOLD = "evaluation.fold"  # a part of the run's own validation classes; trials hold out others


class Trials:
    """Trials of candidates on training classes that are held out for that; ``scored`` are those that were tried."""

    def __init__(
        self,
        images: OwnImages,
        overrides: Iterable[Override],
        folder: Path,
        seed: int,
        device: str,
        data: Path | None,
        listener: Listener,
        say: Callable[[str], None],
    ) -> None:
        overrides = [*overrides]
        self.scored: list[Scored] = []
        self._images = images
        self._overrides = [override for override in overrides if override.key != _FOLD]
        self._set_keys = flat(tables_of(overrides)).keys()
        self._folder = folder
        self._seed = seed
        self._device = device
        self._data = data
        self._listener = listener
        self._say = say
        self._frozen_runs: dict[bool, Run] = {}  # by whether images are squashed

    def prefer_whole_images(self) -> bool:
        """Return whether features of whole images are significantly better than those of their middle.

        False for squares, and where the overrides say how images are cut.
        """
        cut_is_given = not self._set_keys.isdisjoint(CUTS)
        if cut_is_given or self._images.aspect < LEAST_ASPECT:
            return False
        whole = FrozenFeatures(self._images, squash=True)
        self.try_all([FrozenFeatures(self._images), whole])
        return simplest_of_the_best(self.scored).candidate == whole

    def try_all(self, known: Iterable[Candidate]) -> None:
        """Score the candidates that were not tried yet, and tell their values as they are found."""
        for candidate in known:
            if any(scored.candidate == candidate for scored in self.scored):
                continue
            by_class = candidate.score(self)
            if by_class is not None:
                self.scored.append(Scored(candidate, by_class))
                self._say(f"  {candidate.title}: MAP@R {percent_of(by_class)} on the classes that were held out")

    # Ways to score a candidate

    def score_of_features(self, squash: bool) -> ByClass:
        """Return MAP@R by class of the features of a pretrained trunk."""
        run = self._frozen_run(squash)
        return map_at_r_by_class(run, run.embeddings("validation", "trunk"))

    def score_of_whitened(self, squash: bool, components: int) -> ByClass:
        """Return MAP@R by class of whitened principal components of features, fitted on the other classes."""
        run = self._frozen_run(squash)
        whitening = whitened_components(run.embeddings("train", "trunk"), components)
        return map_at_r_by_class(run, whitening(run.embeddings("validation", "trunk")))

    def score_of_trained(self, candidate: Candidate) -> ByClass | None:
        """Return MAP@R by class of embeddings that are trained on the other classes.

        None, and a line, where the activations of all training images are more than may be kept, and where no pair of
        the images adds to the loss.
        """
        run = self._run(candidate)
        if self._takes_too_much(candidate, run):
            return None
        try:
            found = train_run(run, finish=_score_of_embeddings)
        except NothingToLearnError:
            self._say(f"  {candidate.title}: left out, since no pair of the images adds to the loss")
            return None
        by_class: ByClass = found["map_at_r"]
        return by_class

    def _takes_too_much(self, candidate: Candidate, run: Run) -> bool:
        """Return whether the activations of all training images are more than may be kept; say so."""
        cut = run.inputs.cut_of(run.stages[0])
        if cut is None:
            return False
        size = activations.size_of(cut, self._images.training_images, run.recipe.model.views)
        most = cut.table.gigabytes * activations.GIGABYTE
        if size <= most:
            return False
        found = (
            f"their activations would take {activations.in_units(size)}, and {activations.in_units(most)} is the most"
        )
        self._say(f"  {candidate.title}: left out, since {found}; smaller images take less: --set data.image_size=N")
        return True

    def _frozen_run(self, squash: bool) -> Run:
        """Return the run whose trunk computes features; its images are read once."""
        if squash not in self._frozen_runs:
            self._frozen_runs[squash] = self._run(FrozenFeatures(self._images, squash))
        return self._frozen_runs[squash]

    def _run(self, candidate: Candidate) -> Run:
        """Return the run of a candidate on the training classes that are not held out, in a new folder."""
        recipe = self._recipe_of(candidate)
        place = Path(tempfile.mkdtemp(dir=self._folder))
        return Run(recipe, candidate.recipe, place, self._seed, self._device, self._data, self._listener)

    def _recipe_of(self, candidate: Candidate) -> Recipe:
        """Return the recipe of a trial, with batches of the classes that are left.

        Where the overrides set batches, they are the final run's, made smaller if the classes do not fill them.
        """
        left = self._images.training_classes - round(self._images.training_classes * HELD_OUT)
        settings = dict(candidate.settings)
        batches_are_given = not self._set_keys.isdisjoint(BATCHES)
        if not batches_are_given:
            settings |= self._images.batches_of(left)
        if candidate.recipe == PRETRAINED:
            share = left / self._images.training_classes
            settings["sampler.iterations"] = self._images.iterations(share)
        overrides = [*overrides_of(settings), *self._overrides, *overrides_of(TESTS_OF_TRIALS)]
        recipe = load_recipe(candidate.recipe, overrides)
        most = left * recipe.sampler.settings.get("m", recipe.sampler.batch_size)
        if batches_are_given and recipe.sampler.batch_size > most:
            recipe = load_recipe(candidate.recipe, [*overrides, Override("sampler.batch_size", most)])
        return recipe


def _score_of_embeddings(run: Run, _: object) -> dict[str, Any]:
    """Return MAP@R by class of the embeddings."""
    return {"map_at_r": map_at_r_by_class(run, run.embeddings("validation"))}


def map_at_r_by_class(run: Run, points: Tensor) -> ByClass:
    """Return the mean MAP@R of each class of the validation images that has two of them."""
    metric = "mean_average_precision_at_r"
    calculator = RetrievalAccuracyCalculator([metric], k="max_bin_count", return_per_class=True, device=run.device)
    found = calculator.evaluate(nn.functional.normalize(points), run.true_labels("validation").cpu())
    return torch.tensor(found.accuracies[metric], dtype=torch.float64)
