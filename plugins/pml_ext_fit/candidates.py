"""What can be delivered for somebody's images: features of a pretrained trunk, a head, last blocks, a small network."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor

from pml_ext.tool import load_recipe

from .images import OwnImages
from .settings import Settings

ByClass = Tensor  # MAP@R of each class that was held out, [C], float64

SMALL = "fit/photographs"
PRETRAINED = "fit/photographs-pretrained"
BLOCKS_FIRST = "fit/photographs-fine-tuned"
HEAD_FIRST = "fit/photographs-fine-tuned-head"
TRUNK = "efficientnet-lite0"
IMAGENET = "imagenet"  # its weights
FEATURES = 1280  # of the trunk
WHITENED = 128
MOST_VIEWS = 8  # augmented views of an image whose activations are kept
VIEWS_IN_ALL = 15_000  # of all training images: about two minutes on two cores
SMALL_SIDE = 64  # pixels; up to it, a small network from scratch is tried as well
CHANNELS = 32  # of the last feature maps of the small network
SHRINKS = 16  # times the side of an image over that of these maps
# why features are taken as they are, in descriptions
NOTHING_TO_LEARN = "the classes are so far apart in them that no pair adds to the loss, and there is nothing to learn"
# seconds of a step from cached activations, over those of embedding the images of its batch
STEP = 0.75


class HeldOut(Protocol):
    """Training classes that are held out, on which candidates are scored: MAP@R of each class."""

    def score_of_features(self, squash: bool) -> ByClass:
        """Return that of the features of the pretrained trunk."""

    def score_of_whitened(self, squash: bool, components: int) -> ByClass:
        """Return that of whitened principal components of these features."""

    def score_of_trained(self, candidate: Candidate) -> ByClass | None:
        """Return that of the embeddings of a candidate that is trained; None, and a line, where it cannot be."""


@dataclass(frozen=True)
class Candidate(ABC):
    """Something that can be delivered: a recipe with settings that fit the images.

    ``squash`` is whether the pretrained trunk sees whole images, squashed to squares, rather than their middle.
    """

    images: OwnImages
    squash: bool = False

    recipe: ClassVar[str] = PRETRAINED
    fine_tuned: ClassVar[str | None] = HEAD_FIRST  # the recipe that goes on with the whole network

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

    @abstractmethod
    def score(self, held_out: HeldOut) -> ByClass | None:
        """Return MAP@R of each held-out class; None for a candidate that cannot be tried."""

    def seconds(self, per_image: float) -> float:
        """Return about how long the trial and the training take; ``per_image`` are the seconds of embedding one."""
        return 0.0

    def _pretrained_settings(self) -> Settings:
        settings = self.images.settings_of(PRETRAINED)
        if self.squash:
            settings["data.images.squash"] = True
        return settings

    def _frozen_settings(self) -> Settings:
        seen_once: Settings = {"data.cache": "none"}
        return self._pretrained_settings() | {"model.freeze": "trunk", "model.views": 1} | seen_once


class FrozenFeatures(Candidate):
    """The features of the pretrained trunk: of the middle of images, or of whole ones, squashed to squares."""

    @property
    def title(self) -> str:
        """The name for readers."""
        return "frozen features of whole images" if self.squash else "frozen features"

    @property
    def settings(self) -> Settings:
        """The settings of the recipe."""
        return self._frozen_settings() | {"model.embedder": "none", "model.embedding_size": FEATURES}

    @property
    def description(self) -> str:
        """A line for the report where nothing was tried."""
        return f"{self.title.capitalize()} of {TRUNK} with ImageNet weights"

    def score(self, held_out: HeldOut) -> ByClass:
        """Return MAP@R of each held-out class."""
        return held_out.score_of_features(self.squash)

    def seconds(self, per_image: float) -> float:
        """Return about how long the features take: twice of training images, and those of the tests."""
        return per_image * (2 * self.images.training_images + 4 * self.images.tested_images)


class WhitenedFeatures(Candidate):
    """The first principal components of the features, scaled to unit variance."""

    title = "frozen features, whitened"

    @property
    def settings(self) -> Settings:
        """The settings of the recipe."""
        components = min(WHITENED, self.images.training_images * 3 // 4 - 1)
        return self._frozen_settings() | {"model.embedder": "pca", "model.embedding_size": components}

    @property
    def description(self) -> str:
        """A line for the report where nothing was tried."""
        return f"Features of {TRUNK} with ImageNet weights, whitened"

    def score(self, held_out: HeldOut) -> ByClass:
        """Return MAP@R of each held-out class."""
        return held_out.score_of_whitened(self.squash, WHITENED)


class HeadOnFeatures(Candidate):
    """A linear layer that is trained on features, which are computed once."""

    title = "head on frozen features"

    @property
    def settings(self) -> Settings:
        """The settings of the recipe."""
        return self._frozen_settings() | {"schedule.epochs": 20}

    def score(self, held_out: HeldOut) -> ByClass | None:
        """Return MAP@R of each held-out class."""
        return held_out.score_of_trained(self)


class LastBlocks(Candidate):
    """A head and the last blocks of the trunk, which are trained from activations that are computed once."""

    title = "last blocks"
    fine_tuned = BLOCKS_FIRST

    @property
    def settings(self) -> Settings:
        """The settings of the recipe."""
        return self._pretrained_settings() | {"model.views": self.views}

    @property
    def views(self) -> int:
        """The number of views of each training image: 8 of few, one of many."""
        return max(1, min(MOST_VIEWS, VIEWS_IN_ALL // self.images.training_images))

    def score(self, held_out: HeldOut) -> ByClass | None:
        """Return MAP@R of each held-out class; None where the activations take too much space."""
        return held_out.score_of_trained(self)

    def seconds(self, per_image: float) -> float:
        """Return about how long the activations, the trial and the training take."""
        seen = 64 * self.images.iterations() * 2 * load_recipe(PRETRAINED).schedule.epochs
        return per_image * (self.images.training_images * self.views + STEP * seen)


class SmallNetwork(Candidate):
    """A small convolutional network from scratch."""

    title = "small network from scratch"
    recipe = SMALL
    fine_tuned = None  # it is trained whole as it is

    @property
    def settings(self) -> Settings:
        """The settings of the recipe."""
        return self.images.settings_of(SMALL)

    def score(self, held_out: HeldOut) -> ByClass | None:
        """Return MAP@R of each held-out class."""
        return held_out.score_of_trained(self)


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


def candidates(images: OwnImages, squash: bool = False) -> list[Candidate]:
    """Return what can be delivered, in the order of cost: frozen, whitened, a head, last blocks, a small network."""
    found: list[Candidate] = []
    for kind in (FrozenFeatures, WhitenedFeatures, HeadOnFeatures, LastBlocks):
        found.append(kind(images, squash))
    if images.side < SMALL_SIDE:
        found.append(SmallNetwork(images))
    return found


@dataclass(frozen=True)
class Choice:
    """A recipe and its settings for somebody's data; the description says how they were chosen."""

    title: str  # of the candidate
    recipe: str
    settings: Settings


def features_as_they_are(images: OwnImages, pretrained: bool, squash: bool) -> Choice:
    """Return the features of a trunk, where its training would have nothing to learn."""
    candidate = FrozenFeatures(images, squash) if pretrained else UntrainedNetwork(images)
    description = f"{candidate.title.capitalize()}: {NOTHING_TO_LEARN}"
    return Choice(candidate.title, candidate.recipe, candidate.settings | {"description": description})
