"""Signals that end a run: SIGINT (Ctrl-C), SIGTERM and SIGHUP, which schedulers and terminals send.

Where work would be lost, the first one ends the run once an iteration is finished and a checkpoint written; elsewhere
at the next line. A second one ends the run at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

from ..errors import StoppedError

_ENDING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
_TWICE = 1.0  # seconds in which torchrun may pass on what its processes have had from the terminal themselves


@dataclass
class _State:
    process: int = 0  # that listens; 0 for none
    waits: bool = False
    received: int | None = None
    at: float = 0.0


_now = _State()


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """Inside, signals end a run as this module says; in another thread than the main one, nothing changes."""
    if threading.current_thread() is not threading.main_thread() or _now.process == os.getpid():
        yield
        return
    before = {number: signal.getsignal(number) for number in _ENDING}
    _now.process, _now.waits, _now.received = os.getpid(), False, None
    try:
        for number in _ENDING:
            if before[number] is not signal.SIG_IGN:  # as nohup wants it
                signal.signal(number, _receive)
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # None was not set by Python
                signal.signal(number, handler)
        _now.process = 0


def _receive(number: int, _frame: FrameType | None) -> None:
    if os.getpid() != _now.process:  # a worker of a data loader, which its reader ends
        return
    if _now.received is not None:
        if "TORCHELASTIC_RUN_ID" in os.environ and time.monotonic() - _now.at < _TWICE:
            return
        for each in _ENDING:  # a third one ends the process whatever it does
            signal.signal(each, signal.SIG_DFL)
        raise stopped(_now.received, "at once; what the last checkpoint does not have is lost")
    _now.received, _now.at = number, time.monotonic()
    if not _now.waits:
        raise stopped(number)
    if os.environ.get("RANK", "0") == "0":
        text = f"pml-ext: {_name(number)}: the iteration is finished and a checkpoint written; once more ends at once\n"
        os.write(2, text.encode())


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """Inside, a first signal is only noted; ask :func:`received`."""
    yield from _while_waiting(True)


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """Inside, a first signal ends the run at the next line, and one that was noted before does so now."""
    check()
    yield from _while_waiting(False)


def _while_waiting(value: bool) -> Iterator[None]:
    before, _now.waits = _now.waits, value
    try:
        yield
    finally:
        _now.waits = before


def received() -> int | None:
    """Return the signal that was noted; None if there was none, or nobody listens."""
    return _now.received if _now.process == os.getpid() else None


def check(where: str = "") -> None:
    """End the run by a :class:`StoppedError` if a signal was noted; ``where`` the run is, for the text."""
    number = received()
    if number is not None:
        raise stopped(number, where)


def stopped(number: int, where: str = "") -> StoppedError:
    """Return the error that ends a run for a signal; ``where`` the run is, for the text."""
    return StoppedError(number, f"stopped by {_name(number)}{' ' * bool(where)}{where}")


def _name(number: int) -> str:
    return signal.Signals(number).name
