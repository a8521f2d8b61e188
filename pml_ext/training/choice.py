"""The choice of what to train on somebody's own images: what is best depends on them, and is tried on some classes.

Where images are no squares, features of their middle and of whole images, squashed to squares, are compared first.
Candidates stand in the order of their cost. A later one is taken only if it is better, on training classes that were
held out for that, than all before it, and the difference is significant. So the network that is delivered is not worse
than the pretrained features that it starts from, as far as these classes tell. Test images are not looked at.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..data import prepare
from ..distributed.devices import choose_device
from ..errors import ConfigError, MissingExtraError
from ..evaluation.calculator import RetrievalAccuracyCalculator
from ..evaluation.metrics import class_means, map_at_r
from ..files import read_toml
from ..networks.efficientnet_lite import IMAGENET, check_packages
from ..networks.memory_format import use_channels_last
from ..networks.trunks import whitened_components
from ..recipe import build_dataset, build_network, load_recipe, preprocessing_of
from ..recipe.images import OwnImages, iterations_of, settings_for_recipe
from ..recipe.schema import MOST
from .batches import embed_batches
from .folder import RECIPE
from .listener import Listener, Silence
from .loop import train_run
from .records import Records
from .run import Run

SMALL = "pml/photographs"
PRETRAINED = "pml/photographs-pretrained"
LAST_BLOCKS = "last blocks"  # the title of a candidate
TRUNK = "efficientnet-lite0"
FEATURES = 1280  # of the trunk
WHITENED = 128
HELD_OUT = 0.25  # of the training classes
FEWEST_CLASSES = 12  # training classes, of which three are held out; fewer tell nothing about others
SIGNIFICANT = 0.05  # p of a paired t-test over the classes
MOST_VIEWS = 8  # augmented views of an image whose activations are kept
VIEWS_IN_ALL = 15_000  # of all training images: about two minutes on two cores
LEAST_ASPECT = 1.1  # median of the longer side over the shorter, from which on the middle of an image is less than it
SMALL_SIDE = 64  # pixels; up to it, a small network from scratch is tried as well
TIMED_IMAGES = 32
# seconds of a step from cached activations, over those of embedding the images of its batch
STEP = 0.75

ByClass = Tensor  # MAP@R of each class that was held out, [C], float64


class Choice(NamedTuple):
    """A recipe and its settings for somebody's images; the description says how they were chosen."""

    recipe: str
    settings: list[str]
    title: str  # of the candidate


@dataclass(frozen=True)
class Candidate:
    """Something that can be delivered."""

    title: str
    recipe: str
    settings: tuple[str, ...]


