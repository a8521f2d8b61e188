"""Time and peak memory of losses, forward and backward, relative to a floor.

The floor is the minimum work of a pair loss: normalization, ``X @ X.T``, ``exp``, the mean, and the backward pass.
Functions run in turns, so a busy machine slows all of them equally.
"""

import dataclasses
import itertools
import math
import re
import statistics
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode  # documented in torch's notes on extending it
from torch.utils._pytree import tree_leaves

from pml_ext import registry
from pml_ext.distributed.devices import accelerator, choose_device
from pml_ext.errors import ConfigError, one_line
from pml_ext.losses import RegularizedLoss
from pml_ext.pairwise import in_tiles, rows_per_tile, tiles_of_rows
from pml_ext.pml import ContrastiveLoss
from pml_ext.registry import BuildContext, fill_settings

Compute = Callable[[Tensor, Tensor], Tensor]
FLOOR = "floor"
LOSSES = ("cbml", "angular", "n-pair-angular", "batch-all-triplets", "tiled-multi-similarity")  # default of scale()
ENOUGH = 5.0  # total seconds after which a function with three rounds is not run again
NEAREST = ("pml/contrastive", "pml/triplet-margin", "pml/multi-similarity", "pml/n-pairs", "pml/angular")  # PML's
LIMIT = 300.0  # seconds that a function may take
MEMORY = 16 << 30  # bytes that a function may take
_COPIED = 4096  # rows of the largest matrix copied to measure memory bandwidth


@dataclasses.dataclass(frozen=True)
class Shape:
    """Embeddings in a batch, their size, and the samples per class."""

    batch: int
    size: int
    per_class: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the shape of ``"1024x512x4"``; ConfigError for another form."""
        if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){2}", text.strip()):
            raise ConfigError(f"a shape is BATCHxSIZExPER_CLASS, for example 1024x512x4, not {text!r}")
        return cls(*map(int, text.split("x")))

    def __str__(self) -> str:
        return f"{self.batch}x{self.size}x{self.per_class}"

    @property
    def context(self) -> BuildContext:
        """The settings of losses that the batch determines."""
        return {"num_classes": -(-self.batch // self.per_class), "embedding_size": self.size}


SHAPES = (Shape(32, 64, 4), Shape(64, 128, 4), Shape(1024, 512, 4))
START = Shape(1024, 128, 4)


@dataclasses.dataclass(frozen=True)
class Row:
    """One loss at one shape: the median time of forward and backward."""

    shape: str
    loss: str  # name of the loss, or "floor"
    milliseconds: float = 0.0
    to_floor: float = 0.0  # the time divided by the floor's
    peak_bytes: int = 0  # peak memory beyond the inputs
    traffic: float = 0.0  # memory traffic of operators, in float32 matrices of batch x batch
    operators: int = 0  # operators that compute or copy; views, empty tensors and the like are not counted
    limit: float = 0.0  # milliseconds for this traffic at copy bandwidth
    per_second: float = 0.0  # embeddings
    rounds: int = 0
    failed: str = ""  # reason for missing numbers


def floor(embeddings: Tensor, labels: Tensor) -> Tensor:
    """Return the mean of ``exp`` of all similarities of ``[B, D]``; labels are not used."""
    embeddings = nn.functional.normalize(embeddings)
    return (embeddings @ embeddings.T).exp().mean()


def tiled_floor(embeddings: Tensor, labels: Tensor) -> Tensor:
    """Return :func:`floor`, computed in tiles of rows."""
    x = nn.functional.normalize(embeddings)

    def part(_: slice, rows: tuple[Tensor, ...], columns: tuple[Tensor, ...]) -> list[Tensor]:
        return [(rows[0] @ columns[0].T).exp().sum(1)]

    size = rows_per_tile(None, len(x), len(x), x.device) or len(x)
    return in_tiles(part, (x,), (x,), tiles_of_rows(len(x), size))[0].mean() / len(x)


def default_losses() -> list[str]:
    """Return the losses and regularizers, except PML's, that need no settings."""
    names: list[str] = []
    for component in (*registry.components("loss"), *registry.components("regularizer")):
        if not component.name.startswith("pml/"):
            _, missing = fill_settings(component.cls, SHAPES[0].context)
            names += [] if missing else [registry.short_name(component)]
    return names


