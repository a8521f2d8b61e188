"""Size and time of files, and paths as bytes and as text."""

import functools
import os
import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path

FileStat = tuple[int, int]
"""Size in bytes, and time of the last modification in nanoseconds since 1970."""
MISSING: FileStat = (-1, -1)  # of a missing file
PAGED_ENDINGS = (".tif", ".tiff", ".gif", ".png", ".webp", ".avif")  # of files with pages or frames
_PAGE = re.compile(rf"(.+(?:{'|'.join(map(re.escape, PAGED_ENDINGS))}))#([1-9][0-9]*)", re.IGNORECASE | re.DOTALL)


def file_and_page(path: Path) -> tuple[Path, int]:
    """The file of a path, and its page from 1: ``scan.tif#2`` is the second page of ``scan.tif``."""
    found = _PAGE.fullmatch(path.name)
    if found and (file := path.with_name(found[1])).is_file():
        return file, int(found[2])
    return path, 1


def file_stat(file: Path) -> FileStat | None:
    """Size and time of a file, also of one of its pages; None if it is missing."""
    try:
        found = file_and_page(file)[0].stat()
    except (OSError, ValueError):  # a path with a zero byte raises ValueError
        return None
    return found.st_size, found.st_mtime_ns


def path_bytes(path: str) -> bytes:
    """A path as bytes, because file names need not be valid text."""
    return os.fsencode(path.replace(os.sep, "/"))


def utf8_of(path: str) -> str:
    """A path as text, with escaped bytes where it is not UTF-8."""
    return path_bytes(path).decode("utf-8", "backslashreplace")


def is_inside(path: str) -> bool:
    """Whether a path, relative to a folder, stays inside."""
    return not ({"..", ""} & set(path.split("/")) or "\0" in path)


def composed(name: str) -> str:
    """A name in Unicode's NFC: systems write é as one letter or as two."""
    return unicodedata.normalize("NFC", name)


def as_spelled(folder: Path, path: str) -> str:
    """A relative path as the folder spells it, if the two differ only in composed letters."""
    if path.isascii() or os.path.isabs(path) or os.path.lexists(folder / path):
        return path
    place = folder
    for part in path.split("/"):
        place /= _spellings(place, file_stat(place)).get(composed(part), part)
    return place.relative_to(folder).as_posix()


@functools.lru_cache(16)
def _spellings(folder: Path, _: FileStat | None) -> dict[str, str]:
    """Names in a folder by their NFC; the folder's time is for the cache."""
    return {composed(name): name for name in os.listdir(folder)} if folder.is_dir() else {}


def doubt_about(names: Iterable[str]) -> str:
    """A question about class names that differ only in case or outer blanks, or an empty string."""
    first: dict[str, str] = {}
    for name in sorted(set(names)):
        twin = first.setdefault(name.strip().casefold(), name)
        if twin != name:
            return f"the classes {twin!r} and {name!r} differ only in case or blanks; if they are the same, rename one"
    return ""


def same_names(names: Iterable[str], recorded: Iterable[str]) -> set[str]:
    """The names that are recorded, also in another spelling: ``greek_character01`` for ``Greek/character01``."""
    wanted = set(names)
    known = set(map(composed, recorded))
    others = {_words_of(name) for name in known - wanted} - {""}  # names without letters are not compared
    return {name for name in wanted if name in known or _words_of(name) in others}


def _words_of(name: str) -> str:
    return re.sub(r"[\W_]+", " ", name.casefold()).strip()
