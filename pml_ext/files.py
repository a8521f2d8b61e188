"""Files that are replaced in one step: a reader sees the old file or the new one, never half of either."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from .errors import ConfigError, UnwritableError

_LEFT_OVER = re.compile(r"\.(.+)\.(\d+)(?:-\d+)?\.tmp")


class DamagedError(ValueError):
    """A file that cannot be read; the text says why, without the path."""


def temporary_path(path: Path) -> Path:
    """Return the name under which this thread writes a file before it is moved into place."""
    thread = "" if threading.current_thread() is threading.main_thread() else f"-{threading.get_ident()}"
    return path.with_name(f".{path.name}.{os.getpid()}{thread}.tmp")


def left_over(path: Path) -> tuple[Path | None, int]:
    """Return the file that a temporary file was to become, and the number of its process; None for other files."""
    match = _LEFT_OVER.fullmatch(path.name)
    return (path.with_name(match[1]), int(match[2])) if match is not None else (None, 0)


def write_atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """Call ``write(temporary_path)`` and move the result into place.

    Args:
        path: the file to write; its folder is made, if the folder above exists.
        write: called with a path in the same folder.

    Raises:
        UnwritableError: the disk is full, the folder is gone or may not be written; the text has the path.
    """
    temporary = temporary_path(path)
    with writing(path):
        path.parent.mkdir(exist_ok=True)
        try:
            write(temporary)
            flush(temporary)
            os.replace(temporary, path)
            flush_folder(path.parent)
        finally:
            with contextlib.suppress(OSError):  # the first error says more
                temporary.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Write a file's bytes to the disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def flush_folder(folder: Path) -> None:
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
    """Turn the system's errors about a file into an error that has its path.

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


def is_alive(process: int) -> bool:
    """Whether a process of this machine lives, by its number."""
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


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8, in one step."""
    write_atomically(path, lambda temporary: temporary.write_text(text, "utf-8"))


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a value as indented JSON, in one step."""
    write_text(path, json_text(value))


def json_text(value: Mapping[str, Any]) -> str:
    """Return a value as indented JSON."""
    return json.dumps(value, indent=2) + "\n"


def read_json(path: Path) -> dict[str, Any]:
    """Read a table from JSON.

    Raises:
        DamagedError: anything else.
    """
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"no JSON: {error}") from None
    if not isinstance(value, dict):
        raise DamagedError(f"it holds a {type(value).__name__}, not a table")
    return value


def read_toml(path: Path, table: str) -> dict[str, Any]:
    """Read tables from TOML.

    Args:
        path: the file.
        table: the name of one that must be there.

    Raises:
        DamagedError: anything else.
    """
    try:
        value = tomllib.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:  # no UTF-8 is a ValueError too
        raise DamagedError(f"no TOML: {error}") from None
    if not isinstance(value.get(table), dict):
        raise DamagedError(f"no table [{table}] in it")
    return value


def toml_value(text: str) -> Any:
    """Return a value that somebody typed: as TOML reads it, or else the text itself.

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
