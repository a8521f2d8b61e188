"""The choice of what to train on somebody's own images: what is best depends on them, and is tried on some classes.

Where images are no squares, features of their middle and of whole images, squashed to squares, are compared first.
Candidates stand in the order of their cost. A later one is taken only if it is better, on training classes that were
held out for that, than all before it, and the difference is significant. So the network that is delivered is not worse
than the pretrained features that it starts from, as far as these classes tell. Test images are not looked at.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from pml_ext.plugin import LabeledImages
from pml_ext.tool import (
    Listener,
    MissingExtraError,
    Override,
    build_dataset,
    classes_of_two,
    hold_out_classes,
    import_tracker,
    load_recipe,
    overrides_of,
    prepare,
    preprocessing_of,
)

from .candidates import PRETRAINED, TRUNK, Candidate, Choice, candidates
from .decision import description_of, simplest_of_the_best
from .images import OwnImages
from .timing import seconds_per_image
from .trials import HELD_OUT, Trials

FEWEST_CLASSES = 12  # training classes, of which three are held out; fewer tell nothing about others
FEWEST_COMPARED = 3  # held-out classes with two images, whose MAP@R is compared


@dataclass(frozen=True)
class Decision:
    """The candidate to deliver; the description says how it was chosen, and is empty where nothing was tried."""

    candidate: Candidate
    description: str = ""

    def choice(self) -> Choice:
        """Return the recipe and its settings."""
        settings = self.candidate.settings
        description = self.description or self.candidate.description
        if description:
            settings = settings | {"description": description}
        return Choice(self.candidate.title, self.candidate.recipe, settings)


def why_not() -> str:
    """Return why pretrained candidates cannot be tried here; empty if they can."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return f"several processes try nothing, and train a small network from scratch; or name a recipe: {PRETRAINED}"
    try:
        load_recipe(PRETRAINED)
    except MissingExtraError as error:
        return (
            f"trains a small network from scratch; with ImageNet weights it would first try the features of {TRUNK} "
            f"({error})"
        )
    return ""


def check_settings(images: OwnImages, overrides: Iterable[Override]) -> None:
    """Refuse settings, or trackers that are not installed, before the trials rather than after them."""
    frozen = candidates(images)[0]
    recipe = load_recipe(frozen.recipe, [*overrides_of(frozen.settings), *overrides])
    for tracker in recipe.track:
        import_tracker(tracker.name)


def choose(
    images: OwnImages,
    overrides: Iterable[Override],
    folder: Path,
    seed: int,
    device: str,
    data: Path | None,
    listener: Listener,
    say: Callable[[str], None],
) -> Decision:
    """Try the candidates in an empty folder and return the simplest of the best.

    ``say`` gets lines about what is done and found.
    """
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
        seconds = sum(candidate.seconds(per_image) for candidate in known)
        line += f"; with the training and the tests of the best, about {max(1, round(seconds / 60))} minutes"
    say(line)
    started = time.perf_counter()
    trials = Trials(images, overrides, folder, seed, device, data, listener, say)
    squash = trials.prefer_whole_images()
    trials.try_all(candidates(images, squash))
    best = simplest_of_the_best(trials.scored)
    description = description_of(best, trials.scored)
    say(f"{description}. That took {time.perf_counter() - started:.0f} s.")
    return Decision(best.candidate, description)


def _untried(frozen: Candidate, wanted: str, say: Callable[[str], None]) -> Decision:
    """Return the frozen features without a trial; ``wanted`` are the held-out classes that a trial needs."""
    say(
        f"takes frozen features of {TRUNK}: whether training makes them better can be tried on held-out classes, "
        f"{wanted}; to train anyway, name a recipe: {PRETRAINED}"
    )
    return Decision(frozen)


def readable_training_images(
    candidate: Candidate, overrides: Iterable[Override], data: Path | None, say: Callable[[str], None]
) -> LabeledImages:
    """Return the training images without files that cannot be read, which are left out of the trials and the run."""
    recipe = load_recipe(candidate.recipe, [*overrides_of(candidate.settings), *overrides])
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
