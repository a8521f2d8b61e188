"""``pml-ext fit FOLDER --fine-tune``: after what the choice found to be best, the whole network trains.

The first stage trains the last blocks, from a head in closed form. The second trains all blocks, with the batch norms
of the pretrained trunk, at the end of the same cosine.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pml_ext.errors import ConfigError
from pml_ext_train.recipe import Override, Recipe, load_recipe, overrides_of

from .candidates import SMALL, Choice
from .framing import framing_of
from .images import OwnImages
from .selection import Decision
from .timing import seconds_per_image
from .trials import Workplace
from .trunk import BLOCKS_FIRST, Trunk

# seconds of a step of the whole network, over those of embedding the images of its batch
WHOLE_STEP = 3.0


def check_resumed(folder: Path, name: str, recipe: Recipe) -> None:
    """Raise ConfigError for a run that was begun without fine-tuning; ``name`` is that of its recipe.

    A small network is trained whole with and without fine-tuning.
    """
    if not recipe.stages and name != SMALL:
        raise ConfigError(f"{folder} was begun without --fine-tune; resume it without, or choose another --out")


def check_overrides(images: OwnImages, trunk: Trunk, overrides: Iterable[Override]) -> None:
    """Refuse settings before the trials that the training after them would refuse, such as too few epochs."""
    settings = images.settings_of(BLOCKS_FIRST) | trunk.settings_of_fine_tuning
    load_recipe(BLOCKS_FIRST, [*overrides_of(settings), *overrides])


def without_epochs(overrides: Iterable[Override]) -> list[Override]:
    """Return overrides without the epochs, which are those of both stages, and not of the trials."""
    return [override for override in overrides if override.key != "schedule.epochs"]


def continued(decision: Decision, images: OwnImages, trunk: Trunk, place: Workplace) -> Choice:
    """Return what was chosen, followed by a stage of the whole network, and say it in a line."""
    candidate = decision.candidate
    if candidate.recipe == SMALL:
        place.say("the small network is trained whole as it is: --fine-tune changes nothing here")
        return decision.choice()
    settings = images.settings_of(BLOCKS_FIRST, framing_of(candidate.settings)) | trunk.settings_of_fine_tuning
    of_images = ("data.images.", "sampler.")
    settings |= {key: value for key, value in candidate.settings.items() if key.startswith(of_images)}
    tables = load_recipe(BLOCKS_FIRST, [*overrides_of(settings), *place.overrides])
    last = tables.all_stages()[-1]
    assert last.sampler is not None
    assert last.sampler.iterations is not None
    seen = last.epochs * last.sampler.iterations * last.sampler.batch_size
    first = "last blocks" if trunk.last_blocks is not None else "head"
    then = f"first the {first} for {tables.stages[0].epochs} epochs, then the whole network for {last.epochs}"
    line = f"fine-tunes: {then}"
    per_image = seconds_per_image(candidate, place.overrides, place.device, place.data)
    if per_image is not None:
        minutes = max(1, round(WHOLE_STEP * seen * per_image.passing / 60))
        line += f", which takes about {minutes} minutes more"
    place.say(line)
    description = decision.description or tables.description
    settings["description"] = f"{description}. Fine-tuned: {then}"
    return Choice(candidate.title, BLOCKS_FIRST, settings)
