"""``pml-ext bench``."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated, Any

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

    Times forward and backward passes of losses, including PML's (pml/multi-similarity). The floor is the minimum work
    of a pair loss: normalization, one product of all pairs, exp and a mean. "matrices" is the memory traffic of all
    operators in float32 matrices of batch x batch; "limit" is the time of this traffic at the speed of a copy. By
    default, losses above 300 matrices are measured in small batches only.
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
    from . import benchmark

    wanted = [benchmark.Shape.parse(text) for text in (SHAPES if shapes is None else shapes).split(",")]
    options: dict[str, Any] = {"device": device, "threads": threads, "progress": stderr().print}
    if scale:
        if len(wanted) > 1 and shapes is not None:
            raise ConfigError(f"--shapes {shapes}: with --scale, give one shape, at which the batch starts to double")
        start = benchmark.START if shapes is None else wanted[0]
        rows = benchmark.scale(losses or benchmark.LOSSES, start, to or LARGEST, repeats=repeats or 3, **options)
    else:
        options["most_traffic"] = MOST_TRAFFIC if not losses and shapes is None else None
        chosen = losses or [*benchmark.default_losses(), *benchmark.NEAREST]
        rows = benchmark.bench(chosen, wanted, repeats=repeats or ROUNDS, **options)
    print_result(as_json, rows, columns=COLUMNS, rows=map(_cells, rows), right=range(2, len(COLUMNS)))


def _cells(row: Row) -> list[str]:
    """Return a row's cells, empty where nothing was measured."""
    numbers = [
        (row.milliseconds, ".2f"),
        (row.to_floor, ".2f"),
        (row.peak_bytes / 2**20, ".2f"),
        (row.traffic, ".2f"),
        (row.operators, "d"),
        (row.limit, ".2f"),
        (row.per_second, ",.0f"),
    ]
    cells = [format(number, form) if number else "" for number, form in numbers]
    return [row.shape, row.loss, *cells, row.failed or str(row.rounds)]
