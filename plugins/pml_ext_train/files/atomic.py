"""Atomic replacement of files, locks, and reading of JSON and TOML."""

import contextlib
import errno
import glob
import json
import os
import re
import shlex
import socket
import stat
import tempfile
import threading
import tomllib
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from pml_ext.errors import ConfigError, DataError, UnwritableError, remedy_of, shortened

_TEMPORARY = re.compile(r"\.(.+)\.(\d+)(-\d+)*\.tmp")
_MACHINE = zlib.crc32(
    socket.gethostname().encode()
)  # in names of temporary files, because machines may share the folder


class DamagedError(ValueError):
    """A file cannot be parsed; the text has the reason without the path."""


def final_path(path: Path) -> Path | None:
    """The final path of a temporary file; None for other files."""
    match = _TEMPORARY.fullmatch(path.name)
    return path.with_name(match[1]) if match is not None else None


def write_atomically(path: Path, write: Callable[[Path], Any], ready: Callable[[Path], None] | None = None) -> None:
    """Call ``write(temporary_path)`` and move the result into place, creating the parent folder.

    ``ready(temporary_path)`` is called after fsync. Errors remove the temporary file, but Ctrl-C keeps it if ``ready``
    is given. UnwritableError if writing fails.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}-{_MACHINE}.tmp")
    with writing(path):
        path.parent.mkdir(exist_ok=True)
        if ready is None:  # checksums.recover() looks at what others left behind
            _remove_left_behind(path)
        try:
            temporary.touch()
            mode = stat.S_IMODE(temporary.stat().st_mode)
            write(temporary)
            temporary.chmod(mode)  # some libraries write a file that its owner alone can read
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            if ready:
                ready(temporary)
            os.replace(temporary, path)
        except BaseException as error:
            if ready is None or isinstance(error, Exception):
                with contextlib.suppress(OSError):  # the original error says more
                    temporary.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)


def _remove_left_behind(path: Path) -> None:
    """Delete temporary files for the same path, left by killed processes of this machine."""
    if os.name != "posix":  # elsewhere, os.kill would end the process
        return
    for temporary in path.parent.glob(f".{glob.escape(path.name)}.*-{_MACHINE}.tmp"):
        match = _TEMPORARY.fullmatch(temporary.name)
        if match is not None and match[1] == path.name and not _is_running(int(match[2])):
            temporary.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # of another user
        return True
    return True


def _sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power loss, where the file system can."""
    with contextlib.suppress(OSError):  # Windows cannot open folders
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Convert an OSError, also one that torch wraps, into UnwritableError with the file's path."""
    try:
        yield
    except UnwritableError:
        raise
    except (OSError, RuntimeError) as raised:
        error = raised.__context__ if isinstance(raised, RuntimeError) else raised
        if not isinstance(error, OSError):
            raise
        is_gone = isinstance(error, FileNotFoundError) and not path.parent.is_dir()
        gone = f"; the folder {path.parent} is gone" if is_gone else ""
        raise UnwritableError(
            f"cannot be written ({error.strerror or error}{gone}); what was written before stays{remedy_of(error)}",
            source=shortened(path),
        ) from error


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Convert an OSError, except FileNotFoundError, into DataError with the file's path."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        remedy = f"type: chmod u+r {shlex.quote(str(path))}" if isinstance(error, PermissionError) else "put it back"
        raise DataError(f"{path}: cannot be read ({error.strerror or error}); {remedy}") from error


@contextlib.contextmanager
def locked_folder(folder: Path, taken: Exception | None = None) -> Iterator[None]:
    """Create a folder and hold its exclusive lock inside the block.

    If another process has the lock, raise ``taken``; if it is None or a Warning, which is shown, wait.
    """
    # The file is not deleted: another process may wait for its lock. A soft lock may be given to two processes.
    lock = FileLock(folder / ".lock", fallback_to_soft=False)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            if isinstance(taken, Warning):
                warnings.warn(taken, stacklevel=8)
            elif taken is not None:
                raise taken from None
            lock.acquire()
        except OSError as error:
            if error.errno != errno.ENOSYS:
                raise
            raise UnwritableError(f"{folder}: its file system has no locks; choose a folder on another one") from None
    try:
        yield
    finally:
        lock.release()


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8 atomically, with its own line ends and escaped bytes."""
    write_atomically(path, lambda temporary: temporary.write_bytes(text.encode("utf-8", "surrogateescape")))


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write indented JSON atomically."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; DamagedError for anything else."""
    value = _parsed(path, json.loads, "JSON")
    if not isinstance(value, dict):
        raise DamagedError(f"it contains a {type(value).__name__}, not a table")
    return value


def read_toml(path: Path, table: str) -> dict[str, Any]:
    """Read TOML; DamagedError for anything else, or without ``table``."""
    value: dict[str, Any] = _parsed(path, tomllib.loads, "TOML")
    if not isinstance(value.get(table), dict):
        raise DamagedError(f"no table [{table}] in it")
    return value


def _parsed(path: Path, parse: Callable[[str], Any], kind: str) -> Any:
    try:
        with reading(path):
            return parse(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:  # invalid UTF-8 is a ValueError too
        raise DamagedError(f"not {kind}: {error}") from None


def toml_value(text: str, key: str) -> Any:
    """Parse a value as TOML (``0.1``, ``true``, ``[1, 2]``), or return the text itself.

    ConfigError, with ``key``, for integers that are too long or lists that are nested too deep.
    """
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    except ValueError as error:  # an integer of more digits than Python parses
        raise ConfigError(f"{key}={shortened(text, 100)}: {shortened(error, 300)}") from None
    except RecursionError:
        raise ConfigError(f"{key}={shortened(text, 100)}: nested too deep; type a simpler value") from None


def check_writable(option: str, place: Path, file: bool = False) -> None:
    """Raise ConfigError, which names the option, unless a folder or file can be written."""
    kind = "FILE" if file else "FOLDER"
    remedy = f"; type {option} {kind}" if option else ""
    folder = place.parent if file else place
    try:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            mode = place.stat().st_mode  # fails for a name that is too long
            if file and stat.S_ISDIR(mode):
                raise ConfigError(f"{place} is a folder{remedy}")
            if not file and stat.S_ISREG(mode):
                raise ConfigError(f"{place} is a file{remedy}")
        while not folder.exists():
            folder = folder.parent
        with tempfile.TemporaryFile(dir=folder):  # permissions do not show a read-only or full disk
            pass
    except OSError as error:
        where = shortened(place, 100)
        raise ConfigError(f"{where} cannot be written ({error.strerror}: {shortened(folder, 100)}){remedy}") from None
