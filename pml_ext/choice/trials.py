"""Trials of candidates on training classes that are held out for that."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..evaluation.calculator import RetrievalAccuracyCalculator
from ..networks.trunks import whitened_components
from ..recipe import Override, Recipe, flat, load_recipe, tables_of
from ..recipe.images import OwnImages, iterations_of
from ..recipe.own_data import parsed_all
from ..recipe.schema import MOST
from ..training.activations import GIGABYTE, in_units, size_of
from ..training.listener import Listener
from ..training.loop import train_run
from ..training.records import Records
from ..training.run import Run
from .candidates import PRETRAINED, WHITENED, Candidate, frozen_features
from .decision import ByClass, percent_of, simplest_of_the_best

HELD_OUT = 0.25  # of the training classes
LEAST_ASPECT = 1.1  # median of the longer side over the shorter, from which on the middle of an image is less than it
BATCHES = ("sampler", "sampler.name", "sampler.m", "sampler.batch_size")  # settings of the images of a batch
CUTS = ("data.images.squash", "data.images.crop", "data.images.resize")  # settings of the part of an image that is seen

TESTS_OF_TRIALS = (
    f"evaluation.validation={HELD_OUT}",
    "evaluation.validation_trains=false",
    "evaluation.held_out=drawn",
    "evaluation.select=map_at_r",
    "evaluation.select_on=validation",
    f"evaluation.every={MOST}",
    "evaluation.baselines=false",
    "evaluation.training_images=0",
    "track=[]",
)

_FOLD = "evaluation.fold"  # a part of the run's own validation classes; trials hold out others


class Trials:
    """Trials of candidates on training classes that are held out for that, and the values by title."""

    def __init__(
        self,
        images: OwnImages,
        overrides: list[Override],
        folder: Path,
        seed: int,
        device: str,
        data: Path | None,
        listener: Listener,
        say: Callable[[str], None],
    ) -> None:
        self.values: dict[str, ByClass] = {}
        self._images = images
        self._overrides = [override for override in overrides if override.key != _FOLD]
        self._set_keys = flat(tables_of(overrides)).keys()
        self._folder = folder
        self._seed = seed
        self._device = device
        self._data = data
        self._listener = listener
        self._say = say

    def prefer_whole_images(self) -> bool:
        """Return whether features of whole images are significantly better than those of their middle.

        False for squares, and where the overrides say how images are cut.
        """
        cut_is_given = not self._set_keys.isdisjoint(CUTS)
        if cut_is_given or self._images.aspect < LEAST_ASPECT:
            return False
        middle = frozen_features(self._images, squash=False)
        whole = frozen_features(self._images, squash=True)
        for candidate in (middle, whole):
            run = self._run(candidate)
            self._tell(candidate.title, _map_at_r_by_class(run, run.embeddings("validation", "trunk")))
        return simplest_of_the_best(self.values) == whole.title

    def try_all(self, known: list[Candidate]) -> None:
        """Train the candidates, and tell their values as they are found."""
        frozen, whitened, head, *others = known
        found = train_run(self._run(head), finish=_features_and_head)
        self._tell(frozen.title, found["features"])
        self._tell(whitened.title, found["whitened"])
        self._tell(head.title, found["embeddings"])
        for candidate in others:
            run = self._run(candidate)
            if self._takes_too_much(candidate, run):
                continue
            found = train_run(run, finish=_embeddings)
            self._tell(candidate.title, found["embeddings"])

    def _takes_too_much(self, candidate: Candidate, run: Run) -> bool:
        """Return whether the activations of all training images are more than may be kept; say so."""
        cut = run.inputs.cut_of(run.stages[0])
        if cut is None:
            return False
        size = size_of(cut, self._images.training_images, run.recipe.model.views)
        most = cut.table.gigabytes * GIGABYTE
        if size <= most:
            return False
        found = f"their activations would take {in_units(size)}, and {in_units(most)} is the most"
        self._say(f"  {candidate.title}: left out, since {found}; smaller images take less: --set data.image_size=N")
        return True

    def _tell(self, title: str, by_class: ByClass) -> None:
        if title not in self.values:
            self.values[title] = by_class
            self._say(f"  {title}: MAP@R {percent_of(by_class)} on the classes that were held out")

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
        settings = [*candidate.settings]
        batches_are_given = not self._set_keys.isdisjoint(BATCHES)
        if not batches_are_given:
            settings += self._images.batches_of(left)
        if candidate.recipe == PRETRAINED:
            share = left / self._images.training_classes
            settings.append(f"sampler.iterations={iterations_of(self._images, share)}")
        overrides = [*parsed_all(settings), *self._overrides, *parsed_all(TESTS_OF_TRIALS)]
        recipe = load_recipe(candidate.recipe, overrides)
        most = left * recipe.sampler.settings.get("m", recipe.sampler.batch_size)
        if batches_are_given and recipe.sampler.batch_size > most:
            recipe = load_recipe(candidate.recipe, [*overrides, Override("sampler.batch_size", most)])
        return recipe


def _features_and_head(run: Run, records: Records) -> dict[str, Any]:
    """Return MAP@R by class of the features, of their whitened components, and of the embeddings of a head."""
    features = run.embeddings("validation", "trunk")
    whitening = whitened_components(run.embeddings("train", "trunk"), WHITENED)
    return {
        "features": _map_at_r_by_class(run, features),
        "whitened": _map_at_r_by_class(run, whitening(features)),
        **_embeddings(run, records),
    }


def _embeddings(run: Run, _: Records) -> dict[str, Any]:
    """Return MAP@R by class of the embeddings."""
    return {"embeddings": _map_at_r_by_class(run, run.embeddings("validation"))}


def _map_at_r_by_class(run: Run, points: Tensor) -> ByClass:
    """Return the mean MAP@R of each class of the validation images that has two of them."""
    metric = "mean_average_precision_at_r"
    calculator = RetrievalAccuracyCalculator([metric], k="max_bin_count", return_per_class=True, device=run.device)
    found = calculator.evaluate(nn.functional.normalize(points), run.true_labels("validation").cpu())
    return torch.tensor(found.accuracies[metric], dtype=torch.float64)
