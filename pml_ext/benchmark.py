"""Time and peak memory of losses, forward and backward, against a floor.

The floor is the work that no pair loss can avoid: normalize, one ``X @ X.T``, one elementwise ``exp``, its mean, and
the backward of that; in tiles for :func:`scale`. All functions run in turns, so that a busy machine slows all alike.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import statistics
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode  # torch's notes on extending it document this one
from torch.utils._pytree import tree_leaves
from torch.utils.benchmark import timer

from . import registry
from .devices import choose_device
from .errors import ConfigError, one_line
from .losses import RegularizedLoss
from .pairwise import in_tiles, rows_per_tile, tiles_of_rows
from .pml import ContrastiveLoss
from .registry import BuildContext, filled

Compute = Callable[[Tensor, Tensor], Tensor]
FLOOR = "floor"
LOSSES = ("cbml", "angular", "n-pair-angular", "batch-all-triplets", "tiled-multi-similarity")  # of scale
ENOUGH = 5.0  # seconds of a function in all, after which it is left out of further rounds, after three
LIMIT, MEMORY = 300.0, 16 << 30  # seconds and bytes that a function may take
_COPIED = 4096  # rows of the largest matrix whose copy tells the speed of the memory


@dataclasses.dataclass(frozen=True)
class Shape:
    """The number of embeddings in a batch, their size, and the samples per class."""

    batch: int
    size: int
    per_class: int

    @classmethod
    def parse(cls, text: str) -> Shape:
        """Return the shape of ``"1024x512x4"``: 1,024 embeddings of size 512 with 4 per class; ConfigError if none."""
        if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){2}", text.strip()):
            raise ConfigError(f"a shape is BATCHxSIZExPER_CLASS, for example 1024x512x4, not {text!r}")
        return cls(*map(int, text.split("x")))

    def __str__(self) -> str:
        return f"{self.batch}x{self.size}x{self.per_class}"

    @property
    def context(self) -> BuildContext:
        """The settings of losses that follow from the batch."""
        return {"num_classes": -(-self.batch // self.per_class), "embedding_size": self.size}


SHAPES, START = (Shape(1024, 512, 4), Shape(120, 512, 8)), Shape(1024, 128, 4)


@dataclasses.dataclass(frozen=True)
class Row:
    """The measurement of one loss at one shape: the median time of forward and backward in several rounds."""

    shape: str
    loss: str  # its name, or "floor"
    milliseconds: float = 0.0
    to_floor: float = 0.0  # the time divided by the floor's
    peak_bytes: int = 0  # held at one time beyond the inputs
    traffic: float = 0.0  # what operators read and write, in float32 matrices of batch x batch
    limit: float = 0.0  # milliseconds that this traffic takes at the speed of a copy
    rounds: int = 0
    failed: str = ""  # why there are no numbers


def floor(embeddings: Tensor, labels: Tensor) -> Tensor:
    """Return the mean of ``exp`` of all similarities of ``embeddings``, ``[B, D]``; ``labels`` are not used."""
    embeddings = nn.functional.normalize(embeddings)
    return (embeddings @ embeddings.T).exp().mean()


def tiled_floor(embeddings: Tensor, labels: Tensor) -> Tensor:
    """Return :func:`floor` computed in tiles of rows."""
    x = nn.functional.normalize(embeddings)

    def part(_: slice, rows: tuple[Tensor, ...], columns: tuple[Tensor, ...]) -> list[Tensor]:
        return [(rows[0] @ columns[0].T).exp().sum(1)]

    size = rows_per_tile(None, len(x), len(x), x.device) or len(x)
    return in_tiles(part, (x,), (x,), tiles_of_rows(len(x), size))[0].mean() / len(x)


def default_losses() -> list[str]:
    """Return the names of registered losses and regularizers, PML's left out, that can be built without settings."""
    ours = [c for kind in ("loss", "regularizer") for c in registry.components(kind) if not c.name.startswith("pml/")]
    return [registry.short_name(c) for c in ours if not filled(c.cls, SHAPES[0].context)[1]]


