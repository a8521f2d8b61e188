"""Files that are replaced in one step and carry a checksum: a reader sees a whole one, or says that it is damaged.

A reader sees the old file or the new one, never half of either. JSON and TOML have the number of the format and the
SHA-256 of the rest as values of their own; files of other formats end in a line that has both.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import sys
import threading
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from .errors import ConfigError, UnwritableError

FORMAT = 2  # of all that is written here; the files of format 1 had no checksums
_SEAL = re.compile(rb"\npml-ext format (\d{1,6}) sha256 ([0-9a-f]{64})\n")
_SEAL_BYTES = 128  # at most
_LEFT_OVER = re.compile(r"\.(.+)\.(\d+)(?:-\d+)?\.tmp")
_KEYS = ("format", "sha256")
_written: set[Path] = set()  # temporary files of this process, by its threads


class DamagedError(ValueError):
    """A file is not what was written; the text says how, without the path."""


class EarlierFormatError(DamagedError):
    """A file without a checksum, as earlier versions wrote it."""


def write_atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """Calls ``write(temporary_path)`` and moves the result into place.

    Args:
        path: the file to write; its folder is made, if the folder above exists.
        write: called with a path in the same folder.

    Raises:
        UnwritableError: the disk is full, the folder is gone or may not be written; the text has the path.
    """
    thread = "" if threading.current_thread() is threading.main_thread() else f"-{threading.get_ident()}"
    temporary = path.with_name(f".{path.name}.{os.getpid()}{thread}.tmp")
    with writing(path):
        path.parent.mkdir(exist_ok=True)
        _written.add(temporary.absolute())
        try:
            write(temporary)
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
            _flush_folder(path.parent)
        finally:
            _written.discard(temporary.absolute())
            with contextlib.suppress(OSError):  # the first error says more
                temporary.unlink(missing_ok=True)


def _flush_folder(folder: Path) -> None:
    """Write a folder's entries to the disk, so that a file moved into it survives a power loss."""
    if os.name == "nt":  # which opens no folders
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Around what writes a file: what the system refuses becomes an error that has the path.

    Args:
        path: the file.

    Raises:
        UnwritableError: the system refused.
    """
    try:
        yield
    except UnwritableError:
        raise
    except OSError as error:
        gone = "" if path.parent.is_dir() else f"; the folder {path.parent} is gone"
        reason = f"{path}: cannot be written ({error.strerror or error}{gone}); what was written before stays"
        raise UnwritableError(reason) from error


def write_text(path: Path, text: str) -> None:
    """Writes a text in UTF-8, in one step."""
    write_atomically(path, lambda temporary: temporary.write_text(text, "utf-8"))


def is_left_over(path: Path) -> bool:
    """Whether a file is one that a process did not come to move into place."""
    return _LEFT_OVER.fullmatch(path.name) is not None


def remove_left_overs(folder: Path, names: Collection[str] | None = None) -> None:
    """Removes the temporary files that killed processes have left in a folder.

    Args:
        folder: need not exist; its sub-folders are left alone.
        names: of the files that the caller alone writes; None for all of them. The temporary file of another one stays
            while a process of its number lives.
    """
    for path in folder.glob(".*.tmp"):
        match = _LEFT_OVER.fullmatch(path.name)
        if match is None or path.absolute() in _written:
            continue
        process = int(match[2])
        if names is None or match[1] in names or process == os.getpid() or not is_alive(process):
            path.unlink(missing_ok=True)


def is_alive(process: int) -> bool:
    """Whether a process of this machine lives.

    Args:
        process: its number.
    """
    if os.name == "nt":  # os.kill would end it
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


_locked: set[int] = set()  # handles of the folders that this process has for itself


def _let_go() -> None:
    """In a process that was forked off: a lock is held as long as any process has its handle open."""
    for handle in _locked:
        os.close(handle)
    _locked.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


@contextlib.contextmanager
def alone_in(folder: Path, waits: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Inside, no other process is in such a block of the same folder: a second one waits; a killed one lets go.

    Args:
        folder: that is there.
        waits: called before this process waits for another one.

    Raises:
        UnwritableError: the folder cannot be opened.
    """
    if sys.platform == "win32":
        yield
        return
    import fcntl

    with writing(folder):
        handle = os.open(folder, os.O_RDONLY)
    _locked.add(handle)
    try:
        with contextlib.suppress(OSError):  # a file system without locks, as some of clusters
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waits()
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        if handle in _locked:
            _locked.remove(handle)
            os.close(handle)


