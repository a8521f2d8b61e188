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
from collections.abc import Callable, Iterable
from pathlib import Path

from ..data import LabeledImages, hold_out_classes, prepare
from ..data.splits import classes_of_two
from ..errors import MissingExtraError
from ..networks.efficientnet_lite import IMAGENET, check_packages
from ..recipe import Override, build_dataset, load_recipe, preprocessing_of
from ..recipe.images import OwnImages
from ..recipe.own_data import parsed_all
from ..training.listener import Listener, Silence
from ..training.trackers import import_tracker
from .candidates import PRETRAINED, TRUNK, Candidate, Choice, candidates
from .decision import description_of, simplest_of_the_best
from .timing import estimated_seconds, seconds_per_image
from .trials import HELD_OUT, Trials

FEWEST_CLASSES = 12  # training classes, of which three are held out; fewer tell nothing about others
FEWEST_COMPARED = 3  # held-out classes with two images, whose MAP@R is compared


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


def check_settings(images: OwnImages, overrides: Iterable[Override]) -> None:
    """Refuse settings, or trackers that are not installed, before the trials rather than after them."""
    frozen = candidates(images)[0]
    recipe = load_recipe(frozen.recipe, [*parsed_all(frozen.settings), *overrides])
    for tracker in recipe.track:
        import_tracker(tracker.name)


def choose(
    images: OwnImages,
    overrides: Iterable[Override],
    seed: int,
    device: str,
    data: Path | None,
    listener: Listener | None,
    say: Callable[[str], None],
) -> Choice:
    """Try the candidates and return the simplest of the best; ``say`` gets lines about what is done and found."""
    overrides = [*overrides]
    known = candidates(images)
    if not images.splits_by_class or images.training_classes < FEWEST_CLASSES:
        return _untried(known[0], f"of a split by class with {FEWEST_CLASSES} training classes", say)

    training = readable_training_images(known[0], overrides, data, say)
    images = images.with_training_images(training)
    known = candidates(images)
    if images.training_classes < FEWEST_CLASSES:
        return _untried(known[0], f"of {FEWEST_CLASSES} training classes with images that can be read", say)
    if _compared_classes(training, seed) < FEWEST_COMPARED:
        return _untried(known[0], f"of which {FEWEST_COMPARED} have two images", say)

    held_out = round(images.training_classes * HELD_OUT)
    titles = ", ".join(candidate.title for candidate in known)
    line = f"tries {titles} of {TRUNK} on {held_out} of the training classes, held out for that"
    per_image = seconds_per_image(known[0], overrides, device, data)
    if per_image is not None:
        minutes = max(1, round(estimated_seconds(images, per_image) / 60))
        line += f"; with the training and the tests of the best, about {minutes} minutes"
    say(line)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="pml-ext-choice-") as folder:
        trials = Trials(images, overrides, Path(folder), seed, device, data, listener or Silence(), say)
        squash = trials.prefer_whole_images()
        known = candidates(images, squash)
        trials.try_all(known)
    values = trials.values
    best = simplest_of_the_best(values)
    description = description_of(best, values)
    say(f"{description}. That took {time.perf_counter() - started:.0f} s.")
    chosen = next(candidate for candidate in known if candidate.title == best)
    return Choice(chosen.recipe, [*chosen.settings, f"description={json.dumps(description)}"], best)


def _untried(frozen: Candidate, wanted: str, say: Callable[[str], None]) -> Choice:
    """Return the frozen features without a trial; ``wanted`` are the held-out classes that a trial needs."""
    say(
        f"takes frozen features of {TRUNK}: whether training makes them better can be tried on held-out classes, "
        f"{wanted}; to train anyway, name a recipe: {PRETRAINED}"
    )
    return Choice(frozen.recipe, [*frozen.settings], frozen.title)


def readable_training_images(
    candidate: Candidate, overrides: Iterable[Override], data: Path | None, say: Callable[[str], None]
) -> LabeledImages:
    """Return the training images without files that cannot be read, which are left out of the trials and the run."""
    recipe = load_recipe(candidate.recipe, [*parsed_all(candidate.settings), *overrides])
    splits = build_dataset(recipe.data, data)
    preprocessing, _ = preprocessing_of(recipe, splits)
    _, plain = preprocessing.transforms()
    skips = recipe.data.unreadable == "skip"
    readable, _ = prepare(splits.train, plain, skip_unreadable=skips, workers=recipe.data.workers, tell=say)
    return readable


def _compared_classes(training: LabeledImages, seed: int) -> int:
    """Return the number of classes with two images among those that the trials hold out."""
    _, held_out = hold_out_classes(training, HELD_OUT, seed)
    return classes_of_two(held_out.labels)
