"""One process per folder: a file in it says who trains there; what a killed process left is taken over."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import ConfigError, printable
from ..files import alone_in, is_alive, write_text

LOCK = "run.lock"
_BEAT = 15.0  # seconds between two signs of life
_SILENT = 300.0  # seconds without one, after which a process of another machine counts as dead


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[str]:
    """Around the work on a folder, which one process does at a time.

    The holder touches the file every 15 seconds. A holder of this machine is asked for by its number and the time at
    which it began, so that a killed one keeps nobody waiting; one of another machine counts as dead after 5 minutes of
    silence.

    Args:
        folder: of a run; it exists.

    Yields:
        What to tell of a lock that was taken over, "" of none.

    Raises:
        ConfigError: a living process holds it; the text says which, on which machine, and since when.
    """
    path = folder / LOCK
    mine = {
        "host": socket.gethostname(),
        "process": os.getpid(),
        "began": _began(os.getpid()),
        "since": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
    }
    with alone_in(folder):  # two do not take over the same lock
        word = _look(path)
        write_text(path, json.dumps(mine) + "\n")
    ended = threading.Event()
    beat = threading.Thread(target=_keep_alive, args=(path, ended), daemon=True, name="run.lock")
    beat.start()
    try:
        yield word
    finally:
        ended.set()
        beat.join()
        with contextlib.suppress(OSError):  # the folder may be gone
            if _read(path) == mine:
                path.unlink()


def _look(path: Path) -> str:
    """What to tell of the lock that is there; an error if its holder lives."""
    if not path.exists():
        return ""
    holder = _read(path)
    if holder is None:
        return f"{path} is damaged, so it is taken over"
    who = printable(f"process {holder.get('process')} on {holder.get('host')}, since {holder.get('since')}")
    if _lives(holder, path):
        raise ConfigError(
            f"{path.parent} is being written by another run ({who}); wait for it or stop it, or choose another --out"
        )
    return f"the run that had the folder before has not ended it ({who}); it is gone, and its lock is taken over"


def _lives(holder: dict[str, Any], path: Path) -> bool:
    if holder.get("host") != socket.gethostname():
        return time.time() - path.stat().st_mtime < _SILENT
    process = holder.get("process")
    if not isinstance(process, int) or process == os.getpid() or not is_alive(process):
        return False
    began = _began(process)
    return began is None or holder.get("began") is None or began == holder["began"]  # else its number was given anew


def _began(process: int) -> str | None:
    """When a process of this machine began, in a form that tells two of the same number apart; None if unknown."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {fields[19]}"
    except (OSError, IndexError):
        return None


def _read(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _keep_alive(path: Path, ended: threading.Event) -> None:
    while not ended.wait(_BEAT):
        with contextlib.suppress(OSError):  # a folder that is gone is told by who writes into it
            os.utime(path)
