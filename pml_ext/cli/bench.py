"""``pml-ext bench``."""

from __future__ import annotations

from typing import Annotated

import typer


def bench(
    losses: Annotated[
        list[str] | None, typer.Argument(metavar="[LOSS ...]", help="Names of losses; all of the plugins if left out.")
    ] = None,
    shapes: Annotated[
        str, typer.Option(help="BATCHxSIZExPER_CLASS, several separated by commas.")
    ] = "1024x512x4,120x512x8",
    repeats: Annotated[int, typer.Option(help="Rounds; in each, every function runs once.")] = 20,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    threads: Annotated[int | None, typer.Option(help="Threads of torch; as torch chooses if left out.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON.")] = False,
) -> None:
    """Time losses, forward and backward, against the floor and against what else one would pick."""
    from ..benchmark import Row, Shape
    from ..benchmark import bench as measure
    from .output import print_json, print_table, stderr

    console = stderr()
    wanted = [Shape.parse(text) for text in shapes.split(",")]
    rows = measure(
        losses or None,
        wanted,
        repeats=repeats,
        device=device,
        threads=threads,
        progress=lambda line: console.print(line),
    )
    if as_json:
        print_json([row.as_dict() for row in rows])
        return

    def cells(row: Row) -> list[str]:
        what = row.what if row.what == row.loss else f"  {row.what}"
        to_loss = "" if row.to_loss is None else f"{row.to_loss:.2f}"
        memory = f"{row.peak_bytes / 2**20:.1f}"
        return [
            str(row.shape),
            what,
            f"{row.milliseconds:.2f}",
            f"{row.to_floor:.2f}",
            to_loss,
            memory,
            str(row.rounds),
        ]

    columns = ["shape", "loss and its peers", "ms", "x floor", "x loss", "peak MiB", "rounds"]
    print_table(columns, [cells(row) for row in rows], right=range(2, 7))
