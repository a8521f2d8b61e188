"""How commands write: aligned tables and JSON on stdout, everything else on stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # takes a fifth of a second, which JSON need not
    from rich.console import Console

WIDE = 1000  # columns where stdout is a file or a pipe: nothing is cut


def process_number() -> int:
    """Return the rank of this process among those that ``torchrun`` started; 0 without it."""
    return int(os.environ.get("RANK", "0"))


def stdout() -> Console:
    """Return a console on stdout, as wide as the terminal, or without a limit where there is none."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else WIDE, highlight=False, markup=False, soft_wrap=False)


def stderr() -> Console:
    """Return a console on stderr."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False)


def say(text: str) -> None:
    """Write a remark of the program as one line on stderr."""
    stderr().print(f"pml-ext: {text}", soft_wrap=True)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = (), title: str = ""
) -> None:
    """Write an aligned table on stdout.

    Args:
        columns: the headings.
        rows: the cells.
        right: indices of the columns to align right.
        title: a line above it.
    """
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, expand=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index in set(right) else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console = stdout()
    if title:
        console.print(title)
    console.print(table)


def mean_and_std(about: Mapping[str, float | None]) -> str:
    """Format a mean and a standard deviation in percent, ``"71.4 ± 2.3"``, or ``"71.4 ± -"`` for a single run."""
    mean, std = about["mean"] or 0.0, about["std"]
    return f"{100 * mean:.1f} ± " + ("-" if std is None else f"{100 * std:.1f}")


def print_json(value: Any) -> None:
    """Write a value as JSON on stdout."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")
