"""Size and time of files, by which a changed file is noticed, and paths as bytes, as text and as people read them."""

from __future__ import annotations

import functools
import os
import unicodedata
from collections.abc import Iterable
from pathlib import Path

FileStat = tuple[int, int]
"""Size in bytes, and time of the last modification in nanoseconds since 1970, of a file."""
MISSING: FileStat = (-1, -1)  # of a missing file


def file_stat(file: Path) -> FileStat | None:
    """Return size and time of a file; None where it is missing."""
    try:
        found = file.stat()
    except (OSError, ValueError):  # a path with a zero byte raises ValueError
        return None
    return found.st_size, found.st_mtime_ns


def path_bytes(path: str) -> bytes:
    """Return a path as stored in tables: bytes, since file names need not be valid text."""
    return os.fsencode(path.replace(os.sep, "/"))


def utf8_of(path: str) -> str:
    """Return a path as text in UTF-8; bytes that are not UTF-8 are escaped."""
    return path_bytes(path).decode("utf-8", "backslashreplace")


def is_inside(path: str) -> bool:
    """Return whether a path, relative to a folder, stays in it."""
    return not ({"..", ""} & set(path.split("/")) or "\0" in path)


def composed(name: str) -> str:
    """A name as it is compared: systems write é as one letter or as two, which read the same (Unicode's NFC)."""
    return unicodedata.normalize("NFC", name)


def as_spelled(folder: Path, path: str) -> str:
    """A relative path as a folder spells it, where that differs from ``path`` in composed letters alone."""
    if path.isascii() or os.path.isabs(path) or os.path.lexists(folder / path):
        return path
    place = folder
    for part in path.split("/"):
        place /= _spellings(place, file_stat(place)).get(composed(part), part)
    return place.relative_to(folder).as_posix()


@functools.lru_cache(16)
def _spellings(folder: Path, _: FileStat | None) -> dict[str, str]:
    """The names in a folder by how they are compared; the folder's time is for the cache."""
    return {composed(name): name for name in os.listdir(folder)} if folder.is_dir() else {}


def doubt_about(names: Iterable[str]) -> str:
    """A line that asks about names of classes that differ in case, or in blanks at the ends, alone; or an empty one."""
    first: dict[str, str] = {}
    for name in sorted(set(names)):
        twin = first.setdefault(name.strip().casefold(), name)
        if twin != name:
            return f"the classes {twin!r} and {name!r} differ in case or blanks alone; if they are one, rename one"
    return ""


def free_name(target: Path) -> Path:
    """Return a path that is not taken: ``photo.jpg``, else ``photo-2.jpg`` and so on."""
    number = 2
    free = target
    while os.path.lexists(free):
        free = target.with_name(f"{target.stem}-{number}{target.suffix}")
        number += 1
    return free