# JSON and TOML


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Writes a value as indented JSON with its checksum, in one step."""
    write_text(path, json.dumps(sealed(value), indent=2) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """The value that :func:`write_json` wrote; without a checksum, as earlier versions wrote it, too.

    Raises:
        DamagedError: anything else.
    """
    try:
        return unsealed(json.loads(path.read_bytes()))
    except DamagedError:
        raise
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"no JSON: {error}") from None


def write_toml(path: Path, value: Mapping[str, Any], table: str) -> None:
    """Writes tables as TOML with their checksum, in one step.

    Args:
        path: the file.
        value: the tables.
        table: the one that gets the format and the checksum.
    """
    import tomli_w

    seal = {key: item for key, item in sealed(value).items() if key in _KEYS}
    write_text(path, tomli_w.dumps({**value, table: {**value[table], **seal}}))


def read_toml(path: Path, table: str) -> dict[str, Any]:
    """What :func:`write_toml` wrote; without a checksum, as earlier versions wrote it, too.

    Raises:
        DamagedError: anything else.
    """
    try:
        value = tomllib.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:  # no UTF-8 is a ValueError too
        raise DamagedError(f"no TOML: {error}") from None
    own = value.get(table)
    if not isinstance(own, dict):
        raise DamagedError(f"no table [{table}] in it")
    seal = {key: own.pop(key) for key in _KEYS if key in own}
    return unsealed({**value, **seal})


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """A value with the number of the format and its checksum, ``"format"`` and ``"sha256"``, the first of its keys.

    Args:
        value: of what JSON has.
    """
    return {"format": FORMAT, "sha256": _digest(value), **value}


def unsealed(value: Any) -> dict[str, Any]:
    """What :func:`sealed` was given; a value of earlier versions, which has neither key, as it is.

    Args:
        value: as it was read.

    Raises:
        DamagedError: it is not what was written.
    """
    if not isinstance(value, dict):
        raise DamagedError(f"it holds a {type(value).__name__}, not a table")
    rest = {key: item for key, item in value.items() if key not in _KEYS}
    if not any(key in value for key in _KEYS):
        return rest
    _check_format(value.get("format"))
    if value.get("sha256") != _digest(rest):
        raise DamagedError("its checksum does not fit")
    return rest


def _digest(value: Mapping[str, Any]) -> str:
    text = json.dumps(json.loads(json.dumps(value, default=str)), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _check_format(number: Any) -> None:
    if not isinstance(number, int) or isinstance(number, bool) or number < 2:
        raise DamagedError("its format is unknown")
    if number > FORMAT:
        raise DamagedError(f"it has format {number}, of a later pml-ext; this one reads format {FORMAT}")


# Files of other formats


def write_sealed(path: Path, write: Callable[[Path], Any]) -> None:
    """Calls ``write(temporary_path)``, adds a line with the checksum, and moves the result into place.

    Args:
        path: the file to write, of a format whose readers do not mind bytes behind its end, as readers of zip files.
        write: called with a path in the same folder.

    Raises:
        UnwritableError: as of :func:`write_atomically`.
    """

    def write_and_seal(temporary: Path) -> None:
        write(temporary)
        with temporary.open("rb+") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            file.write(f"\npml-ext format {FORMAT} sha256 {digest}\n".encode())

    write_atomically(path, write_and_seal)


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal digits.

    Args:
        path: of the file.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_seal(file: IO[bytes]) -> None:
    """Checks that an open file is what :func:`write_sealed` wrote; afterwards it stands at its beginning.

    Raises:
        EarlierFormatError: a zip file without a checksum.
        DamagedError: anything else.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _SEAL_BYTES))
    end = file.read()
    match = next((match for match in _SEAL.finditer(end) if match.end() == len(end)), None)
    file.seek(0)
    if match is None:
        if end[-22:-18] == b"PK\x05\x06":  # the last record of a zip file
            raise EarlierFormatError("it is of an earlier format, without a checksum")
        raise DamagedError("the file is damaged (cut, or with something else behind its end)")
    _check_format(int(match[1]))
    digest, left = hashlib.sha256(), size - (match.end() - match.start())
    while left > 0 and (block := file.read(min(left, 1 << 20))):
        digest.update(block)
        left -= len(block)
    file.seek(0)
    if digest.hexdigest() != match[2].decode():
        raise DamagedError("the file is damaged (its checksum does not fit)")


# What is typed


def toml_value(text: str) -> Any:
    """A value that somebody typed: as TOML reads it, or else the text itself.

    Args:
        text: ``0.1``, ``true``, ``[1, 2]``, ``"text"`` or ``text``.

    Raises:
        ConfigError: an integer of more digits than Python reads.
    """
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    except ValueError as error:
        raise ConfigError(f"--set ...={text}: {error}") from None
