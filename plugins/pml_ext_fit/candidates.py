"""What can be delivered for somebody's images: features of a pretrained trunk, last blocks, a small network."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Protocol

from .closed_forms import AS_THEY_ARE, CLOSED_FORMS, ClosedForm
from .folds import Fold
from .framing import DEFAULT, Framing
from .images import OwnImages
from .scores import Scores
from .settings import Settings
from .trunk import LITE0, PRETRAINED, Trunk

SMALL = "fit/photographs"
SMALL_SIDE = 64  # pixels; up to it, a small network from scratch is tried as well
CHANNELS = 32  # of the last feature maps of the small network
SHRINKS = 16  # times the side of an image over that of these maps
# why features are taken as they are, in descriptions
NOTHING_TO_LEARN = "the classes are so far apart in them that no pair adds to the loss, and there is nothing to learn"


class HeldOut(Protocol):
    """Training items that are held out in folds, on which candidates are scored."""

    iterations: int  # that were trained so far

    def scores_of_closed_form(self, form: ClosedForm) -> list[Scores] | None:
        """Return those of a closed form in all folds; None where it cannot be fitted."""

    def scores_of_trained(self, candidate: Trained, fold: Fold) -> Scores | None:
        """Return those of a candidate that is trained on the other items; None, and a line, where it cannot be."""


class Candidate(ABC):
    """Something that can be delivered: a recipe with settings that fit the data."""

    recipe: ClassVar[str]

    @property
    @abstractmethod
    def title(self) -> str:
        """The name for readers."""

    @property
    @abstractmethod
    def settings(self) -> Settings:
        """The settings of the recipe."""

    @property
    def description(self) -> str:
        """A line for the report where nothing was tried; empty for that of the recipe."""
        return ""


class InClosedForm(Candidate):
    """A candidate that costs nothing beside the features: they are given, or computed once."""

    form: ClosedForm

    def scores(self, held_out: HeldOut) -> list[Scores] | None:
        """Return the scores in all folds; None where the features cannot be whitened."""
        return held_out.scores_of_closed_form(self.form)


class Trained(Candidate):
    """A candidate that is trained, which costs time."""

    most_iterations: ClassVar[int] = 2_000  # of trials; no fold is begun that would go beyond

    @abstractmethod
    def trial_settings(self, classes: int, share: float) -> Settings:
        """Return other settings for a trial on a share of the items, of so many classes."""

    def scores(self, held_out: HeldOut, fold: Fold) -> Scores | None:
        """Return the scores in a fold; None for a candidate that cannot be tried."""
        return held_out.scores_of_trained(self, fold)


@dataclass(frozen=True)
class FeaturesOfImages(InClosedForm):
    """The features of the pretrained trunk, as they are or whitened."""

    images: OwnImages
    framing: Framing = DEFAULT
    form: ClosedForm = AS_THEY_ARE
    trunk: Trunk = LITE0

    recipe: ClassVar[str] = PRETRAINED

    @property
    def title(self) -> str:
        """The name for readers."""
        return f"frozen features{self.form.title}"

    @property
    def settings(self) -> Settings:
        """The settings of the recipe."""
        frozen: Settings = {"model.freeze": "trunk", "model.start": "random", "model.refit": "none"}
        rate: Settings = {"optimizer.head_lr_factor": 1.0}  # which is of a head that is trained
        of_images = self.images.settings_of(self.recipe, self.framing)
        return of_images | self.trunk.settings | frozen | rate | self.form.settings(self.trunk.features)

    @property
    def description(self) -> str:
        """A line for the report where nothing was tried."""
        return f"{self.title.capitalize()} of {self.trunk.title}"


@dataclass(frozen=True)
class LastBlocks(Trained):
    """The last blocks of the trunk and a head, trained from activations that are computed once.

    The head begins as whitening within classes, and is fitted again to the trained features.
    """

    images: OwnImages
    framing: Framing = DEFAULT
    trunk: Trunk = LITE0

    title: ClassVar[str] = "last blocks"
    recipe: ClassVar[str] = PRETRAINED

    @property
    def settings(self) -> Settings:
        """The settings of the recipe."""
        return self.images.settings_of(self.recipe, self.framing) | self.trunk.settings_of_blocks

    def trial_settings(self, classes: int, share: float) -> Settings:
        """Return other settings for a trial on a share of the images, of so many classes."""
        return self.images.batches_of(classes) | {"sampler.iterations": self.images.iterations(share)}


@dataclass(frozen=True)
class SmallNetwork(Trained):
    """A small convolutional network from scratch."""

    images: OwnImages

    title: ClassVar[str] = "small network from scratch"
    recipe: ClassVar[str] = SMALL

    @property
    def settings(self) -> Settings:
        """The settings of the recipe."""
        return self.images.settings_of(self.recipe)

    def trial_settings(self, classes: int, share: float) -> Settings:
        """Return other settings for a trial on a share of the images, of so many classes."""
        return self.images.batches_of(classes)


class UntrainedNetwork(SmallNetwork):
    """The features of the small network with random weights, where these have the classes apart."""

    title = "features of a small network with random weights"

    @property
    def settings(self) -> Settings:
        """The settings of the recipe."""
        return super().settings | {
            "model.freeze": "trunk",
            "model.trunk.weights": "random",
            "model.embedder": "none",
            "model.embedding_size": CHANNELS * (self.images.side // SHRINKS) ** 2,
        }


def closed_forms(images: OwnImages, framing: Framing, trunk: Trunk) -> list[FeaturesOfImages]:
    """Return what costs nothing beside the features, the simplest first."""
    return [FeaturesOfImages(images, framing, form, trunk) for form in CLOSED_FORMS]


def trained(images: OwnImages, framing: Framing, trunk: Trunk) -> list[Trained]:
    """Return what is trained: last blocks of a trunk that can be cut, and a network from scratch for small images."""
    found: list[Trained] = []
    if trunk.last_blocks is not None:
        found.append(LastBlocks(images, framing, trunk))
    if images.side < SMALL_SIDE:
        found.append(SmallNetwork(images))
    return found


@dataclass(frozen=True)
class Choice:
    """A recipe and its settings for somebody's data; the description says how they were chosen."""

    title: str  # of the candidate
    recipe: str
    settings: Settings
    seconds: float = 0.0  # of the trials


def features_as_they_are(images: OwnImages, framing: Framing, trunk: Trunk | None) -> Choice:
    """Return the features of a trunk, where its training would have nothing to learn; without one, of a small network.

    The small network has random weights.
    """
    candidate: Candidate = UntrainedNetwork(images)
    if trunk is not None:
        candidate = FeaturesOfImages(images, framing, trunk=trunk)
    description = f"{candidate.title.capitalize()}: {NOTHING_TO_LEARN}"
    return Choice(candidate.title, candidate.recipe, candidate.settings | {"description": description})
