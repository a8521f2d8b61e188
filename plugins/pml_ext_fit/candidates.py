"""What can be delivered: features of a pretrained trunk, its last blocks, a small network."""

from collections.abc import Callable
from dataclasses import dataclass

from .closed_forms import AS_THEY_ARE, CLOSED_FORMS, ClosedForm
from .framing import DEFAULT, Framing
from .images import OwnImages
from .settings import Settings
from .trunk import FROZEN, LITE0, PRETRAINED, Trunk

SMALL = "fit/photographs"
LAST_BLOCKS = "last blocks"
TRIAL_ITERATIONS = 20  # of an epoch when last blocks are tried, at most
SMALL_SIDE = 64  # pixels; a small network from scratch is tried for smaller images
CHANNELS = 32  # of the small network's last feature maps
SHRINKS = 16  # side of an image over the side of these maps
# why unwhitened features are delivered, in descriptions
NOTHING_TO_LEARN = "the classes are so far apart that no pair adds to the loss, so there is nothing to learn"


@dataclass(frozen=True)
class Candidate:
    """A recipe with settings that fit the data."""

    title: str
    recipe: str
    settings: Settings
    description: str = ""  # for a report without trials; empty: the recipe's own
    form: ClosedForm | None = None  # None: trained
    trial_settings: Callable[[int, float], Settings] = lambda classes, share: {}  # for a share of the items
    most_iterations: int = 2_000  # of all its trials


def features_of_images(
    images: OwnImages, framing: Framing = DEFAULT, form: ClosedForm = AS_THEY_ARE, trunk: Trunk = LITE0
) -> Candidate:
    """Features of the pretrained trunk, unwhitened or whitened."""
    title = f"frozen features{form.title}"
    no_head: Settings = FROZEN | {"optimizer.head_lr_factor": 1.0}
    settings = images.settings_of(PRETRAINED, framing) | trunk.settings | no_head | form.settings(trunk.features)
    return Candidate(title, PRETRAINED, settings, f"{title.capitalize()} of {trunk.title}", form)


def last_blocks(
    images: OwnImages, framing: Framing = DEFAULT, trunk: Trunk = LITE0, first: str | None = None
) -> Candidate:
    """The last blocks of the trunk and a head, trained from activations that are computed once.

    The head starts as whitening within classes, and is fitted again to the trained features. ``first`` is the first
    block that trains, by default the trunk's ``last_blocks``.
    """

    def trial_settings(classes: int, share: float) -> Settings:
        iterations = min(TRIAL_ITERATIONS, images.iterations(share))
        return images.batches_of(classes) | {"sampler.iterations": iterations}

    settings = images.settings_of(PRETRAINED, framing) | trunk.settings_of_blocks
    title = LAST_BLOCKS
    if first is not None:
        settings["model.freeze"] = {"until": first}
        title += f" from {first}"
    return Candidate(title, PRETRAINED, settings, trial_settings=trial_settings)


def small_network(images: OwnImages) -> Candidate:
    """A small convolutional network from scratch."""
    return Candidate(
        "small network from scratch",
        SMALL,
        images.settings_of(SMALL),
        trial_settings=lambda classes, share: images.batches_of(classes),
    )


def untrained_network(images: OwnImages) -> Candidate:
    """Features of the small network with random weights."""
    untrained: Settings = {
        "model.freeze": "trunk",
        "model.trunk.weights": "random",
        "model.embedder": "none",
        "model.embedding_size": CHANNELS * (images.side // SHRINKS) ** 2,
    }
    return Candidate("features of a small network with random weights", SMALL, images.settings_of(SMALL) | untrained)


def closed_forms(images: OwnImages, framing: Framing, trunk: Trunk) -> list[Candidate]:
    """Features, unwhitened and whitened, the simplest first."""
    return [features_of_images(images, framing, form, trunk) for form in CLOSED_FORMS]


def trained(images: OwnImages, framing: Framing, trunk: Trunk) -> list[Candidate]:
    """Last blocks of a trunk that can be cut, and a network from scratch for small images."""
    found = []
    if trunk.last_blocks is not None:
        found.append(last_blocks(images, framing, trunk))
    if images.side < SMALL_SIDE:
        found.append(small_network(images))
    return found


@dataclass(frozen=True)
class Choice:
    """A recipe and its settings; the description says how they were chosen."""

    title: str  # of the candidate
    recipe: str
    settings: Settings
    seconds: float = 0.0  # spent on trials


def features_as_they_are(images: OwnImages, framing: Framing, trunk: Trunk | None) -> Choice:
    """Features to deliver where there is nothing to learn; without a trunk, of a small random network."""
    candidate = untrained_network(images) if trunk is None else features_of_images(images, framing, trunk=trunk)
    description = f"{candidate.title.capitalize()}: {NOTHING_TO_LEARN}"
    return Choice(candidate.title, candidate.recipe, candidate.settings | {"description": description})
