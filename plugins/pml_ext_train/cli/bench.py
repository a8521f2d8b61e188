"""``pml-ext bench``."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from pml_ext.errors import ConfigError

from .options import AsJson, DataFolder, OnDevice, Overrides
from .output import print_result, stderr

if TYPE_CHECKING:
    from .benchmark import Row

SHAPES = "32x64x4,64x128x4,1024x512x4"
ROUNDS = 10
MOST_TRAFFIC = 300.0  # matrices, up to which a loss is measured at the last of these shapes
STEPS = 60
LARGEST = 32768
COLUMNS = ["shape", "loss", "ms", "x floor", "peak MiB", "matrices", "operators", "limit ms", "per s", "rounds"]


def bench(
    losses: Annotated[
        list[str] | None, Argument(metavar="LOSS", help="Names (default: all of the plugins, and PML's nearest).")
    ] = None,
    shapes: Annotated[str | None, Option(help=f"BATCHxSIZExPER_CLASS,... (default {SHAPES}).")] = None,
    repeats: Annotated[int | None, Option(min=1, help=f"Rounds (default {ROUNDS}; {STEPS} with --run).")] = None,
    run: Annotated[str | None, Option(metavar="RECIPE", help="Measure training steps of a recipe instead.")] = None,
    data: DataFolder = None,
    overrides: Overrides = None,
    scale: Annotated[bool, Option("--scale", help="Measure time and peak memory as the batch doubles.")] = False,
    to: Annotated[int | None, Option(min=1, help=f"With --scale: the largest batch (default {LARGEST}).")] = None,
    device: OnDevice = "auto",
    threads: Annotated[int | None, Option(min=1, help="Threads of torch (default: torch's own choice).")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure time and memory of losses or training steps.

    Times forward and backward passes of losses, including PML's (pml/multi-similarity). The floor is the work of any
    pair loss: normalization, one product of all pairs, exp and a mean. The column "matrices" is the memory traffic of
    all operators, in float32 matrices of batch x batch, and does not depend on the machine's load; "limit" is the time
    of this traffic at the speed of a copy. Without LOSS and --shapes, losses above 300 matrices are only measured in
    small batches.
    With --scale, the batch doubles from the one shape of --shapes up to --to.
    With --run, training steps are compared with a bare loop over the same batches.

    Examples:
        pml-ext bench cbml pml/multi-similarity
        pml-ext bench --run cbml/digits
    """
    # torch.utils.benchmark imports torch.utils.cpp_extension, which warns where CUDA_HOME is set without a CUDA device.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    if to is not None and not scale:
        raise ConfigError("--to goes with --scale")
    if run is not None:
        if losses or shapes is not None or scale:
            raise ConfigError("--run measures the steps of a recipe; leave out losses, --shapes and --scale")
        from ..launch.profile import profile_recipe

        profile = profile_recipe(run, data, overrides or (), device, threads, repeats or STEPS)
        ratio = f"step / bare loop: {profile.ratio:.3f} (median of {profile.steps})"
        times = [["step", f"{profile.step:.2f}"], ["bare loop", f"{profile.bare:.2f}"]]
        print_result(as_json, profile, ratio, columns=[f"{run}: a step's", "ms"], rows=times, right=[1])
        return
    if data is not None or overrides:
        raise ConfigError("--data and --set go with --run RECIPE")

    if scale:
        rows = _scale_losses(losses, shapes, to or LARGEST, repeats or 3, device, threads)
    else:
        rows = _bench_losses(losses, shapes, repeats or ROUNDS, device, threads)
    cells = [_cells(row) for row in rows]
    print_result(as_json, rows, columns=COLUMNS, rows=cells, right=range(2, len(COLUMNS)))


def _scale_losses(
    losses: list[str] | None, shape: str | None, to: int, repeats: int, device: str, threads: int | None
) -> list[Row]:
    """Measure losses as the batch doubles from a shape to ``to``."""
    from . import benchmark

    start = benchmark.START
    if shape is not None:
        if "," in shape:
            raise ConfigError(f"--shapes {shape}: with --scale, give one shape, at which the batch starts to double")
        start = benchmark.Shape.parse(shape)
    return benchmark.scale(
        losses or benchmark.LOSSES,
        start,
        to,
        repeats=repeats,
        device=device,
        threads=threads,
        progress=stderr().print,
    )


def _bench_losses(
    losses: list[str] | None, shapes: str | None, repeats: int, device: str, threads: int | None
) -> list[Row]:
    """Measure losses at some shapes; by default all of the plugins and PML's nearest."""
    from . import benchmark

    is_default = not losses and shapes is None
    wanted = SHAPES if shapes is None else shapes
    return benchmark.bench(
        losses or [*benchmark.default_losses(), *benchmark.NEAREST],
        [benchmark.Shape.parse(text) for text in wanted.split(",")],
        repeats=repeats,
        device=device,
        threads=threads,
        most_traffic=MOST_TRAFFIC if is_default else None,
        progress=stderr().print,
    )


def _cells(row: Row) -> list[str]:
    """Return a row's cells; numbers that were not measured are empty."""
    cells = [row.shape, row.loss]
    cells.extend(
        f"{number:.2f}" if number else ""
        for number in (row.milliseconds, row.to_floor, row.peak_bytes / 2**20, row.traffic)
    )
    cells.append(str(row.operators or ""))
    cells.append(f"{row.limit:.2f}" if row.limit else "")
    cells.append(f"{row.per_second:,.0f}" if row.per_second else "")
    cells.append(row.failed or str(row.rounds))
    return cells