def why_not() -> str:
    """Return why pretrained candidates cannot be tried here; empty if they can."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return f"several processes try nothing, and train a small network from scratch; or name a recipe: {PRETRAINED}"
    try:
        check_packages(TRUNK, IMAGENET)
    except MissingExtraError as error:
        return (
            f"trains a small network from scratch; with ImageNet weights it would first try the features of {TRUNK} "
            f"({error})"
        )
    return ""


def recipe_of_run(folder: Path, images: OwnImages) -> str | None:
    """Return the recipe file of the run, or of the first of several, that a folder has; None without one.

    ConfigError for a run of other images.
    """
    for place in (folder, *sorted(folder.glob("seed-*"))):
        if (place / RECIPE).is_file():
            name = read_toml(place / RECIPE, "run")["data"]["name"]
            if name != images.name:
                raise ConfigError(f"{place} holds a run of {name}, not of {images.name}; resume it with the same")
            return str(place / RECIPE)
    return None


def frozen_features(images: OwnImages, squash: bool) -> Candidate:
    """Return the features of the pretrained trunk: of the middle of images, or of whole ones, squashed to squares."""
    title = "frozen features of whole images" if squash else "frozen features"
    untrained = ("model.embedder=none", f"model.embedding_size={FEATURES}")
    return Candidate(title, PRETRAINED, (*_frozen_settings(images, squash), *untrained))


def candidates(images: OwnImages, squash: bool = False) -> list[Candidate]:
    """Return what can be delivered, in the order of cost: frozen, whitened, a head, last blocks, a small network.

    ``squash`` is whether pretrained trunks see whole images, squashed to squares, rather than their middle.
    """
    pretrained = _pretrained_settings(images, squash)
    frozen = _frozen_settings(images, squash)
    found = [
        frozen_features(images, squash),
        Candidate("frozen features, whitened", PRETRAINED, (*frozen, "model.embedder=pca", _whitened(images))),
        Candidate("head on frozen features", PRETRAINED, (*frozen, "schedule.epochs=20")),
        Candidate(LAST_BLOCKS, PRETRAINED, (*pretrained, f"model.views={views_of(images.training_images)}")),
    ]
    if images.side < SMALL_SIDE:
        found.append(Candidate("small network from scratch", SMALL, settings_for_recipe(SMALL, images)))
    return found


def _pretrained_settings(images: OwnImages, squash: bool) -> tuple[str, ...]:
    settings = settings_for_recipe(PRETRAINED, images)
    if squash:
        settings = (*settings, "data.images.squash=true")
    return settings


def _frozen_settings(images: OwnImages, squash: bool) -> tuple[str, ...]:
    seen_once = "data.cache=none"
    return (*_pretrained_settings(images, squash), "model.freeze=trunk", "model.views=1", seen_once)


def _whitened(images: OwnImages) -> str:
    components = min(WHITENED, images.training_images * 3 // 4 - 1)
    return f"model.embedding_size={components}"


def views_of(images: int) -> int:
    """Return the number of views of each training image: 8 of few, one of many."""
    return max(1, min(MOST_VIEWS, VIEWS_IN_ALL // images))


def choose(
    images: OwnImages,
    overrides: Iterable[str],
    seed: int,
    device: str,
    data: Path | None,
    listener: Listener | None,
    say: Callable[[str], None],
) -> Choice:
    """Try the candidates and return the simplest of the best; ``say`` gets lines about what is done and found."""
    known = candidates(images)
    if not images.splits_by_class or images.training_classes < FEWEST_CLASSES:
        first = known[0]
        say(
            f"takes frozen features of {TRUNK}: whether training makes them better can be tried on held-out classes, "
            f"of a split by class with {FEWEST_CLASSES} training classes; to train anyway, name a recipe: {PRETRAINED}"
        )
        return Choice(first.recipe, [*first.settings], first.title)

    held_out = round(images.training_classes * HELD_OUT)
    minutes = _estimated_seconds(images, known[0], device, data) / 60
    say(
        f"tries {', '.join(candidate.title for candidate in known)} of {TRUNK} on {held_out} of the training classes, "
        f"held out for that; with the training and the tests of the best, about {max(1, round(minutes))} minutes"
    )
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="pml-ext-choice-") as folder:
        trials = _Trials(images, [*overrides], Path(folder), seed, device, data, listener or Silence(), say)
        squash = trials.prefer_whole_images()
        known = candidates(images, squash)
        trials.try_all(known)
    values = trials.values
    best = simplest_of_the_best(values)
    description = description_of(best, values)
    say(f"{description}. That took {time.perf_counter() - started:.0f} s.")
    chosen = next(candidate for candidate in known if candidate.title == best)
    return Choice(chosen.recipe, [*chosen.settings, f"description={json.dumps(description)}"], best)


def simplest_of_the_best(values: Mapping[str, ByClass]) -> str:
    """Return the title of the candidate to take.

    ``values`` are by title, the simplest first. A candidate replaces an earlier one if its mean over classes is greater
    and a paired t-test over the classes has p < 0.05.
    """
    from scipy.stats import ttest_rel

    best, *others = values
    for title in others:
        difference = float((values[title] - values[best]).mean())
        p = float(ttest_rel(values[title], values[best]).pvalue)
        if difference > 0 and p < SIGNIFICANT:
            best = title
    return best


def description_of(best: str, values: Mapping[str, ByClass]) -> str:
    """Return a line with the values of all candidates, the first words of a report."""
    found = ", ".join(f"{title} {_percent(by_class)}" for title, by_class in values.items())
    classes = len(next(iter(values.values())))
    return (
        f"The {best}, chosen by MAP@R in % on {classes} held-out training classes: {found}; a more costly candidate is "
        f"taken where it is significantly better (p < {SIGNIFICANT})"
    )


def _percent(values: ByClass) -> str:
    return f"{100 * float(values.mean()):.1f}"


class _Trials:
    """Trials of candidates on training classes that are held out for that, and the values by title."""

    def __init__(
        self,
        images: OwnImages,
        overrides: list[str],
        folder: Path,
        seed: int,
        device: str,
        data: Path | None,
        listener: Listener,
        say: Callable[[str], None],
    ) -> None:
        self.values: dict[str, ByClass] = {}
        self._images = images
        self._overrides = overrides
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
        is_said = any(override.startswith("data.images") for override in self._overrides)
        if is_said or self._images.aspect < LEAST_ASPECT:
            return False
        middle = frozen_features(self._images, squash=False)
        whole = frozen_features(self._images, squash=True)
        for candidate in (middle, whole):
            run = self._run(candidate)
            self._tell({candidate.title: _map_at_r_by_class(run, run.embeddings("validation", "trunk"))})
        return simplest_of_the_best(self.values) == whole.title

    def try_all(self, known: list[Candidate]) -> None:
        """Train the candidates, and tell their values as they are found."""
        frozen, whitened, head, *others = known
        by_class = train_run(self._run(head), finish=_features_and_head)["by_class"]
        self._tell(dict(zip((frozen.title, whitened.title, head.title), by_class, strict=True)))
        for candidate in others:
            found = train_run(self._run(candidate), finish=_embeddings)
            self._tell({candidate.title: found["by_class"][0]})

    def _tell(self, found: Mapping[str, ByClass]) -> None:
        for title, by_class in found.items():
            if title not in self.values:
                self.values[title] = by_class
                self._say(f"  {title}: MAP@R {_percent(by_class)} on the classes that were held out")

    def _run(self, candidate: Candidate) -> Run:
        """Return the run of a candidate on the training classes that are not held out, in a new folder."""
        left = self._images.training_classes - round(self._images.training_classes * HELD_OUT)
        chosen = [*candidate.settings, *self._images.batches_of(left)]
        if candidate.recipe == PRETRAINED:
            share = left / self._images.training_classes
            chosen.append(f"sampler.iterations={iterations_of(self._images, share)}")
        chosen += [*self._overrides, f"evaluation.validation={HELD_OUT}", "evaluation.select=map_at_r"]
        chosen += [f"evaluation.every={MOST}", "evaluation.baselines=false", "evaluation.training_images=0", "track=[]"]
        recipe = load_recipe(candidate.recipe, chosen)
        place = Path(tempfile.mkdtemp(dir=self._folder))
        return Run(recipe, candidate.recipe, place, self._seed, self._device, self._data, self._listener)


def _features_and_head(run: Run, _: Records) -> dict[str, Any]:
    """Return MAP@R by class of the features, of their whitened components, and of the embeddings of a head."""
    features = run.embeddings("validation", "trunk")
    whitening = whitened_components(run.embeddings("train", "trunk"), WHITENED)
    rows = (features, whitening(features), run.embeddings("validation"))
    return {"by_class": [_map_at_r_by_class(run, points) for points in rows]}


def _embeddings(run: Run, _: Records) -> dict[str, Any]:
    """Return MAP@R by class of the embeddings."""
    return {"by_class": [_map_at_r_by_class(run, run.embeddings("validation"))]}


def _map_at_r_by_class(run: Run, points: Tensor) -> ByClass:
    """Return the mean MAP@R of each class of the validation images that has two of them."""
    labels = run.true_labels("validation").cpu()
    most = int(labels.bincount().max()) - 1
    calculator = RetrievalAccuracyCalculator(["precision_at_1"], k="max_bin_count", device=run.device)
    found = calculator.evaluate(nn.functional.normalize(points), labels, keep=most)
    values = map_at_r(found.right, found.relevant)
    _, means = class_means(values, labels, counted=~values.isnan())
    return means.double()


def _estimated_seconds(images: OwnImages, frozen: Candidate, device: str, data: Path | None) -> float:
    """Return the seconds of the trials, and of the training and the tests of the last blocks.

    By the time of embedding 32 images.
    """
    per_image = seconds_per_image(frozen, device, data)
    trained = images.training_images
    epochs = load_recipe(PRETRAINED).schedule.epochs
    embedded = 2 * trained + trained * views_of(trained) + 4 * images.tested_images
    seen = 64 * iterations_of(images) * 2 * epochs  # in the trial and in the training
    return per_image * (embedded + STEP * seen)


def seconds_per_image(candidate: Candidate, device: str, data: Path | None) -> float:
    """Return the seconds that the trunk of a candidate takes for an image, reading included."""
    recipe = load_recipe(candidate.recipe, candidate.settings)
    splits = build_dataset(recipe.data, data)
    preprocessing, _ = preprocessing_of(recipe, splits)
    chosen = torch.device(choose_device(device))
    network = build_network(recipe.model, preprocessing).to(chosen)
    if chosen.type == "cpu":
        use_channels_last(network, preprocessing.channels, preprocessing.image_size)
    _, plain = preprocessing.transforms()
    some = splits.train.subset(range(min(TIMED_IMAGES, len(splits.train))))
    some, _ = prepare(some, plain, skip_unreadable=True)
    some = some.with_transform(plain)
    seconds = []
    for _ in range(2):  # the first pass warms up
        started = time.perf_counter()
        for _ in embed_batches(network.trunk, network.embedder, some, chosen, batch_size=16):
            pass
        seconds.append(time.perf_counter() - started)
    return seconds[-1] / len(some)
