"""``pml-ext report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .train import Device, progress


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    data: Annotated[Path | None, typer.Option(help="The folder of the data, where the data set wants one.")] = None,
    device: Annotated[Device, typer.Option(help="Where to compute.")] = Device.auto,
) -> None:
    """Draw the report of a finished run again."""
    from ..experiment import draw_report
    from .output import stderr, stdout

    with progress(stderr()) as listener:
        place = draw_report(run, device.value, data, listener)
    stdout().print(f"report: {place}")
