"""``fit --fine-tune``: a second stage trains the whole network.

The first stage trains the last blocks, from a head in closed form. The second trains all blocks at the end of the same
cosine; batch norms keep the statistics of the pretrained trunk.
"""

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

# time of a training step over the time to embed its batch
WHOLE_STEP = 3.0


def check_resumed(folder: Path, name: str, recipe: Recipe) -> None:
    """Raise ConfigError for a run of recipe ``name`` that was started without fine-tuning.

    A small network is trained whole in both cases.
    """
    if not recipe.stages and name != SMALL:
        raise ConfigError(f"{folder} was begun without --fine-tune; resume it without, or choose another --out")


def check_overrides(images: OwnImages, trunk: Trunk, overrides: Iterable[Override]) -> None:
    """Raise errors of settings, such as too few epochs, before the trials."""
    fitting = overrides_of(images.settings_of(BLOCKS_FIRST) | trunk.settings_of_fine_tuning)
    load_recipe(BLOCKS_FIRST, [*fitting, *overrides])


def without_epochs(overrides: Iterable[Override]) -> list[Override]:
    """Overrides for trials: the number of epochs is meant for both stages."""
    return [override for override in overrides if override.key != "schedule.epochs"]


def continued(decision: Decision, images: OwnImages, trunk: Trunk, place: Workplace) -> Choice:
    """Add the stage of the whole network to a decision."""
    candidate = decision.candidate
    if candidate.recipe == SMALL:
        place.say("--fine-tune changes nothing here: the small network is always trained whole")
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
    per_image = seconds_per_image(candidate, place.overrides, place.device, place.data)
    about = ""
    if per_image is not None:
        about = f"; about {max(1, round(WHOLE_STEP * seen * per_image.passing / 60))} more minutes"
    place.say(f"fine-tunes: {then}{about}")
    settings["description"] = f"{decision.description or tables.description}. Fine-tuned: {then}"
    return Choice(candidate.title, BLOCKS_FIRST, settings)
