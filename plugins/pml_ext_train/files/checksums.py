"""Checksums of a folder's files in ``SHA256SUMS``, in the format of the program sha256sum."""

from __future__ import annotations

import fnmatch
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from . import DamagedError, final_path, reading, write_atomically, write_text

SUMS = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64})  ([^\n\\]+)")


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_sums(folder: Path) -> dict[str, str]:
    """Return a folder's checksums by path; none if ``SHA256SUMS`` is missing or damaged."""
    try:
        with reading(folder / SUMS):
            text = (folder / SUMS).read_text("utf-8")
    except (FileNotFoundError, UnicodeDecodeError):
        return {}
    *lines, rest = text.split("\n")
    if rest:  # the last line is cut
        return {}
    sums = {}
    for line in lines:
        match = _LINE.fullmatch(line)
        if match is None:
            return {}
        digest, name = match.groups()
        sums[name] = digest
    return sums


def write_sums(folder: Path, names: Iterable[str], keep: Callable[[str], bool] = lambda name: False) -> None:
    """Write the checksums of the named files that exist; other files keep theirs if ``keep(name)`` is true."""
    sums = {name: digest for name, digest in read_sums(folder).items() if keep(name) and (folder / name).is_file()}
    for name in names:
        if (folder / name).is_file():
            sums[name] = sha256_of(folder / name)
    _write(folder, sums)


def _write(folder: Path, sums: Mapping[str, str]) -> None:
    lines = []
    for name, digest in sorted(sums.items()):
        line = f"{digest}  {name}"
        if _LINE.fullmatch(line):
            lines.append(f"{line}\n")
    write_text(folder / SUMS, "".join(lines))


def replace_file(folder: Path, name: str, write: Callable[[Path], Any], expected: str | None = None) -> None:
    """Write a file's new checksum, then replace the file, each atomically.

    Raise DamagedError, and keep the old file, if the new one has another checksum than ``expected``.

    A process that is killed between the two leaves the file under a temporary name; :func:`recover` moves it.
    """

    def write_new_checksum(temporary: Path) -> None:
        digest = sha256_of(temporary)
        if expected not in (None, digest):
            raise DamagedError(f"{folder / name}: its checksum is not the one expected")
        sums = read_sums(folder)
        sums[name] = digest
        _write(folder, sums)

    write_atomically(folder / name, write, ready=write_new_checksum)


def recover(folder: Path, written: Iterable[str]) -> None:
    """Finish or undo the file replacements of killed processes in a folder that no other process uses.

    ``written`` are the files that such processes write, as patterns of paths: ``"records/*.csv"``. Others stay.
    """
    sums = read_sums(folder)
    for pattern in map(Path, (SUMS, *written)):
        for temporary in (folder / pattern.parent).glob(f".{pattern.name}.*.tmp"):
            path = final_path(temporary)
            if path is None or not fnmatch.fnmatchcase(path.name, pattern.name):
                continue
            if sums.get(path.relative_to(folder).as_posix()) == sha256_of(temporary):
                os.replace(temporary, path)
            else:
                temporary.unlink()


def changed_files(folder: Path) -> list[str]:
    """Return the files of a folder that differ from their checksums, by path, and ``SHA256SUMS`` if it is damaged."""
    sums = read_sums(folder)
    if not sums:
        return [SUMS] if (folder / SUMS).exists() else []
    changed = []
    for name, digest in sums.items():
        path = folder / name
        with reading(path):
            if path.is_file() and sha256_of(path) != digest:
                changed.append(name)
    return changed


def missing_files(folder: Path) -> list[str]:
    """Return the files that have a checksum but no longer exist, by path."""
    return [name for name in read_sums(folder) if not (folder / name).exists()]


def is_unchanged(folder: Path, name: str) -> bool:
    """Return whether a file exists and matches its checksum."""
    return (folder / name).is_file() and read_sums(folder).get(name) == sha256_of(folder / name)
