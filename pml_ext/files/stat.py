"""Size and time of files, by which a changed file is noticed, and paths as bytes and as text."""

from __future__ import annotations

import os
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
    """Return a path as text in UTF-8; bytes of its name that are none are escaped."""
    return path_bytes(path).decode("utf-8", "backslashreplace")


def is_inside(path: str) -> bool:
    """Return whether a path, relative to a folder, stays in it."""
    return not ({"..", ""} & set(path.split("/")) or "\0" in path)
