"""``pml-ext bench``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .train import Device

if TYPE_CHECKING:
    from ..benchmark import Point, Row
    from ..experiment.profile import StepProfile

SHAPES, ROUNDS, STEPS = "1024x512x4,120x512x8", 20, 60


def bench(
    losses: Annotated[
        list[str] | None, typer.Argument(metavar="[LOSS ...]", help="Names of losses; all of the plugins if left out.")
    ] = None,
    shapes: Annotated[
        str | None, typer.Option(help=f"BATCHxSIZExPER_CLASS, several separated by commas (default {SHAPES}).")
    ] = None,
    repeats: Annotated[
        int | None,
        typer.Option(help=f"Rounds (default {ROUNDS}; {STEPS} with --run); in each, everything measured runs once."),
    ] = None,
    run: Annotated[
        str | None, typer.Option(metavar="RECIPE", help="Measure the training steps of a recipe instead of losses.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="With --run: the folder of the data.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="With --run: override a key; repeatable.")
    ] = None,
    scale: Annotated[
        bool,
        typer.Option("--scale", help="Measure time and peak memory as the batch doubles."),
    ] = False,
    to: Annotated[int, typer.Option(help="With --scale: the largest batch.")] = 32768,
    seconds: Annotated[float, typer.Option(help="With --scale: how long one measurement may take.")] = 300.0,
    memory: Annotated[float, typer.Option(help="With --scale: GiB that a measurement may have on a CPU.")] = 16.0,
    device: Annotated[Device, typer.Option(help="Where to compute.")] = Device.auto,
    threads: Annotated[int | None, typer.Option(help="Threads of torch; as torch chooses if left out.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON.")] = False,
) -> None:
    """Time losses against the floor and against what else one would pick, or (--run) the steps of a training.

    Losses are timed forward and backward. A step is divided into its parts, and compared with a bare loop over the same
    batches.
    """
    from ..errors import ConfigError
    from .output import print_json

    if run is not None:
        if losses or shapes is not None:
            raise ConfigError("--run measures the steps of a recipe; leave out losses and --shapes")
        from ..experiment.profile import profile_recipe

        steps = STEPS if repeats is None else repeats
        profile = profile_recipe(run, data, overrides or (), device.value, threads, steps)
        if as_json:
            print_json(profile.as_dict())
        else:
            _print_profile(run, profile)
        return
    if data is not None or overrides:
        raise ConfigError("--data and --set go with --run RECIPE")
    from ..benchmark import Shape
    from ..benchmark import bench as measure
    from .output import stderr

    console = stderr()
    if scale:
        from ..benchmark import LOSSES, START
        from ..benchmark import scale as measure_scale

        points = measure_scale(
            losses or LOSSES,
            START if shapes is None else Shape.parse(shapes),
            to,
            repeats=repeats or 1,
            device=device.value,
            threads=threads,
            seconds=seconds,
            memory=memory,
            progress=lambda line: console.print(line),
        )
        if as_json:
            print_json([dataclasses.asdict(point) for point in points])
        else:
            _print_points(points)
        return
    rows = measure(
        losses or None,
        [Shape.parse(text) for text in (SHAPES if shapes is None else shapes).split(",")],
        repeats=ROUNDS if repeats is None else repeats,
        device=device.value,
        threads=threads,
        progress=lambda line: console.print(line),
    )
    if as_json:
        print_json([row.as_dict() for row in rows])
    else:
        _print_rows(rows)


def _print_profile(name: str, profile: StepProfile) -> None:
    from .output import print_table, stdout

    rows = [[part, f"{value:.2f}", f"{100 * value / profile.step:.1f}"] for part, value in profile.milliseconds.items()]
    rows += [["step", f"{profile.step:.2f}", ""], ["bare loop", f"{profile.bare:.2f}", ""]]
    print_table([f"{name}: a step's", "ms", "%"], rows, right=[1, 2])
    stdout().print(f"step / bare loop: {profile.ratio:.3f} (median of {profile.steps})")


def _print_points(points: list[Point]) -> None:
    from .output import print_table

    def cells(point: Point) -> list[str]:
        if point.seconds is None or point.peak_bytes is None:
            return [f"{point.batch}", point.what, "", "", "", point.failed]
        ratio = f"{point.times_floor:.2f}" if point.times_floor else ""
        return [f"{point.batch}", point.what, f"{point.seconds:.3f}", ratio, f"{point.peak_bytes / 2**20:.0f}", ""]

    print_table(
        ["batch", "loss and its peers", "s", "x floor", "peak MiB", "failed"],
        [cells(p) for p in points],
        right=range(2, 5),
    )


def _print_rows(rows: list[Row]) -> None:
    from .output import print_table

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