def bench(
    losses: Sequence[str | nn.Module] | None = None,
    shapes: Sequence[Shape] = SHAPES,
    *,
    repeats: int = 20,
    device: str = "auto",
    threads: int | None = None,
    tiled: bool = False,
    progress: Callable[[str], None] = lambda line: None,
) -> list[Row]:
    """Measure losses.

    Args:
        losses: losses, or names of registered losses and regularizers (measured with PML's contrastive loss), such as
            ``"pml/multi-similarity"``; a second loss of a class is called ``CBMLLoss 2``; None for every
            registered one, PML's left out, that needs no settings.
        shapes: the batches.
        repeats: rounds; in each, every function runs once. A slow one has three.
        device: as in :func:`pml_ext.devices.choose_device`.
        threads: torch's threads on the CPU while measuring; None leaves them.
        tiled: whether the floor is :func:`tiled_floor`, for large batches.
        progress: called with a line before each shape.

    Returns:
        For each shape: the floor, then the losses. What fails at a shape, or would exceed :data:`LIMIT` or
        :data:`MEMORY` at twice the batch, is not run at the next ones.
    """
    place = torch.device(choose_device(device))
    chosen = default_losses() if losses is None else losses
    lowest: Compute = tiled_floor if tiled else floor
    names = [loss if isinstance(loss, str) else type(loss).__name__ for loss in chosen]
    counts = [names[:place].count(name) for place, name in enumerate(names)]
    names = [f"{name} {count + 1}" if count else name for name, count in zip(names, counts, strict=True)]
    measured: dict[Shape, dict[str, Compute]] = {}
    for shape in shapes:
        functions = {name: _built(loss, shape) for name, loss in zip(names, chosen, strict=True)}
        measured[shape] = {FLOOR: lowest, **{name: function.to(place) for name, function in functions.items()}}
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    rows: list[Row] = []
    failed: set[str] = set()
    try:
        for shape, computes in measured.items():
            progress(f"measuring at {shape}, {repeats} rounds")
            x = torch.randn(shape.batch, shape.size, generator=torch.Generator().manual_seed(0))
            inputs = x.to(place).requires_grad_(), (torch.arange(shape.batch) // shape.per_class).to(place)
            peaks: dict[str, int] = {}
            traffic: dict[str, float] = {}
            side = min(shape.batch, _COPIED)
            source, copy = (x.new_zeros(side, side, device=place) for _ in range(2))
            speeds: list[float] = []  # seconds per byte
            times: dict[str, list[float]] = {key: [] for key in computes if key not in failed}
            for round_, key in itertools.product(range(repeats), list(times)):
                if key in failed or (round_ >= 3 and sum(times[key]) > ENOUGH):
                    continue
                try:
                    if round_ == 0:
                        peaks[key] = peak_bytes(computes[key], *inputs)  # and warm up
                        traffic[key] = traffic_bytes(computes[key], *inputs) / (4 * shape.batch**2)
                    times[key].append(_seconds(computes[key], *inputs))
                    start = timer()
                    copy.copy_(source)
                    speeds.append((timer() - start) / (2 * copy.nbytes))
                except (RuntimeError, MemoryError) as error:
                    failed.add(key)
                    rows.append(Row(str(shape), key, failed=one_line(error)))
            medians = {key: statistics.median(values) for key, values in times.items() if key not in failed}
            for key, median in medians.items():
                to_floor = median / medians.get(FLOOR, math.nan)
                limit = 1e3 * traffic[key] * 4 * shape.batch**2 * statistics.median(speeds)
                sizes = peaks[key], traffic[key], limit
                rows.append(Row(str(shape), key, 1e3 * median, to_floor, *sizes, len(times[key])))
            failed |= {key for key, median in medians.items() if 4 * median > LIMIT or 4 * peaks[key] > MEMORY}
    finally:
        torch.set_num_threads(before)
    return rows


def scale(losses: Sequence[str] = LOSSES, start: Shape = START, to: int = 32768, **options: Any) -> list[Row]:
    """Measure losses at batches that double from ``start`` up to ``to``; options are those of :func:`bench`."""
    if to < start.batch:
        raise ConfigError(f"the largest batch must be at least the first, {start.batch}, not {to}")
    batches = [start.batch << doubled for doubled in range((to // start.batch).bit_length())]
    return bench(losses, [dataclasses.replace(start, batch=batch) for batch in batches], tiled=True, **options)


def _built(loss: str | nn.Module, shape: Shape) -> nn.Module:
    if not isinstance(loss, str):
        return loss
    kind = "regularizer" if {c.kind for c in registry.candidates(loss)} == {"regularizer"} else "loss"
    if missing := filled(registry.get(loss, kind).cls, shape.context)[1]:
        raise ConfigError(
            f"{loss} cannot be measured by its name: it needs {', '.join(missing)}; "
            "pass an object to pml_ext.benchmark.bench instead"
        )
    module: nn.Module = registry.build(loss, kind, shape.context)
    return module if kind == "loss" else RegularizedLoss(ContrastiveLoss(), module)


def _seconds(function: Compute, embeddings: Tensor, labels: Tensor) -> float:
    embeddings.grad = None
    start = timer()  # waits for the accelerator
    function(embeddings, labels).backward()  # type: ignore[no-untyped-call]
    return timer() - start


def peak_bytes(function: Compute, embeddings: Tensor, labels: Tensor) -> int:
    """Return the most memory that forward and backward of a warm loss hold at one time beyond the inputs."""
    _seconds(function, embeddings, labels)
    if embeddings.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(embeddings.device)
        before = torch.cuda.memory_allocated(embeddings.device)
        _seconds(function, embeddings, labels)
        return int(torch.cuda.max_memory_allocated(embeddings.device) - before)
    live = _LiveStorages(embeddings, labels)
    with live:
        _seconds(function, embeddings, labels)
    return live.peak


def traffic_bytes(function: Compute, embeddings: Tensor, labels: Tensor) -> int:
    """Return the bytes that the operators of forward and backward of a warm loss read and write, caches left aside.

    Every tensor that an operator other than a view takes or gives counts, whole: of a gather more than is read.
    """
    _seconds(function, embeddings, labels)
    traffic = _Traffic()
    with traffic:
        _seconds(function, embeddings, labels)
    return traffic.bytes


_FILLED = ("zeros", "ones", "full")  # operators that write without reading, and those of their likes


class _Traffic(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The sum of the bytes of the tensors that operators take and give."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__.removeprefix("new_")
        if not func.is_view and not name.startswith(("_unsafe_view", "empty")):
            only_written = args[:1] if name in ("copy_", "fill_", "zero_") else args if name.startswith(_FILLED) else ()
            read = args[len(only_written) :], (kwargs or {}) | {"out": None}
            self.bytes += sum(
                x.numel() * x.element_size() for x in tree_leaves([read, result]) if isinstance(x, Tensor)
            )
        return result


class _LiveStorages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The sum of the storages of all tensors that operators returned and that are alive; ``peak`` is the most."""

    def __init__(self, *inputs: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = self._now = 0
        self._known = {tensor.data_ptr() for tensor in inputs}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                key, size = storage.data_ptr(), storage.nbytes()
                if size and key not in self._known:
                    self._known.add(key)
                    self._now += size
                    self.peak = max(self.peak, self._now)
                    weakref.finalize(storage, self._remove, key, size).atexit = False
        return result

    def _remove(self, key: int, size: int) -> None:
        self._known.discard(key)
        self._now -= size
