"""How a run says how it goes on: what it tells its listener, epoch by epoch, and the warnings that it keeps."""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Literal, Protocol

from ..errors import TrainingWarning

OnNonfinite = Literal["stop", "skip"]  # a loss, an embedding or a gradient that is NaN or infinite


class Listener(Protocol):
    """Hears how a run goes on; the command line draws it."""

    def step(self, text: str) -> None:
        """Something begins, for example ``"testing"``."""

    def epoch(self, epoch: int, epochs: int, iterations: int) -> None:
        """An epoch of this many iterations begins."""

    def iteration(self, loss: float) -> None:
        """An iteration is done."""

    def epoch_done(self, epoch: int, epochs: int, loss: float, images_per_second: float, seconds_left: float) -> None:
        """An epoch is done: its mean loss, how fast it trained, and how long the epochs that are left will take."""

    def warn(self, text: str) -> None:
        """Something looks wrong, but goes on."""


class Silence:
    """A listener that does nothing."""

    def step(self, text: str) -> None:
        """Nothing."""

    def epoch(self, epoch: int, epochs: int, iterations: int) -> None:
        """Nothing."""

    def iteration(self, loss: float) -> None:
        """Nothing."""

    def epoch_done(self, epoch: int, epochs: int, loss: float, images_per_second: float, seconds_left: float) -> None:
        """Nothing."""

    def warn(self, text: str) -> None:
        """Nothing."""


class Pace:
    """How long the iterations that are left will take, at the pace since this was made.

    Args:
        done: iterations before now.
        everything: iterations of the whole run.
    """

    def __init__(self, done: int, everything: int) -> None:
        self._before, self._everything, self._begun = done, everything, time.perf_counter()

    def seconds_left(self, done: int) -> float:
        """The time from now to the end.

        Args:
            done: iterations before now; more than when this was made.
        """
        pace = (time.perf_counter() - self._begun) / (done - self._before)
        return pace * (self._everything - done)


class Alarm:
    """Rings when some time has passed since it last rang, or was made.

    Args:
        minutes: None for never.
    """

    def __init__(self, minutes: float | None) -> None:
        self._seconds = math.inf if minutes is None else 60 * minutes
        self._since = time.monotonic()

    def rings(self) -> bool:
        """Whether the time has passed; then it begins anew."""
        if time.monotonic() - self._since < self._seconds:
            return False
        self._since = time.monotonic()
        return True


@contextlib.contextmanager
def heard(warn: Callable[[str], None]) -> Iterator[None]:
    """Inside, each :class:`TrainingWarning` goes to a run; other warnings are shown as always.

    Args:
        warn: called with the text.
    """
    with warnings.catch_warnings():
        shown = warnings.showwarning

        def show(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, TrainingWarning):
                warn(str(message))
            else:
                shown(message, category, *where, **more)

        warnings.showwarning = show
        warnings.filterwarnings("always", category=TrainingWarning)
        yield
