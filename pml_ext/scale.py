"""Time and peak memory of losses as the batch doubles, beside what they are measured against and the tiled floor.

Each measurement runs in a process of its own, so that its peak is its own, and one that has no memory, or no time, ends
alone. The tiled floor is timed there as well, in turns with the loss, so that a busy machine slows both. It is what no
pair loss in tiles can avoid: normalize, and per tile of rows one product with all rows, ``exp`` and a sum, computed
again in the backward pass.
"""

from __future__ import annotations

import dataclasses
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .benchmark import Compute, Shape, functions_of
from .devices import choose_device, synchronize
from .errors import ConfigError
from .pairwise import in_tiles, rows_per_tile, tiles_of_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TILED_FLOOR = "tiled floor"
LOSSES = ("cbml", "angular", "n-pair-angular", "batch-all-triplets", "tiled-multi-similarity")
_WARM_UP = 256  # embeddings of the first call, which loads and starts what later ones find there


@dataclasses.dataclass(frozen=True)
class Point:
    """What was measured of one function at one batch.

    Args:
        what: a loss's name, the label of a peer, or ``"tiled floor"``.
        batch: number of embeddings.
        seconds: of forward and backward, the least of the repeats; None where it failed.
        floor_seconds: of the tiled floor, in turns with it.
        peak_bytes: memory above what the process held before; None where it failed.
        failed: why it failed, or nothing.
    """

    what: str
    batch: int
    seconds: float | None
    peak_bytes: int | None
    failed: str = ""
    floor_seconds: float | None = None

    @property
    def times_floor(self) -> float | None:
        """How many times the tiled floor it takes."""
        return self.seconds / self.floor_seconds if self.seconds and self.floor_seconds else None


START = Shape(1024, 128, 4)


def scale(
    losses: Sequence[str] = LOSSES,
    start: Shape = START,
    to: int = 32768,
    *,
    repeats: int = 1,
    device: str = "auto",
    threads: int | None = None,
    seconds: float = 300.0,
    memory: float = 16.0,
    progress: Callable[[str], None] | None = None,
) -> list[Point]:
    """Measures losses, their peers and the tiled floor at batches that double. What fails is not tried again.

    Args:
        losses: names of registered losses.
        start: the first batch.
        to: the largest batch.
        repeats: how often each is timed.
        device: as of :func:`pml_ext.benchmark.bench`.
        threads: of torch on the CPU; None leaves them.
        seconds: how long one measurement may take.
        memory: GiB of address space that a measurement may have on a CPU.
        progress: called with a line for each measurement.

    Raises:
        UnknownNameError: no loss has the name.
        ConfigError: a wrong device or batch, or a loss that needs settings.
    """
    if to < start.batch:
        raise ConfigError(f"the largest batch must be at least the first, {start.batch}, not {to}")
    choose_device(device)
    wanted = {(TILED_FLOOR, TILED_FLOOR): True}
    for loss in losses:
        wanted |= {(loss, what): True for what in functions_of(loss, start)[1]}
    points, batch = [], start.batch
    while batch <= to:
        for loss, what in [key for key, there in wanted.items() if there]:
            settings = {
                "loss": loss,
                "what": what,
                "shape": str(dataclasses.replace(start, batch=batch)),
                "repeats": repeats,
                "device": device,
                "threads": threads,
                "memory": memory,
            }
            point = _measured_alone(settings, seconds)
            wanted[loss, what] = not point.failed
            points.append(point)
            if progress:
                progress(f"{batch} {what}: {point.failed or f'{point.seconds:.3f} s'}")
        batch *= 2
    return points


def _measured_alone(settings: dict[str, Any], seconds: float) -> Point:
    """A measurement in a process of its own."""
    what, batch = settings["what"], Shape.parse(settings["shape"]).batch
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pml_ext.scale", json.dumps(settings)],
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Point(what, batch, None, None, f"took more than {seconds:g} s")
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return Point(what, batch, None, None, lines[-1] if lines else f"ended with {done.returncode}")
    measured = json.loads(done.stdout.strip().splitlines()[-1])
    return Point(what, batch, **measured)


