"""How the pretrained trunk sees images: their middle, or the whole squashed to a square, and at which size."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from .settings import Settings

SMALL_SIDE = 160  # pixels
SIDE = 224  # the size of the weights; twice as slow
LEAST_ASPECT = 1.1  # median of the longer side over the shorter, from which on the middle of an image is less than it
CUTS = ("data.images.crop", "data.images.resize")  # settings of size and part at once
SQUASH = "data.images.squash"


@dataclass(frozen=True)
class Framing:
    """The side of the trunk's square in pixels, and whether it shows the whole image or its middle.

    The middle is cut from an image whose shorter side has ``side / ratio`` pixels.
    """

    side: int = SIDE
    squash: bool = False
    ratio: float = 1.0

    @property
    def resize(self) -> int:
        """The shorter side before the middle is cut out, in pixels."""
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
    """The framing in the settings of a recipe."""
    side = int(settings.get("data.images.crop") or SIDE)
    resize = int(settings.get("data.images.resize") or side)
    return Framing(side, bool(settings.get(SQUASH)), side / resize)


def as_given(framing: Framing, settings: Mapping[str, Any]) -> Framing:
    """A framing with the size and squashing that the command's settings give."""
    side = int(settings.get("data.images.crop") or framing.side)
    return replace(framing, side=side, squash=bool(settings.get(SQUASH, framing.squash)))


@dataclass(frozen=True)
class Framings:
    """The squashings and sizes to compare; a single value is fixed."""

    squash: tuple[bool, ...]
    sides: tuple[int, ...]  # the smaller first


def framings_to_compare(
    own: Framing, smaller: int | None, set_keys: Collection[str], chosen_size: int | None, aspect: float
) -> Framings:
    """What to compare where the command's settings leave it open; square images have sizes only.

    ``own`` is the framing of the trunk's weights; ``smaller`` is a second size, unless the trunk has a fixed one.
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
