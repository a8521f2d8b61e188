"""Groups of copies: same bytes, same pixels, or near."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

from pml_ext.errors import ConfigError, counted
from pml_ext_train.data import table_text
from pml_ext_train.files import MISSING, FileStat
from pml_ext_train.retrieval import CopyKind

FromKept = tuple[float, tuple[str, ...]]
"""The distance of an image from the one to keep, and how it was turned."""

KINDS: tuple[CopyKind, ...] = get_args(CopyKind)
_NAMES = {"exact": "same bytes", "same": "same pixels", "near": "near"}
_IMAGE_FIELDS = ("path", "distance", "bytes", "width", "height")
_COLUMNS = ("group", "kind", "keep", *_IMAGE_FIELDS, "differs")


class Traits(NamedTuple):
    """Properties of an image besides the pixels of its first frame."""

    width: int  # upright
    height: int
    frames: int  # or pages
    later_frames: str  # digest of the frames after the first, "" for a still
    bits: int  # a channel, in the file
    alpha: str  # digest of the transparency, "" for an opaque image
    profile: bytes  # of its colors, b"" for sRGB or none
    is_cut: bool  # whether Pillow reads 8 of more bits

    def differing(self, other: Traits) -> list[str]:
        """The names of differing properties."""
        size_of = (self.width, self.height) == (other.width, other.height)
        equal = {
            "frames": (self.frames, self.later_frames) == (other.frames, other.later_frames),
            "depth": self.bits == other.bits and not self.is_cut,
            "transparency": self.alpha == other.alpha or (self.alpha and other.alpha and not size_of),
            "color profile": self.profile == other.profile,
        }
        return [name for name, is_equal in equal.items() if not is_equal]


@dataclasses.dataclass(frozen=True)
class Copy:
    """An image of a group, or a vector, which has only a path (its id) and a distance."""

    path: str  # below the folder; of two folders, with the folder
    distance: float  # from the image to keep
    bytes: int | None = None
    width: int | None = None  # upright
    height: int | None = None
    names: tuple[Path, ...] = ()  # the file, hard links to it, and symbolic ones
    inode: tuple[int, int] | None = None  # device and number of the file
    stat: FileStat = MISSING  # when it was compared
    stays: bool = False  # whether it is kept too: of the folder that others are compared with, or by choice
    traits: Traits | None = None
    changes: tuple[str, ...] = ()  # mirrored, turned or captioned, compared with the image to keep

    @property
    def file(self) -> Path:
        """The image file; ConfigError for a vector."""
        if not self.names:
            raise ConfigError(f"{self.path} is a vector, which has no file; leave out what needs image files")
        return self.names[0]


@dataclasses.dataclass(frozen=True)
class Group:
    """Copies of each other: the one to keep first, then by distance from it."""

    kind: CopyKind
    images: list[Copy]
    near_pairs: list[tuple[str, str, float]] = dataclasses.field(default_factory=list)  # see pairs

    @property
    def keep(self) -> Copy:
        """The image to keep."""
        return self.images[0]

    @property
    def others(self) -> list[Copy]:
        """The copies that need not be kept; with two folders, only the new ones."""
        return [image for image in self.images[1:] if not image.stays]

    @property
    def pairs(self) -> list[tuple[str, str, float]]:
        """The shortest pairs that connect a near group; otherwise each copy and the image to keep."""
        return self.near_pairs or [(self.keep.path, image.path, image.distance) for image in self.images[1:]]

    def keeps(self, image: Copy) -> bool:
        """Whether an image of the group is kept."""
        return image is self.keep or image.stays

    def differing(self, image: Copy) -> list[str]:
        """How an image differs from the one to keep besides pixels: mirrored, or in its frames."""
        return [*image.changes, *self._traits(image)]

    def about(self, image: Copy) -> str:
        """The kind, and what differs: ``"near, mirrored, different frames"``."""
        traits = [f"different {name}" for name in self._traits(image)]
        return ", ".join([_NAMES[self.kind], *image.changes, *traits])

    def _traits(self, image: Copy) -> list[str]:
        if self.keep.traits is None or image.traits is None:
            return []
        return self.keep.traits.differing(image.traits)

    @property
    def space(self) -> int:
        """Bytes of the others; hard links to the kept image count as 0."""
        return sum(image.bytes or 0 for image in self.others if image.inode != self.keep.inode)


@dataclasses.dataclass(frozen=True)
class Duplicates:
    """The groups of a collection: exact ones first, large groups first.

    An image is a copy in one group only.
    """

    groups: list[Group]
    radius: float  # maximum distance of near copies
    images: int  # that were compared
    nearest: float | None = None  # smallest distance of two images of different groups; None for vectors
    nearest_other: float | None = None  # median distance of an image to the nearest one of another group
    made_up: int = 0  # copies of a sample, by which the radius was chosen; 0 if it was given, or chosen by the vectors
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)  # why an image was not compared, by path

    def of_kind(self, kind: CopyKind) -> list[Group]:
        """The groups of a kind."""
        return [group for group in self.groups if group.kind == kind]

    @property
    def space(self) -> int:
        """Bytes of all images that need not be kept."""
        return sum(group.space for group in self.groups)

    def summary(self, noun: str = "image") -> str:
        """A line about the groups and the choice of the radius."""
        near = f"within {self.radius:.3g}" if self.radius else ""
        if self.made_up:
            near += f", chosen by {self.made_up} altered copies"
        if self.nearest_other is not None:
            nearest = "" if self.nearest is None else f"at {self.nearest:.3g}, "
            near += f"; the nearest other {noun} is {nearest}typically at {self.nearest_other:.3g}"
        if not self.groups:
            return f"No copies among {counted(self.images, noun)}" + (near and f"; near is {near}")
        counts = {kind: len(self.of_kind(kind)) for kind in KINDS}
        parts = [f"{counts[kind]} of the {_NAMES[kind]}" for kind in KINDS[:2] if counts[kind] and noun == "image"]
        if near:
            parts.append(f"{counts['near']} near, {near}")
        copies = sum(len(group.others) for group in self.groups)
        text = f"{counted(len(self.groups), 'group')} with {copies:,} of {counted(self.images, noun)} to spare"
        if noun == "image":
            text += f", {self.space:,} bytes"
        return f"{text}: {', '.join(parts)}"

    def to_spare(self) -> Duplicates:
        """The groups without the images that stay beside the one to keep."""
        groups = []
        for group in self.groups:
            images = [group.keep, *group.others]
            paths = {image.path for image in images}
            pairs = [pair for pair in group.near_pairs if paths.issuperset(pair[:2])]
            if len(images) > 1:
                groups.append(dataclasses.replace(group, images=images, near_pairs=pairs))
        return dataclasses.replace(self, groups=groups)

    def as_json(self) -> dict[str, Any]:
        """The output of ``--json``."""
        groups = []
        pairs = []
        for group in self.groups:
            images = []
            for image in group.images:
                about = {name: getattr(image, name) for name in _IMAGE_FIELDS}
                images.append(about | {"differs": group.differing(image)})
            groups.append({"kind": group.kind, "keep": group.keep.path, "images": images})
            pairs += [list(pair) for pair in group.pairs]
        return {
            "groups": groups,
            "pairs": pairs,
            "radius": self.radius,
            "nearest": self.nearest,
            "nearest_other": self.nearest_other,
            "made_up_copies": self.made_up,
            "images": self.images,
            "space": self.space,
        }

    def as_csv(self) -> str:
        """A table with a row per image; ``keep`` is yes or no."""
        rows: list[Sequence[Any]] = []
        for number, group in enumerate(self.groups, start=1):
            for image in group.images:
                kept = "yes" if group.keeps(image) else "no"
                size = (image.bytes, image.width, image.height)
                differs = ", ".join(group.differing(image))
                rows.append((number, group.kind, kept, image.path, f"{image.distance:.6f}", *size, differs))
        return table_text(_COLUMNS, rows)
