"""The checksums of a folder's files in ``SHA256SUMS``, with lines as the program sha256sum writes them.

They are of a finished run, and of an export: a file that was damaged, or is that of another run, is noticed even where
the file itself has no room for a checksum.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from .errors import DataError
from .files import is_left_over, sha256_of, write_text

SUMS = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64})  ([^\n\\]+)")


def write_sums(folder: Path, leave_out: Callable[[str], bool], anew: Callable[[str], bool] = lambda name: True) -> None:
    """Writes the checksums of the files of a folder, in one step.

    Args:
        folder: whose files are summed, in its sub-folders too.
        leave_out: whether a file is none of the folder's own, by its path in the folder.
        anew: whether a file has been written since its sum was taken; of others the old sum stays, if there is one.
    """
    old = _read(folder) or {}
    sums = {
        name: sha256_of(folder / name) if anew(name) or name not in old else old[name]
        for name in _names(folder, leave_out)
    }
    write_text(folder / SUMS, "".join(f"{digest}  {name}\n" for name, digest in sums.items()))


def has_all(folder: Path, leave_out: Callable[[str], bool]) -> bool:
    """Whether there is a checksum of each file of a folder.

    Args:
        folder: with a file of checksums, or without.
        leave_out: as of :func:`write_sums`.
    """
    return set(_names(folder, leave_out)) <= (_read(folder) or {}).keys()


def changed_files(folder: Path) -> list[str]:
    """The files of a folder that are not what was summed, by their paths in the folder.

    Files that are gone are not counted, and a file of checksums that is damaged itself is.

    Args:
        folder: without a file of checksums, none has changed.
    """
    sums = _read(folder)
    if sums is None:
        return [SUMS] if (folder / SUMS).exists() else []
    return [name for name in sums if (folder / name).is_file() and sha256_of(folder / name) != sums[name]]


def gone_files(folder: Path) -> list[str]:
    """What was summed and is no longer there, by paths in the folder.

    Args:
        folder: without a file of checksums, nothing is gone.
    """
    return [name for name in _read(folder) or {} if not (folder / name).exists()]


def is_summed(folder: Path, name: str) -> bool:
    """Whether a file of a folder is there and what was summed.

    Args:
        folder: with a file of checksums, or without.
        name: its path in the folder.
    """
    wanted = (_read(folder) or {}).get(name)
    return wanted is not None and (folder / name).is_file() and sha256_of(folder / name) == wanted


def check_unchanged(folder: Path, name: str, digest: str | None = None) -> None:
    """Refuses a file of a finished run that is not what the run wrote, and which no other file has.

    Args:
        folder: with a file of checksums; without, or without a checksum of the file, it is taken as it is.
        name: the file's path in it.
        digest: its SHA-256, where the caller has it.

    Raises:
        DataError: the text says how it is written again.
    """
    wanted = (_read(folder) or {}).get(name)
    if wanted is not None and (digest or sha256_of(folder / name)) != wanted:
        raise DataError(
            f"{folder / name}: not the file that the run wrote, by {folder / SUMS}; put it back, or delete "
            f"{folder / 'metrics.json'} and train with --resume: it is written again"
        )


def _read(folder: Path) -> dict[str, str] | None:
    """Checksums by path; None where there are none, or no such file."""
    try:
        text = (folder / SUMS).read_text("utf-8")
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    matches = [_LINE.fullmatch(line) for line in text.splitlines()]
    sums = {match[2]: match[1] for match in matches if match is not None}
    return sums if text.endswith("\n") and None not in matches else None


def _names(folder: Path, leave_out: Callable[[str], bool]) -> Iterator[str]:
    """The files that are summed, by their paths in the folder; none whose path is no line."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        own = name != SUMS and not leave_out(name) and not is_left_over(path)
        if own and path.is_file() and _LINE.fullmatch(f"{'0' * 64}  {name}"):
            yield name
