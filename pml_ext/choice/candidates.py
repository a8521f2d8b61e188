"""What can be delivered for somebody's images: features of a pretrained trunk, a head, last blocks, a small network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..recipe.images import OwnImages, settings_for_recipe

SMALL = "pml/photographs"
PRETRAINED = "pml/photographs-pretrained"
LAST_BLOCKS = "last blocks"  # the title of a candidate
TRUNK = "efficientnet-lite0"
FEATURES = 1280  # of the trunk
WHITENED = 128
MOST_VIEWS = 8  # augmented views of an image whose activations are kept
VIEWS_IN_ALL = 15_000  # of all training images: about two minutes on two cores
SMALL_SIDE = 64  # pixels; up to it, a small network from scratch is tried as well


@dataclass(frozen=True)
class Candidate:
    """Something that can be delivered."""

    title: str
    recipe: str
    settings: tuple[str, ...]


class Choice(NamedTuple):
    """A recipe and its settings for somebody's images; the description says how they were chosen."""

    recipe: str
    settings: list[str]
    title: str  # of the candidate


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


def frozen_features(images: OwnImages, squash: bool) -> Candidate:
    """Return the features of the pretrained trunk: of the middle of images, or of whole ones, squashed to squares."""
    title = "frozen features of whole images" if squash else "frozen features"
    untrained = ("model.embedder=none", f"model.embedding_size={FEATURES}")
    return Candidate(title, PRETRAINED, (*_frozen_settings(images, squash), *untrained))


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
