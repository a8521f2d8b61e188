"""Listeners: observers of a run, for example a progress bar."""

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from pml_ext.errors import TrainingWarning


class Listener(Protocol):
    """The observer of a run."""

    def step(self, text: str) -> None:
        """Receive a line about a beginning step or a finished epoch."""

    def iteration(self, epoch: int, done: int, iterations: int, loss: float) -> None:
        """Receive the number of finished iterations, and the last loss."""

    def warn(self, text: str) -> None:
        """Receive a warning; the run continues."""


class Silence:
    """A listener that does nothing."""

    def step(self, *_: object) -> None:
        """Do nothing."""

    iteration = warn = step


@contextlib.contextmanager
def forward_warnings(warn: Callable[[str], None]) -> Iterator[None]:
    """Pass each :class:`TrainingWarning` to ``warn``; show other warnings as usual."""
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


@contextlib.contextmanager
def forward_notes(say: Callable[[str], None]) -> Iterator[None]:
    """Pass what components log to the logger ``pml_ext`` at level INFO to ``say``."""
    logger = logging.getLogger("pml_ext")
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: say(record.getMessage())  # type: ignore[method-assign]
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
