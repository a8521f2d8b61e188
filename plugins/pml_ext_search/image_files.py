"""Image files of one folder or two, as the search for copies sees them."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pml_ext.tool import ConfigError, DataError, composed, open_image, path_bytes, read_image, sha256_of

_TURNED = (5, 6, 7, 8)  # orientations of EXIF by which width and height change places
_ORIENTATION = 0x0112


class Rank(NamedTuple):
    """What decides which copy is kept: the smallest rank is."""

    is_new: bool  # of two folders, images of the old one are kept
    chosen: float  # by --keep
    pixels: int  # as a negative number, as the size
    size: int
    changed: int
    path: bytes


class ImageFiles:
    """Image files of a folder, or of two that are compared: numbers from ``first_old`` on are those of the second."""

    def __init__(self, folder: Path, names: Sequence[str], old: tuple[Path, Sequence[str]] | None = None) -> None:
        self.names: list[str] = list(names)  # as they are shown
        self.files = [folder / name for name in names]
        self.first_old = len(names)
        if old is not None:
            old_folder, old_names = old
            self.files += [old_folder / name for name in old_names]
            self.names = [os.fspath(file) for file in self.files]
        self.stats = [_stat(file) for file in self.files]
        self.links = self._links()
        self._sizes: dict[int, tuple[int, int] | None] = {}

    def __len__(self) -> int:
        return len(self.files)

    def _links(self) -> dict[int, list[int]]:
        """Return the other names of each file: hard links of the same folder, and symbolic links to it."""
        by_file: dict[tuple[int, int, bool], list[int]] = defaultdict(list)
        for number, stat in enumerate(self.stats):
            if stat is not None:
                by_file[stat.st_dev, stat.st_ino, self.is_old(number)].append(number)
        links = {}
        for numbers in by_file.values():
            first, *others = sorted(numbers, key=lambda number: (self.files[number].is_symlink(), number))
            links[first] = others
        return links

    @property
    def distinct(self) -> list[int]:
        """The images that are compared: one name of each file that is there."""
        return sorted(self.links)

    @property
    def compares_two(self) -> bool:
        """Whether images of one folder are compared with those of another."""
        return self.first_old < len(self.files)

    def is_old(self, number: int) -> bool:
        """Return whether an image is in the folder that others are compared with."""
        return number >= self.first_old

    def size(self, number: int) -> tuple[int, int] | None:
        """Return width and height of the upright image; None for a file that cannot be read."""
        if number not in self._sizes:
            self._sizes[number] = _size_of(self.files[number])
        return self._sizes[number]

    def digest(self, number: int) -> str | None:
        """Return a digest of a file's bytes; None for a file that cannot be read."""
        try:
            return sha256_of(self.files[number])
        except OSError:
            return None

    def digest_of_pixels(self, number: int) -> str | None:
        """Return a digest of an image's pixels; None for a file that cannot be read."""
        try:
            pixels = read_image(self.files[number]).contiguous()
        except DataError:
            return None
        return hashlib.sha256(pixels.numpy().data).hexdigest()

    def rank(self, number: int, keep: str) -> Rank:
        """Return what decides which copy is kept; see :data:`KEEPS`."""
        stat = self.stats[number]
        assert stat is not None
        width, height = self.size(number) or (0, 0)
        pixels = width * height
        if keep == "most-pixels":
            chosen: float = -pixels
        elif keep == "least-compressed":
            chosen = -stat.st_size / max(1, pixels)
        elif keep == "oldest":
            chosen = stat.st_mtime_ns
        else:
            chosen = not self.is_below(number, keep)
        is_new = number < self.first_old
        return Rank(is_new, chosen, -pixels, -stat.st_size, stat.st_mtime_ns, path_bytes(self.names[number]))

    def is_below(self, number: int, folder: str) -> bool:
        """Return whether an image is in a sub-folder, or is that file."""
        name = path_bytes(composed(self.names[number]))
        below = path_bytes(composed(folder)).rstrip(b"/")
        return name == below or name.startswith(below + b"/")


KEEPS = ("most-pixels", "least-compressed", "oldest")
"""Which copy is kept: the one of the most pixels, of the most bytes per pixel, or of the earliest modification time.

Equal ones are decided by pixels, then bytes, then time, then the path. Any other text is a sub-folder of copies to
keep.
"""


def check_keep(images: ImageFiles, keep: str) -> None:
    """Raise ConfigError for a rule that is none, nor the path of a sub-folder with images."""
    if keep in KEEPS:
        return
    if not any(images.is_below(number, keep) for number in range(len(images))):
        raise ConfigError(f"--keep {keep}: no image is below {keep!r}; wanted {', '.join(KEEPS)} or a sub-folder")


def _stat(file: Path) -> os.stat_result | None:
    try:
        return os.stat(file)
    except OSError:
        return None


def _size_of(file: Path) -> tuple[int, int] | None:
    try:
        with open_image(file) as image:
            width, height = image.size
            if image.getexif().get(_ORIENTATION) in _TURNED:
                return height, width
            return width, height
    except DataError:
        return None
