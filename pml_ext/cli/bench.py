"""``pml-ext bench``."""

from __future__ import annotations

import logging
from typing import Annotated, Any

from typer import Argument, Option

from ..errors import ConfigError
from .options import AsJson, DataFolder, OnDevice, Overrides
from .output import print_result, stderr

SHAPES, ROUNDS, STEPS = "1024x512x4,120x512x8", 20, 60


def bench(
    losses: Annotated[
        list[str] | None, Argument(metavar="[LOSS ...]", help="Names (default: all of the plugins).")
    ] = None,
    shapes: Annotated[str | None, Option(help=f"BATCHxSIZExPER_CLASS,... (default {SHAPES}).")] = None,
    repeats: Annotated[int | None, Option(min=1, help=f"Rounds (default {ROUNDS}; {STEPS} with --run).")] = None,
    run: Annotated[str | None, Option(metavar="RECIPE", help="Measure training steps of a recipe instead.")] = None,
    data: DataFolder = None,
    overrides: Overrides = None,
    scale: Annotated[bool, Option("--scale", help="Measure time and peak memory as the batch doubles.")] = False,
    to: Annotated[int, Option(help="With --scale: the largest batch.")] = 32768,
    device: OnDevice = "auto",
    threads: Annotated[int | None, Option(min=1, help="Threads of torch (default: torch's own choice).")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure time and memory of losses or training steps.

    Times forward and backward passes of losses, also PML's (pml/multi-similarity). The floor is the work that every
    pair loss needs: normalization, one product of all pairs, exp and a mean. The column matrices has the memory traffic
    of all operators in float32 matrices of batch x batch; limit is the time of this traffic at the speed of a copy.
    With --run, the steps of a training are compared with a bare loop over the same batches.
    """
    # torch.utils.benchmark imports this module, which warns where CUDA_HOME is set and there is no CUDA device.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    if run is not None:
        if losses or shapes is not None:
            raise ConfigError("--run measures the steps of a recipe; leave out losses and --shapes")
        from ..training.profile import profile_recipe

        profile = profile_recipe(run, data, overrides or (), device, threads, STEPS if repeats is None else repeats)
        ratio = f"step / bare loop: {profile.ratio:.3f} (median of {profile.steps})"
        rows = [["step", f"{profile.step:.2f}"], ["bare loop", f"{profile.bare:.2f}"]]
        print_result(as_json, profile, ratio, columns=[f"{run}: a step's", "ms"], rows=rows, right=[1])
        return
    if data is not None or overrides:
        raise ConfigError("--data and --set go with --run RECIPE")
    from ..testing.benchmark import LOSSES, START, Shape
    from ..testing.benchmark import bench as measure
    from ..testing.benchmark import scale as measure_scale

    parsed = [Shape.parse(text) for text in (SHAPES if shapes is None else shapes).split(",")]
    options: dict[str, Any] = {"device": device, "threads": threads, "progress": stderr().print}
    if scale:
        start = START if shapes is None else parsed[0]
        measured = measure_scale(losses or LOSSES, start, to, repeats=repeats or 3, **options)
    else:
        measured = measure(losses or None, parsed, repeats=ROUNDS if repeats is None else repeats, **options)
    cells = []
    for row in measured:
        numbers = [row.milliseconds, row.to_floor, row.peak_bytes / 2**20, row.traffic, row.limit]
        texts = ["" if row.failed else f"{value:.2f}" for value in numbers]
        cells.append([row.shape, row.loss, *texts, row.failed or str(row.rounds)])
    columns = ["shape", "loss", "ms", "x floor", "peak MiB", "matrices", "limit ms", "rounds"]
    print_result(as_json, measured, columns=columns, rows=cells, right=range(2, 8))
