"""How the pretrained trunk sees images: their middle or the whole, squashed to a square, and at which size."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from .settings import Settings

SMALL_SIDE = 160  # pixels
SIDE = 224  # the trunk's own; takes twice as long
LEAST_ASPECT = 1.1  # median of the longer side over the shorter, from which on the middle of an image is less than it
CUTS = ("data.images.crop", "data.images.resize")  # settings of size and part at once
SQUASH = "data.images.squash"


@dataclass(frozen=True)
class Framing:
    """The side of the square that the trunk sees, in pixels, and whether it has the whole image or its middle."""

    side: int = SIDE
    squash: bool = False

    @property
    def title(self) -> str:
        """The name for readers."""
        return f"{'whole images' if self.squash else 'the middle of images'} at {self.side} pixels"

    @property
    def settings(self) -> Settings:
        """The settings of a recipe."""
        settings: Settings = {"data.images.resize": self.side, "data.images.crop": self.side}
        if self.squash:
            settings[SQUASH] = True
        return settings


DEFAULT = Framing()


def framing_of(settings: Mapping[str, Any]) -> Framing:
    """Return how settings of a recipe, by dotted key, bring images to the trunk."""
    return Framing(int(settings.get("data.images.crop") or SIDE), bool(settings.get(SQUASH)))


def as_given(framing: Framing, settings: Mapping[str, Any]) -> Framing:
    """Return a framing with the size and the part of images that settings of the command give, by dotted key."""
    side = int(settings.get("data.images.crop") or framing.side)
    return Framing(side, bool(settings.get(SQUASH, framing.squash)))


@dataclass(frozen=True)
class Framings:
    """What is compared: the middle of images with whole ones, and two sizes; a single value is given."""

    squash: tuple[bool, ...]
    sides: tuple[int, ...]  # the smaller first


def framings_to_compare(set_keys: Collection[str], chosen_size: int | None, aspect: float) -> Framings:
    """Return what is compared where the settings of the command leave it open; of squares, the sizes alone."""
    cut_is_given = not set(CUTS).isdisjoint(set_keys)
    squash: tuple[bool, ...] = (False, True)
    if cut_is_given or SQUASH in set_keys or aspect < LEAST_ASPECT:
        squash = (False,)
    if chosen_size is not None:
        return Framings(squash, (chosen_size,))
    return Framings(squash, (SIDE,) if cut_is_given else (SMALL_SIDE, SIDE))