def tiled_floor(embeddings: Tensor, labels: Tensor) -> Tensor:
    """What no pair loss in tiles can avoid.

    Args:
        embeddings: ``[B, D]``.
        labels: not used.
    """
    x = torch.nn.functional.normalize(embeddings)

    def part(_: slice, rows: tuple[Tensor, ...], columns: tuple[Tensor, ...]) -> list[Tensor]:
        return [(rows[0] @ columns[0].T).exp().sum(1)]

    size = rows_per_tile(None, len(x), len(x), x.device) or len(x)
    return in_tiles(part, (x,), (x,), tiles_of_rows(len(x), size))[0].mean() / len(x)


def _measure(settings: dict[str, Any]) -> dict[str, Any]:
    """Times one function in this process."""
    shape, device = Shape.parse(settings["shape"]), torch.device(choose_device(settings["device"]))
    if settings["threads"]:
        torch.set_num_threads(settings["threads"])
    if device.type == "cpu":
        limit = int(settings["memory"] * 2**30)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    what = settings["what"]
    function = tiled_floor if what == TILED_FLOOR else functions_of(settings["loss"], shape)[1][what]
    if isinstance(function, torch.nn.Module):
        function.to(device)
    warm = dataclasses.replace(shape, batch=min(_WARM_UP, shape.batch))
    _seconds(function, warm, device, 1)
    loss: Any = function
    if getattr(loss, "tile_size", 0) is None:
        loss.tile_size = max(1, warm.batch // 2)  # what tiles load is no part of the first batch in tiles
        _seconds(loss, warm, device, 1)
        loss.tile_size = None
    inputs = _inputs(shape, device)
    before = _held(device)
    times = _seconds(function, shape, device, 1, inputs)
    peak = _held(device) - before
    floors = []
    for turn in range(settings["repeats"]):
        floors += _seconds(tiled_floor, shape, device, 1, inputs)
        times += _seconds(function, shape, device, 1, inputs) if turn else []
    return {"seconds": min(times), "peak_bytes": peak, "floor_seconds": min(floors)}


def _inputs(shape: Shape, device: torch.device) -> tuple[Tensor, Tensor]:
    embeddings = torch.randn(shape.batch, shape.size, generator=torch.Generator().manual_seed(0))
    return embeddings.to(device).requires_grad_(), (torch.arange(shape.batch) // shape.per_class).to(device)


def _seconds(
    function: Compute, shape: Shape, device: torch.device, repeats: int, inputs: tuple[Tensor, Tensor] | None = None
) -> list[float]:
    embeddings, labels = inputs or _inputs(shape, device)
    times = []
    for _ in range(repeats):
        embeddings.grad = None
        synchronize(device)
        start = time.perf_counter()
        function(embeddings, labels).backward()  # type: ignore[no-untyped-call]
        synchronize(device)
        times.append(time.perf_counter() - start)
    return times


def _held(device: torch.device) -> int:
    """The most bytes that the process has held."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def plot(points: Sequence[Point]) -> Figure:
    """Time and peak memory over the batch, each on logarithmic axes; a line ends where its loss failed.

    Args:
        points: of :func:`scale`.
    """
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4.5), layout="constrained")
    names = list(dict.fromkeys(point.what for point in points))
    panels = {"seconds": "s, forward and backward", "peak_bytes": "MiB above the inputs"}
    for axes, (field, label) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        axes.set_prop_cycle(color=colormaps["tab20"].colors)  # type: ignore[attr-defined]
        for name in names:
            there = [p for p in points if p.what == name and not p.failed]
            values = [getattr(p, field) / (1 if field == "seconds" else 2**20) for p in there]
            style = "k--" if name == TILED_FLOOR else "o:" if name.startswith("PML") else "o-"
            axes.plot([p.batch for p in there], values, style, label=name, markersize=4)
        axes.set(xscale="log", yscale="log", xlabel="batch", ylabel=label)
        axes.set_xticks(sorted({p.batch for p in points}), [f"{b:,}" for b in sorted({p.batch for p in points})])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right center", fontsize=8)
    return figure


if __name__ == "__main__":
    try:
        print(json.dumps(_measure(json.loads(sys.argv[1]))))
    except (RuntimeError, MemoryError) as error:  # no memory, most often; of a CUDA error many lines
        sys.exit(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no memory'}")
