"""``pml-ext train --images FOLDER --fine-tune``: after what the choice found to be best, the whole network trains.

The first stage is the chosen one: the last blocks, or a head, which features need before their trunk is trained by a
loss. The second trains all blocks, with the batch norms of the pretrained trunk, at the end of the same cosine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from ..errors import ConfigError
from ..networks.efficientnet_lite import IMAGENET, check_packages
from ..recipe import Override, Recipe, load_recipe, parse_override
from ..recipe.images import OwnImages, settings_for_recipe
from ..recipe.own_data import parsed_all
from .candidates import LAST_BLOCKS, SMALL, TRUNK, Candidate, Choice
from .timing import STEP, seconds_per_image

BLOCKS_FIRST = "pml/photographs-fine-tuned"
HEAD_FIRST = "pml/photographs-fine-tuned-head"
_KEPT = ("data.images.squash=", "model.views=", "sampler.")  # settings of what was chosen that its fine-tuning keeps
# seconds of a step of the whole network, over those of embedding the images of its batch; a step takes about four times
# one of the last blocks (python -m benchmarks.last_blocks)
WHOLE_STEP = 4 * STEP


def check_possible() -> None:
    """Refuse what cannot be fine-tuned: ConfigError for several processes, MissingExtraError without the weights."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            f"--fine-tune begins with trials, which several processes do not make; leave out torchrun, or type: "
            f"pml-ext train {BLOCKS_FIRST} --images FOLDER"
        )
    check_packages(TRUNK, IMAGENET)


def check_resumed(folder: Path, name: str, recipe: Recipe) -> None:
    """Raise ConfigError for a run that was begun without fine-tuning; ``name`` is that of its recipe.

    A small network is trained whole with and without fine-tuning.
    """
    if not recipe.stages and name != SMALL:
        raise ConfigError(f"{folder} was begun without --fine-tune; resume it without, or choose another --out")


def check_settings(images: OwnImages, overrides: Iterable[Override]) -> None:
    """Refuse settings before the trials that the training after them would refuse, such as too few epochs."""
    overrides = [*overrides]
    for recipe in (BLOCKS_FIRST, HEAD_FIRST):
        load_recipe(recipe, [*parsed_all(settings_for_recipe(recipe, images)), *overrides])


def without_epochs(overrides: Iterable[Override]) -> list[Override]:
    """Return overrides without the epochs, which are those of both stages, and not of the trials."""
    return [override for override in overrides if override.key != "schedule.epochs"]


def continued(
    chosen: Choice,
    images: OwnImages,
    overrides: Iterable[Override],
    device: str,
    data: Path | None,
    say: Callable[[str], None],
) -> Choice:
    """Return what was chosen, followed by a stage of the whole network; ``say`` gets a line about it."""
    if chosen.recipe == SMALL:
        say("the small network is trained whole as it is: --fine-tune changes nothing here")
        return chosen
    overrides = [*overrides]
    if chosen.title == LAST_BLOCKS:
        recipe = BLOCKS_FIRST
        first = "the last blocks"
    else:
        recipe = HEAD_FIRST
        first = "a head"  # which features need before a loss can train their trunk
    settings = [*settings_for_recipe(recipe, images)]
    settings += [setting for setting in chosen.settings if setting.startswith(_KEPT)]
    tables = load_recipe(recipe, [*parsed_all(settings), *overrides])
    last = tables.all_stages()[-1]
    assert last.sampler is not None
    assert last.sampler.iterations is not None
    seen = last.epochs * last.sampler.iterations * last.sampler.batch_size
    candidate = Candidate(first, recipe, tuple(settings))
    then = f"first {first} for {tables.stages[0].epochs} epochs, then the whole network for {last.epochs}"
    line = f"fine-tunes: {then}"
    per_image = seconds_per_image(candidate, overrides, device, data)
    if per_image is not None:
        minutes = max(1, round(WHOLE_STEP * seen * per_image / 60))
        line += f", which takes about {minutes} minutes more"
    say(line)
    description = tables.description
    for setting in chosen.settings:
        given = parse_override(setting)
        if given.key == "description":
            description = given.value
    description = f"{description}. Fine-tuned: {then}"
    return Choice(recipe, [*settings, f"description={json.dumps(description)}"], chosen.title)
