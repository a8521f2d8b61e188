"""The progress of a run: its listener, its pace, and warnings that it forwards."""

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
    """The observer of a run; the command line's draws it."""

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

    def _nothing(self, *_: object) -> None: ...

    step = epoch = iteration = epoch_done = warn = _nothing


class Pace:
    """The pace of iterations since this was made, from ``done`` of all ``iterations`` on."""

    def __init__(self, done: int, iterations: int) -> None:
        self._before, self._iterations, self._begun = done, iterations, time.perf_counter()

    def seconds_left(self, done: int) -> float:
        """Return the time to the end at this pace, when more iterations are done than at the beginning."""
        pace = (time.perf_counter() - self._begun) / (done - self._before)
        return pace * (self._iterations - done)


class Interval:
    """A number of minutes that recurs; None for never."""

    def __init__(self, minutes: float | None) -> None:
        self._seconds = math.inf if minutes is None else 60 * minutes
        self._since = time.monotonic()

    def due(self) -> bool:
        """Whether the time has passed; then it begins anew."""
        if time.monotonic() - self._since < self._seconds:
            return False
        self._since = time.monotonic()
        return True


@contextlib.contextmanager
def forward_warnings(warn: Callable[[str], None]) -> Iterator[None]:
    """Inside, call ``warn`` with the text of each :class:`TrainingWarning`; show other warnings as always."""
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