def bench(
    losses: Sequence[str | nn.Module] | None = None,
    shapes: Sequence[Shape] = SHAPES,
    *,
    repeats: int = 10,
    device: str = "auto",
    threads: int | None = None,
    tiled: bool = False,
    most_traffic: float | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> list[Row]:
    """Measure losses.

    Args:
        losses: losses or names; regularizers join PML's contrastive loss. None: :func:`default_losses`.
        shapes: shapes of the batches.
        repeats: rounds, each with every function; slow ones stop after three.
        device: as for :func:`pml_ext.distributed.devices.choose_device`.
        threads: torch's CPU threads while measuring.
        tiled: use :func:`tiled_floor`, for large batches.
        most_traffic: losses with more traffic, in matrices, are left out of later shapes.
        progress: receives a line before each shape.

    Returns:
        For each shape the floor, then the losses. A loss that fails, or would exceed :data:`LIMIT` or
        :data:`MEMORY` at twice the batch, is left out of later shapes.
    """
    place = torch.device(choose_device(device))
    chosen = default_losses() if losses is None else losses
    names = _names_of(chosen)
    functions: dict[Shape, dict[str, Compute]] = {}
    for shape in shapes:  # raise errors before measuring
        built = {name: _built(loss, shape).to(place) for name, loss in zip(names, chosen, strict=True)}
        functions[shape] = {FLOOR: tiled_floor if tiled else floor, **built}
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    rows: list[Row] = []
    left_out: set[str] = set()
    try:
        for shape, every in functions.items():
            progress(f"measuring at {shape}, {repeats} rounds")
            remaining = {name: function for name, function in every.items() if name not in left_out}
            for row in _measure(shape, remaining, repeats, place):
                rows.append(row)
                too_slow = 4 * row.milliseconds > 1e3 * LIMIT
                too_large = 4 * row.peak_bytes > MEMORY
                much_traffic = most_traffic is not None and row.traffic > most_traffic
                if row.failed or too_slow or too_large or much_traffic:
                    left_out.add(row.loss)
    finally:
        torch.set_num_threads(before)
    return rows


def _names_of(losses: Sequence[str | nn.Module]) -> list[str]:
    """Return the names of losses; a second one of a class is ``CBMLLoss 2``."""
    names = [loss if isinstance(loss, str) else type(loss).__name__ for loss in losses]
    counts = [names[: place + 1].count(name) for place, name in enumerate(names)]
    return [name if count == 1 else f"{name} {count}" for name, count in zip(names, counts, strict=True)]


def _measure(shape: Shape, functions: dict[str, Compute], repeats: int, device: torch.device) -> list[Row]:
    x = torch.randn(shape.batch, shape.size, generator=torch.Generator().manual_seed(0))
    inputs = x.to(device).requires_grad_(), (torch.arange(shape.batch) // shape.per_class).to(device)
    side = min(shape.batch, _COPIED)
    source, copy = torch.zeros(2, side, side, device=device)
    times: dict[str, list[float]] = {name: [] for name in functions}
    copies: list[float] = []
    counted: dict[str, tuple[int, Account]] = {}  # peak bytes, and what operators read and write
    errors: dict[str, str] = {}
    for round_, (name, function) in itertools.product(range(repeats), functions.items()):
        if name in errors or (round_ >= 3 and sum(times[name]) > ENOUGH):
            continue
        try:
            if round_ == 0:
                counted[name] = peak_bytes(function, *inputs), account_of(function, *inputs)  # also warms up
            times[name].append(_seconds(function, *inputs))
        except (RuntimeError, MemoryError) as error:
            errors[name] = one_line(error)
        start = _seconds_of_clock()
        copy.copy_(source)
        copies.append(_seconds_of_clock() - start)
    medians = {name: 1e3 * statistics.median(times[name]) for name in functions if name not in errors}
    lowest = medians.get(FLOOR, math.nan)
    per_byte = 1e3 * statistics.median(copies or [math.nan]) / (2 * copy.nbytes)
    rows = [Row(str(shape), name, failed=text) for name, text in errors.items()]
    for name, median in medians.items():
        peak, account = counted[name]
        row = Row(
            str(shape),
            name,
            milliseconds=median,
            to_floor=median / lowest,
            peak_bytes=peak,
            traffic=account.traffic / (4 * shape.batch**2),
            operators=account.operators,
            limit=account.traffic * per_byte,
            per_second=1e3 * shape.batch / median,
            rounds=len(times[name]),
        )
        rows.append(row)
    return rows


def scale(losses: Sequence[str] = LOSSES, start: Shape = START, to: int = 32768, **options: Any) -> list[Row]:
    """Measure losses at batches that double up to ``to``; other options as in :func:`bench`."""
    if to < start.batch:
        raise ConfigError(f"the largest batch must be at least the first, {start.batch}, not {to}")
    batches = [start.batch << doubled for doubled in range((to // start.batch).bit_length())]
    return bench(losses, [dataclasses.replace(start, batch=batch) for batch in batches], tiled=True, **options)


def _built(loss: str | nn.Module, shape: Shape) -> nn.Module:
    if not isinstance(loss, str):
        return loss
    kinds = {component.kind for component in registry.candidates(loss)}
    kind = "regularizer" if kinds == {"regularizer"} else "loss"
    _, missing = fill_settings(registry.get(loss, kind).cls, shape.context)
    if missing:
        raise ConfigError(
            f"{loss} cannot be measured by its name: it needs {', '.join(missing)}; "
            "pass an object to pml_ext_train.cli.benchmark.bench instead"
        )
    module: nn.Module = registry.build(loss, kind, shape.context)
    return module if kind == "loss" else RegularizedLoss(ContrastiveLoss(), module)


def _seconds(function: Compute, embeddings: Tensor, labels: Tensor) -> float:
    embeddings.grad = None
    start = _seconds_of_clock()
    function(embeddings, labels).backward()  # type: ignore[no-untyped-call]
    return _seconds_of_clock() - start


def _seconds_of_clock() -> float:
    """Return a clock's seconds, after the accelerator's work is done."""
    if accelerator():  # as torch.utils.benchmark.timer does, which imports a compiler of C++
        torch.accelerator.synchronize()
    return time.perf_counter()


_FILLED = ("zeros", "ones", "full")  # prefixes of operators that write without reading


class Account(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Operators, bytes of their inputs and outputs, and peak bytes of live tensors.

    Inputs and outputs count in full; caches and views do not.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch asks: with True, the first operation imports its compiler, for seconds

    def __init__(self, *inputs: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.traffic: int = 0
        self.operators: int = 0
        self.peak = self._now = 0
        self._known = {tensor.data_ptr() for tensor in inputs}  # addresses of live storages

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._add(tensor.untyped_storage())
        name = func.overloadpacket.__name__.removeprefix("new_")
        if not func.is_view and not name.startswith(("_unsafe_view", "empty")):
            only_written = args if name.startswith(_FILLED) else ()
            if name in ("copy_", "fill_", "zero_"):
                only_written = args[:1]
            read = args[len(only_written) :], (kwargs or {}) | {"out": None}
            self.operators += 1
            self.traffic += sum(x.nbytes for x in tree_leaves([read, result]) if isinstance(x, Tensor))
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        key = storage.data_ptr()
        size = storage.nbytes()
        if size and key not in self._known:
            self._known.add(key)
            self._now += size
            self.peak = max(self.peak, self._now)
            weakref.finalize(storage, self._remove, key, size).atexit = False

    def _remove(self, key: int, size: int) -> None:
        self._known.discard(key)
        self._now -= size


def peak_bytes(function: Compute, embeddings: Tensor, labels: Tensor) -> int:
    """Return the peak memory in bytes of forward and backward, beyond the inputs."""
    if embeddings.device.type != "cuda":
        return account_of(function, embeddings, labels).peak
    _seconds(function, embeddings, labels)
    torch.cuda.reset_peak_memory_stats(embeddings.device)
    before = torch.cuda.memory_allocated(embeddings.device)
    _seconds(function, embeddings, labels)
    return int(torch.cuda.max_memory_allocated(embeddings.device) - before)


def account_of(function: Compute, embeddings: Tensor, labels: Tensor) -> Account:
    """Return the account of a warmed-up loss."""
    _seconds(function, embeddings, labels)
    account = Account(embeddings, labels)
    with account:
        _seconds(function, embeddings, labels)
    return account
