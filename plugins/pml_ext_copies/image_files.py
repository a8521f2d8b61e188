"""Image files of one folder or two, with what copies share."""

import hashlib
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pml_ext.errors import ConfigError, DataError
from pml_ext_train.data import bits_of, is_system_folder, open_image, shown_size, upright
from pml_ext_train.files import composed, file_and_page, path_bytes, sha256_of
from pml_ext_train.retrieval import Numbers

from .groups import Copy, Traits

_EIGHT_BITS = ("1", "L", "P", "RGB", "RGBX", "LA", "PA", "RGBA")  # modes that RGBA holds
_LOSSLESS = ("PNG", "TIFF", "BMP", "PPM", "GIF")


class ImageFiles:
    """Image files of a folder, or of two; numbers from ``first_old`` on belong to the second."""

    def __init__(self, folder: Path, names: Sequence[str], old: tuple[Path, Sequence[str]] | None = None) -> None:
        files = dict.fromkeys(file_and_page(folder / name)[0] for name in names)  # each once, with all its pages
        self.names: list[str] = [file.relative_to(folder).as_posix() for file in files]  # as shown to the user
        self.files = list(files)
        self.first_old = len(files)
        self.compares_two = old is not None
        if old is not None:
            old_folder, old_names = old
            self.files += [old_folder / name for name in old_names]
            self.names = [os.fspath(file) for file in self.files]
        self.stats: dict[int, os.stat_result] = {}
        self.skipped: dict[str, str] = {}  # why a file is not compared, by its name
        by_file: dict[tuple[int, int, bool], list[int]] = defaultdict(list)
        for number, file in enumerate(self.files):
            try:
                stat = os.stat(file)
            except OSError as error:
                self.skipped[self.names[number]] = f"{file}: cannot be read ({error.strerror})"
                continue
            self.stats[number] = stat
            by_file[stat.st_dev, stat.st_ino, number >= self.first_old].append(number)
        self._names_of: dict[int, list[int]] = {}  # hard links of the same folder, and symbolic links, last
        for numbers in by_file.values():
            numbers.sort(key=lambda number: self.files[number].is_symlink())
            self._names_of[numbers[0]] = numbers
        self.distinct: Numbers = np.array(sorted(self._names_of), dtype=np.int64)  # one name of each file that is there
        self._traits: dict[int, Traits | None] = {}

    def __len__(self) -> int:
        return len(self.files)

    def may_match(self, numbers: Sequence[int]) -> bool:
        """Whether images can be a group: two or more, and some of each folder."""
        if self.compares_two:
            return min(numbers) < self.first_old <= max(numbers)
        return len(numbers) > 1

    def copy(self, number: int, distance: float, changes: tuple[str, ...] = ()) -> Copy:
        """An image of a group, at a distance from the one to keep."""
        stat = self.stats[number]
        traits = self.traits(number)
        return Copy(
            self.names[number],
            distance,
            stat.st_size,
            traits and traits.width,
            traits and traits.height,
            tuple(self.files[other] for other in self._names_of[number]),
            (stat.st_dev, stat.st_ino),
            (stat.st_size, stat.st_mtime_ns),
            number >= self.first_old,
            traits,
            changes,
        )

    def traits(self, number: int) -> Traits | None:
        """Properties besides pixels; None for an unreadable file."""
        if number not in self._traits:
            self._traits[number] = _traits_of(self.files[number])
        return self._traits[number]

    def digest(self, number: int) -> str | None:
        """A digest of a file's bytes; None for an unreadable file."""
        try:
            return sha256_of(self.files[number])
        except OSError:
            return None

    def digest_of_pixels(self, number: int) -> str | None:
        """A digest of all frames' pixels; None if some cannot be read."""
        traits = self.traits(number)
        if traits is None or traits.is_cut:
            return None
        try:
            with open_image(self.files[number]) as image:
                return _digest_of_frames(image, range(traits.frames))
        except DataError:
            return None

    def rank(self, number: int, keep: str, same_pixels: bool = False) -> tuple[Any, ...]:
        """A sort key: the image with the smallest is kept; see :data:`KEEPS`."""
        stat = self.stats[number]
        name = self.names[number]
        traits = self.traits(number) or Traits(0, 0, 0, "", 0, "", b"", False)
        pixels = traits.width * traits.height
        rules = {
            "most-pixels": -pixels,
            "least-compressed": -stat.st_size / max(1, pixels),
            "oldest": stat.st_mtime_ns,
        }
        is_lossless = same_pixels and not _is_lossy(self.files[number])
        return (
            number < self.first_old,  # of two folders, images of the old one are kept
            any(map(is_system_folder, name.split("/"))),
            self.files[number].is_symlink(),
            rules[keep] if keep in rules else not self.is_below(number, keep),
            (-pixels, -traits.frames, -traits.bits, not traits.alpha),
            (is_lossless * stat.st_size, stat.st_mtime_ns, -stat.st_size, path_bytes(name)),
        )

    def is_below(self, number: int, folder: str) -> bool:
        """Whether an image is in a sub-folder, or is that file."""
        name = path_bytes(composed(self.names[number]))
        below = path_bytes(composed(folder)).rstrip(b"/")
        return name == below or name.startswith(below + b"/")


