"""How the pretrained trunk sees images: their middle or the whole, squashed to a square, and at which size."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from .settings import Settings

SMALL_SIDE = 160  # pixels
SIDE = 224  # the trunk's own; takes twice as long
LEAST_ASPECT = 1.1  # median of the longer side over the shorter, from which on the middle of an image is less than it
CUTS = ("data.images.crop", "data.images.resize")  # settings of size and part at once
SQUASH = "data.images.squash"


@dataclass(frozen=True)
class Framing:
    """The side of the square that the trunk sees, in pixels, and whether it has the whole image or its middle.

    The middle is cut from an image whose shorter side is ``side / ratio`` pixels.
    """

    side: int = SIDE
    squash: bool = False
    ratio: float = 1.0

    @property
    def resize(self) -> int:
        """The shorter side of an image before its middle is cut out, in pixels."""
        return round(self.side / self.ratio)

    @property
    def title(self) -> str:
        """The name for readers."""
        of_more = "" if self.resize == self.side else f" of {self.resize}"
        return f"{'whole images' if self.squash else 'the middle of images'} at {self.side}{of_more} pixels"

    @property
    def settings(self) -> Settings:
        """The settings of a recipe."""
        settings: Settings = {"data.images.resize": self.resize, "data.images.crop": self.side}
        if self.squash:
            settings[SQUASH] = True
        return settings


DEFAULT = Framing()


def framing_of(settings: Mapping[str, Any]) -> Framing:
    """Return how settings of a recipe, by dotted key, bring images to the trunk."""
    side = int(settings.get("data.images.crop") or SIDE)
    resize = int(settings.get("data.images.resize") or side)
    return Framing(side, bool(settings.get(SQUASH)), side / resize)


def as_given(framing: Framing, settings: Mapping[str, Any]) -> Framing:
    """Return a framing with the size and the part of images that settings of the command give, by dotted key."""
    side = int(settings.get("data.images.crop") or framing.side)
    return replace(framing, side=side, squash=bool(settings.get(SQUASH, framing.squash)))


@dataclass(frozen=True)
class Framings:
    """What is compared: the middle of images with whole ones, and two sizes; a single value is given."""

    squash: tuple[bool, ...]
    sides: tuple[int, ...]  # the smaller first


def framings_to_compare(
    own: Framing, smaller: int | None, set_keys: Collection[str], chosen_size: int | None, aspect: float
) -> Framings:
    """Return what is compared where the settings of the command leave it open; of squares, the sizes alone.

    ``own`` is the framing of the trunk's weights; ``smaller`` is another size, if it takes one.
    """
    cut_is_given = not set(CUTS).isdisjoint(set_keys)
    squash: tuple[bool, ...] = (False, True)
    if cut_is_given or SQUASH in set_keys:
        squash = (False,)
    elif aspect < LEAST_ASPECT:
        squash = (own.squash,)
    if chosen_size is not None:
        return Framings(squash, (chosen_size,))
    if cut_is_given or smaller is None:
        return Framings(squash, (own.side,))
    return Framings(squash, (smaller, own.side))
