"""How far a pass over images is: a bar on a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from ..retrieval import Listener, Progress

SECONDS = 10.0  # between two lines


@contextlib.contextmanager
def embedding_progress(console: Console) -> Iterator[Listener]:
    """What a run tells of the images that it embeds.

    Args:
        console: on stderr.
    """
    if not console.is_terminal:
        yield _lines(console)
        return
    from rich import progress

    columns = (
        progress.TextColumn("embedding"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[pace]}"),
    )
    with progress.Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("embedding", total=None, visible=False, pace="")

        def draw(now: Progress) -> None:
            bar.update(task, total=now.images, completed=now.done, visible=True, pace=_pace(now))

        yield draw


def _lines(console: Console) -> Listener:
    said = time.monotonic()

    def write(now: Progress) -> None:
        nonlocal said
        if time.monotonic() - said >= SECONDS:
            said = time.monotonic()
            console.print(f"embedded {now.done:,} of {now.images:,} images: {_pace(now)}", soft_wrap=True)

    return write


def _pace(now: Progress) -> str:
    return f"{now.rate:.0f} images/s, {datetime.timedelta(seconds=round(now.seconds_left))} left"