KEEPS = ("most-pixels", "least-compressed", "oldest")
"""Which copy is kept: the one with the most pixels, the most bytes per pixel, or the earliest modification time.

Any other text is a sub-folder of copies to keep. Ties are decided by pixels, frames, bits a channel and transparency;
of the same pixels, by a lossy format (whose pixels were saved again without loss, not the other way round), else by
fewer bytes; then by time, the older first, by more bytes, and by the path. Files of a recycle bin are kept last.
"""


def check_keep(images: ImageFiles, keep: str) -> None:
    """Raise ConfigError unless a text is a rule or a sub-folder with images."""
    if keep not in KEEPS and not any(images.is_below(number, keep) for number in range(len(images))):
        raise ConfigError(f"--keep {keep}: no image is below {keep!r}; wanted {', '.join(KEEPS)} or a sub-folder")


def _traits_of(file: Path) -> Traits | None:
    try:
        with open_image(file) as image:
            frames = getattr(image, "n_frames", 1)
            bits = bits_of(image)
            size = shown_size(image)
            profile = image.info.get("icc_profile") or b""
            alpha = ""
            if image.mode in _EIGHT_BITS and image.has_transparency_data:
                band = upright(image).convert("RGBA").getchannel("A")
                if band.getextrema()[0] < 255:
                    alpha = hashlib.sha256(band.tobytes()).hexdigest()
            is_cut = bits > 8 and not image.mode.startswith("I")
            later_frames = _digest_of_frames(image, range(1, frames)) if frames > 1 else ""
            return Traits(*size, frames, later_frames, bits, alpha, b"" if b"sRGB" in profile else profile, is_cut)
    except DataError:
        return None


def _digest_of_frames(image: Any, frames: range) -> str:
    """Digest of frames' pixels in full depth, and of the durations of animations."""
    digest = hashlib.sha256()
    is_animated = frames.stop > 1
    for frame in frames:
        image.seek(frame)
        _add_frame(digest, upright(image), is_animated)
    return digest.hexdigest()


def _add_frame(digest: Any, shown: Any, is_animated: bool) -> None:
    about: list[Any] = [shown.size, float(shown.info.get("duration", 0)) if is_animated else 0]
    if shown.mode in _EIGHT_BITS:
        shown = shown.convert("RGBA")
    elif shown.mode.startswith("I"):  # some formats read 16 bits as I;16, and others as I;16B or I
        about.append(shown.info.get("transparency"))
        shown = np.asarray(shown).astype(np.int32)
    else:
        about.append(shown.mode)
    digest.update(repr(about).encode() + shown.tobytes())


def _is_lossy(file: Path) -> bool:
    """Whether the format is lossy; lossless files with its pixels were made from it."""
    try:
        with open_image(file) as image:
            if image.format == "WEBP":
                return b"VP8L" not in file.read_bytes()
            return image.format not in _LOSSLESS or "jpeg" in str(image.info.get("compression"))
    except DataError:
        return False
