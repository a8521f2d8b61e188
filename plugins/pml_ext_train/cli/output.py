"""Output of the commands: results on stdout, the rest on stderr."""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:  # 0.2 s to import, not needed for JSON
    from rich.console import Console


WIDE = 1000  # width in columns if stdout is a file or a pipe, so that nothing is cut
SECONDS = 10.0  # between two lines of progress without a bar


class Messages:
    """The stream of messages; a full disk or a closed pipe never ends a command.

    After the first failure, messages are discarded.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text."""
        try:
            self._stream.write(text)
        except OSError:
            self._discard()
        return len(text)

    def flush(self) -> None:
        """Write what is buffered."""
        try:
            self._stream.flush()
        except OSError:
            self._discard()

    def _discard(self) -> None:
        """Connect the stream with the null device, so that its buffer can be written at exit."""
        with open(os.devnull, "wb") as null:
            os.dup2(null.fileno(), self._stream.fileno())


def process_number() -> int:
    """Return the rank of this process; 0 without torchrun."""
    return int(os.environ.get("RANK", "0"))


def stdout(width: int | None = None) -> Console:
    """Return a console on stdout; 1,000 columns wide without a terminal."""
    from rich.console import Console

    if width is None and not sys.stdout.isatty():
        width = WIDE
    return Console(width=width, highlight=False, markup=False)


def stderr() -> Console:
    """Return a console on stderr."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False)


def say(text: str) -> None:
    """Write a message as one line on stderr."""
    stderr().print(f"pml-ext: {text}", soft_wrap=True)


def print_json(value: Any) -> None:
    """Write a value as JSON; data classes become objects."""
    sys.stdout.write(json.dumps(value, indent=2, default=dataclasses.asdict) + "\n")


def print_result(
    as_json: bool,
    value: Any,
    *lines: str,
    columns: Sequence[str] = (),
    rows: Iterable[Sequence[str]] = (),
    right: Iterable[int] = (),
) -> None:
    """Write a value as JSON, or as lines and a table."""
    if as_json:
        print_json(value)
        return
    if columns:
        print_table(columns, rows, right)
    for line in lines:
        stdout().print(line, soft_wrap=True)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = (), width: int | None = None
) -> None:
    """Write a table; the columns in ``right`` are right-aligned.

    Paths are never wrapped, so a table may be wider than the terminal.
    """
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    right = set(right)
    rows = list(rows)
    console = stdout(width)
    needed = []
    for index, column in enumerate(columns):
        cells = [column, *(row[index] for row in rows)]
        longest = max(map(len, cells))
        has_paths = any(map(_is_path, cells))
        needed.append(longest if has_paths else min(longest, 20))
        table.add_column(
            column,
            justify="right" if index in right else "left",
            overflow="fold",
            no_wrap=has_paths,
            min_width=longest if has_paths else None,
        )
    for row in rows:
        table.add_row(*row)
    if any(column.no_wrap for column in table.columns):
        console.width = max(console.width, sum(needed) + 2 * len(needed))
    console.print(table)


def _is_path(cell: str) -> bool:
    return "/" in cell and len(cell.split()) < 4 and "\n" not in cell


def mean_and_std(about: Mapping[str, float | None]) -> str:
    """Format in percent: ``"71.4 ± 2.3"``, or ``"71.4 ± -"`` for one run; empty for NaN."""
    mean = about["mean"] or 0.0
    if math.isnan(mean):
        return ""
    deviation = "-" if about["std"] is None else f"{100 * about['std']:.1f}"
    return f"{100 * mean:.1f} ± {deviation}"


class Progress:
    """Progress on stderr: a line per epoch, and a bar, or a line every ten seconds."""

    def __init__(self, console: Console | None = None) -> None:
        from rich import progress

        self._console = console or stderr()
        self._time_of_last_line = time.monotonic()
        self._warnings: set[str] = set()
        self._bar = progress.Progress(
            "{task.description}",
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeRemainingColumn(),
            console=self._console,
            transient=True,
        )
        self._bar.disable = not self._console.is_terminal
        self._task = self._bar.add_task("", total=None, visible=False)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def step(self, text: str) -> None:
        """Write a message."""
        self._console.print(text, soft_wrap=True)

    def warn(self, text: str) -> None:
        """Write a warning, once for several runs."""
        if text not in self._warnings:
            self._warnings.add(text)
            self.step(f"warning: {text}")

    def iteration(self, epoch: int, done: int, iterations: int, loss: float) -> None:
        """Update the bar after an iteration."""
        self._bar.update(
            self._task,
            description=f"epoch {epoch}: loss {loss:.4f}",
            completed=done,
            total=iterations,
            visible=True,
        )

    def embedding(self, now: Any) -> None:
        """Show how many images are embedded, with ``done``, ``images``, ``rate`` and ``seconds_left``."""
        self._bar.update(self._task, description="embedded", completed=now.done, total=now.images, visible=True)
        if self._bar.disable and time.monotonic() - self._time_of_last_line >= SECONDS:
            self._time_of_last_line = time.monotonic()
            left = datetime.timedelta(seconds=round(now.seconds_left))
            self.step(f"embedded {now.done:,} of {now.images:,} images: {now.rate:.0f} images/s, {left} left")
