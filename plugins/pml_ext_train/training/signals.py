"""Signals that end a run: SIGINT (Ctrl-C), SIGTERM and SIGHUP.

The first one ends the run once a checkpoint is written; a second one ends it at once.
"""

import contextlib
import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any

from pml_ext.errors import StoppedError

ENDING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
# Variables of processes to which another one passes signals on that they may have had themselves: of torchrun, and of
# comparisons with several jobs.
PASSED_ON = "PML_EXT_SIGNALS_ARE_PASSED_ON"
_PASSED_ON = ("TORCHELASTIC_RUN_ID", PASSED_ON)
_TWICE = 1.0  # seconds in which the same signal may come twice

_AGAIN = 0.01  # seconds after which a signal is sent again


class _SignalState:
    process = 0  # id of the listening process; 0 if no process listens
    is_deferred = False  # whether a first signal is only recorded
    received: int | None = None
    at = 0.0


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """Let signals end a run inside the block; does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread() or _SignalState.process == os.getpid():
        yield
        return
    before = {number: signal.getsignal(number) for number in ENDING}
    hook = sys.unraisablehook
    sys.unraisablehook = functools.partial(_send_again, hook)
    _SignalState.process = os.getpid()
    _SignalState.is_deferred = False
    _SignalState.received = None
    try:
        for number in ENDING:
            if before[number] is not signal.SIG_IGN:  # nohup ignores SIGHUP
                signal.signal(number, _receive)
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # None was not set by Python
                signal.signal(number, handler)
        sys.unraisablehook = hook
        _SignalState.process = 0


def _receive(number: int, _frame: FrameType | None) -> None:
    if os.getpid() != _SignalState.process:  # a worker of a data loader, which its reader ends
        return
    if _SignalState.received is not None:
        is_passed_on = any(name in os.environ for name in _PASSED_ON)
        if is_passed_on and time.monotonic() - _SignalState.at < _TWICE:
            return
        for each in ENDING:  # a third one ends the process whatever it does
            signal.signal(each, signal.SIG_DFL)
        raise stopped(_SignalState.received, "at once; everything since the last checkpoint is lost")
    _SignalState.received = number
    _SignalState.at = time.monotonic()
    if not _SignalState.is_deferred:
        raise stopped(number)
    if os.environ.get("RANK", "0") == "0":
        name = signal.Signals(number).name
        text = f"pml-ext: {name}: stopping after this iteration, with a checkpoint; send it again to stop at once\n"
        with contextlib.suppress(OSError):  # a full disk, or a reader that is gone
            os.write(2, text.encode())


def _send_again(report: Callable[[Any], Any], dropped: "sys.UnraisableHookArgs") -> None:
    """Resend a signal whose StoppedError Python dropped."""
    error = dropped.exc_value
    if not isinstance(error, StoppedError):
        report(dropped)
        return
    _SignalState.received = None
    threading.Timer(_AGAIN, _send, (error.signal,)).start()


def _send(number: int) -> None:
    if os.name == "posix":
        os.kill(os.getpid(), number)  # interrupts the main thread, where signal.raise_signal would not
    else:
        signal.raise_signal(number)  # on Windows, os.kill ends the process at once


@contextlib.contextmanager
def deferred(is_deferred: bool = True) -> Iterator[None]:
    """Only record a first signal inside the block; see :func:`received`."""
    before = _SignalState.is_deferred
    _SignalState.is_deferred = is_deferred
    try:
        yield
    finally:
        _SignalState.is_deferred = before


def at_once() -> AbstractContextManager[None]:
    """Let signals end the run at once inside the block; one recorded before ends it now."""
    check()
    return deferred(False)


@contextlib.contextmanager
def handle_signals(wait: bool = False) -> Iterator[Callable[[], int | None]]:
    """Handle signals inside the block, and yield :func:`received`.

    The first signal raises StoppedError or, with ``wait``, is only recorded.
    """
    with listening(), deferred() if wait else at_once():
        yield received


def received() -> int | None:
    """The recorded signal; None without one, or outside a listening block."""
    return _SignalState.received if _SignalState.process == os.getpid() else None


def check(where: str = "") -> None:
    """Raise StoppedError if a signal was recorded; ``where`` completes its text."""
    if (number := received()) is not None:
        raise stopped(number, where)


def stopped(number: int, where: str = "") -> StoppedError:
    """The error that ends a run."""
    return StoppedError(number, f"stopped by {signal.Signals(number).name} {where}".rstrip())
