"""Progress on stderr: a bar on a terminal, a line every ten seconds or every epoch elsewhere."""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .output import stderr

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from ..retrieval import Progress as Embedded

SECONDS = 10.0  # between two lines where there is no bar


class Bar:
    """A bar, or lines."""

    def __init__(self, console: Console, drawn: Progress | None) -> None:
        self._console, self.drawn, self._said = console, drawn, time.monotonic()
        self._task = drawn.add_task("", total=None, visible=False, note="") if drawn else None

    def line(self, text: str) -> None:
        """Write a line above the bar."""
        self._console.print(text, soft_wrap=True)

    def update(self, what: str, done: int, total: int, unit: str = "", note: str = "") -> None:
        """Draw how much is done."""
        if self.drawn is not None and self._task is not None:
            self.drawn.update(self._task, description=what, completed=done, total=total, note=note, visible=True)
        elif time.monotonic() - self._said >= SECONDS:
            self._said = time.monotonic()
            self.line(f"{what} {done:,} of {total:,}{unit}" + f": {note}" * bool(note))

    def embedding(self, now: Embedded) -> None:
        """Draw how many images are embedded."""
        left = datetime.timedelta(seconds=round(now.seconds_left))
        self.update("embedded", now.done, now.images, " images", f"{now.rate:.0f} images/s, {left} left")


@contextlib.contextmanager
def progress(console: Console | None = None) -> Iterator[Bar]:
    """Draw a bar while the block runs, on stderr by default."""
    console = stderr() if console is None else console
    if not console.is_terminal:
        yield Bar(console, None)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    described, note = TextColumn("{task.description}"), TextColumn("{task.fields[note]}")
    columns = described, BarColumn(), MofNCompleteColumn(), note, TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as drawn:
        yield Bar(console, drawn)


class TrainingProgress:
    """A listener of a run: steps and warnings as lines; iterations as a bar, or a line per epoch."""

    def __init__(self, bar: Bar) -> None:
        self._bar, self._epoch, self._done, self._iterations = bar, "", 0, 0

    def step(self, text: str) -> None:
        """Write what begins."""
        self._bar.line(text)

    def epoch(self, epoch: int, epochs: int, iterations: int) -> None:
        """Begin the bar of an epoch."""
        self._epoch, self._done, self._iterations = f"epoch {epoch} of {epochs}", 0, iterations

    def iteration(self, loss: float) -> None:
        """Move the bar."""
        self._done += 1
        if self._bar.drawn is not None:
            self._bar.update(self._epoch, self._done, self._iterations, note=f"loss {loss:.4f}")

    def epoch_done(self, epoch: int, epochs: int, loss: float, images_per_second: float, seconds_left: float) -> None:
        """Write a line where there is no bar."""
        if self._bar.drawn is None:
            left = datetime.timedelta(seconds=round(seconds_left))
            text = f"epoch {epoch} of {epochs}: loss {loss:.4f}, {images_per_second:.0f} images/s, {left} left"
            self._bar.line(text)

    def warn(self, text: str) -> None:
        """Write a warning."""
        self._bar.line(f"warning: {text}")
