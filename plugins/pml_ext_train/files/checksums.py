"""Checksums of a folder's files in ``SHA256SUMS``, as written by ``sha256sum``."""

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
_FILE = re.compile(rf"(?:{_LINE.pattern}\n)*")


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_sums(folder: Path) -> dict[str, str]:
    """Checksums by path; empty if ``SHA256SUMS`` is missing or damaged."""
    try:
        with reading(folder / SUMS):
            text = (folder / SUMS).read_text("utf-8")
    except (FileNotFoundError, UnicodeDecodeError):
        return {}
    if _FILE.fullmatch(text) is None:  # damaged, or the last line is cut
        return {}
    return {name: digest for digest, name in _LINE.findall(text)}


def write_sums(folder: Path, names: Iterable[str], keep: Callable[[str], bool] = lambda name: False) -> None:
    """Write checksums of the named files that exist; other files keep theirs if ``keep(name)``."""
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

    A process killed in between leaves a temporary file, which :func:`recover` moves. DamagedError, and the old file
    stays, unless the new one has the ``expected`` checksum.
    """

    def write_new_checksum(temporary: Path) -> None:
        digest = sha256_of(temporary)
        if expected not in (None, digest):
            raise DamagedError(f"{folder / name}: its checksum is not the expected one")
        sums = read_sums(folder)
        sums[name] = digest
        _write(folder, sums)

    write_atomically(folder / name, write, ready=write_new_checksum)


def recover(folder: Path, written: Iterable[str]) -> None:
    """Finish or undo file replacements of killed processes.

    No other process may use the folder. ``written`` are patterns of the files concerned: ``"records/*.csv"``.
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
    """Files that differ from their checksums, and ``SHA256SUMS`` if it is damaged."""
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
    """Files that have a checksum but no longer exist."""
    return [name for name in read_sums(folder) if not (folder / name).exists()]


def is_unchanged(folder: Path, name: str) -> bool:
    """Whether a file exists and matches its checksum."""
    return (folder / name).is_file() and read_sums(folder).get(name) == sha256_of(folder / name)
