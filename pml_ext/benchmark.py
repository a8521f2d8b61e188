"""Times losses, forward and backward, against a floor and against what a user would pick instead.

The floor is what no pair loss can avoid: normalize, one ``X @ X.T``, one elementwise ``exp`` over it, its mean, and the
backward of that. What a loss is compared with, its plugin declares by the hook
:func:`pml_ext.hookspecs.pml_ext_benchmark_peers`. All run in one process, in turns, so that a busy machine slows all
alike.
"""

from __future__ import annotations

import dataclasses
import re
import statistics
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from . import registry
from .components import Component
from .devices import choose_device, synchronize
from .errors import ConfigError, UnknownNameError
from .losses import RegularizedLoss
from .pml import ContrastiveLoss
from .registry import BuildContext, required

Compute = Callable[[Tensor, Tensor], Tensor]
FLOOR = "floor"


@dataclasses.dataclass(frozen=True)
class Shape:
    """A batch.

    Args:
        batch: number of embeddings.
        size: their size.
        per_class: samples per class.
    """

    batch: int
    size: int
    per_class: int

    @classmethod
    def parse(cls, text: str) -> Shape:
        """``"1024x512x4"``: 1,024 embeddings of size 512 with 4 per class.

        Raises:
            ConfigError: another form, or a number below 1.
        """
        match = re.fullmatch(r"(\d+)x(\d+)x(\d+)", text.strip())
        numbers = [int(number) for number in match.groups()] if match else [0]
        if min(numbers) < 1:
            raise ConfigError(f"a shape is BATCHxSIZExPER_CLASS, for example 1024x512x4, not {text!r}")
        return cls(*numbers)

    def __str__(self) -> str:
        return f"{self.batch}x{self.size}x{self.per_class}"


SHAPES = (Shape(1024, 512, 4), Shape(120, 512, 8))


@dataclasses.dataclass(frozen=True)
class Row:
    """What was measured of one function at one shape.

    Args:
        shape: the batch.
        loss: the loss that this row belongs to; ``"floor"`` in the floor's own.
        what: the loss's name again, the label of one of its peers, or ``"floor"``.
        milliseconds: median of forward and backward.
        to_floor: that, divided by the floor's.
        to_loss: that, divided by the loss's; None in the floor's row.
        peak_bytes: the most memory held at one time beyond the inputs.
        rounds: how many times it was timed.
    """

    shape: Shape
    loss: str
    what: str
    milliseconds: float
    to_floor: float
    to_loss: float | None
    peak_bytes: int
    rounds: int

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**dataclasses.asdict(self), "shape": str(self.shape)}


def bench(
    losses: Sequence[str | torch.nn.Module] | None = None,
    shapes: Sequence[Shape] = SHAPES,
    *,
    repeats: int = 20,
    device: str = "auto",
    threads: int | None = None,
    seconds: float = 5.0,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> list[Row]:
    """Measures losses.

    Args:
        losses: names of registered losses or regularizers (measured beside PML's contrastive loss), or losses; None
            for every registered one, PML's left out, that needs no settings.
        shapes: the batches.
        repeats: how many rounds; in each, every function runs once.
        device: ``"auto"``, ``"cpu"``, ``"cuda"``, ``"mps"`` or ``"xpu"``.
        threads: of torch on the CPU, while measuring; None leaves them.
        seconds: a function that has taken this long is left out of further rounds, after three.
        seed: of the embeddings.
        progress: called with a line before each shape.

    Returns:
        For each shape: the floor, then each loss and its peers.

    Raises:
        UnknownNameError: no loss has the name.
        ConfigError: a wrong device, shape or number, or a loss that needs settings.
    """
    for name, value in (("repeats", repeats), ("threads", threads)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} must be at least 1, not {value}")
    found_device = torch.device(choose_device(device))
    chosen = default_losses() if losses is None else list(losses)
    for loss in chosen:
        functions_of(loss, shapes[0] if shapes else SHAPES[0])  # a wrong name is refused before anything is measured
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        rows: list[Row] = []
        for shape in shapes:
            if progress:
                progress(f"measuring at {shape}, {repeats} rounds")
            rows += _bench_shape(chosen, shape, repeats, found_device, seconds, seed)
        return rows
    finally:
        torch.set_num_threads(before)


def default_losses() -> list[str | torch.nn.Module]:
    """Names of the registered losses and regularizers, PML's left out, that can be built without settings."""
    candidates = [*registry.components("loss"), *registry.components("regularizer")]
    ours = [c for c in candidates if not c.name.startswith("pml/") and not required(c.cls, _sizes(SHAPES[0]))[1]]
    return [registry.short_name(c) for c in ours]


def floor(embeddings: Tensor, labels: Tensor) -> Tensor:
    """What no pair loss can avoid.

    Args:
        embeddings: ``[B, D]``.
        labels: not used.
    """
    embeddings = torch.nn.functional.normalize(embeddings)
    return (embeddings @ embeddings.T).exp().mean()


def _bench_shape(
    losses: Sequence[str | torch.nn.Module], shape: Shape, repeats: int, device: torch.device, seconds: float, seed: int
) -> list[Row]:
    functions: dict[tuple[str, str], Compute] = {(FLOOR, FLOOR): floor}
    for loss in losses:
        name, named = functions_of(loss, shape)
        functions |= {(name, what): function for what, function in named.items()}
    functions = {key: f.to(device) if isinstance(f, torch.nn.Module) else f for key, f in functions.items()}
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(shape.batch, shape.size, generator=generator).to(device).requires_grad_()
    labels = (torch.arange(shape.batch) // shape.per_class).to(device)

    times: dict[tuple[str, str], list[float]] = {key: [] for key in functions}
    peaks = {key: peak_bytes(function, embeddings, labels) for key, function in functions.items()}  # and warm up
    for _ in range(repeats):
        for key, function in functions.items():
            if len(times[key]) < 3 or sum(times[key]) < seconds:
                times[key].append(_seconds(function, embeddings, labels))

    medians = {key: statistics.median(values) for key, values in times.items()}
    return [
        Row(
            shape=shape,
            loss=loss,
            what=what,
            milliseconds=1e3 * median,
            to_floor=median / medians[FLOOR, FLOOR],
            to_loss=None if loss == FLOOR else median / medians[loss, loss],
            peak_bytes=peaks[loss, what],
            rounds=len(times[loss, what]),
        )
        for (loss, what), median in medians.items()
    ]


def functions_of(loss: str | torch.nn.Module, shape: Shape) -> tuple[str, dict[str, Compute]]:
    """A loss's name; the loss and its peers by label, the loss first.

    Args:
        loss: the name of a registered loss or regularizer, or a loss.
        shape: the batch, from which settings follow.
    """
    if not isinstance(loss, str):
        return type(loss).__name__, {type(loss).__name__: loss}
    component = _measurable(loss)
    sizes = _sizes(shape)
    if missing := required(component.cls, sizes)[1]:
        raise ConfigError(
            f"{loss} cannot be measured by its name: it needs {', '.join(missing)}; "
            "pass an object to pml_ext.benchmark.bench instead"
        )
    built = registry.build(loss, component.kind, sizes)
    peers = {
        label: factory(**required(factory, sizes)[0]) for label, factory in registry.benchmark_peers(component).items()
    }
    if component.kind == "regularizer":
        return loss, {loss: RegularizedLoss(ContrastiveLoss(), built), _ALONE: ContrastiveLoss(), **peers}
    return loss, {loss: built, **peers}


_ALONE = "PML Contrastive without it"


def _measurable(name: str) -> Component:
    """A loss, or a regularizer, which is measured beside PML's contrastive loss."""
    try:
        return registry.get(name, kind="loss")
    except UnknownNameError as error:
        try:
            return registry.get(name, kind="regularizer")
        except UnknownNameError:
            raise error from None


def _sizes(shape: Shape) -> BuildContext:
    """Settings that follow from the batch."""
    return {"num_classes": -(-shape.batch // shape.per_class), "embedding_size": shape.size}


def _seconds(function: Compute, embeddings: Tensor, labels: Tensor) -> float:
    embeddings.grad = None
    synchronize(embeddings.device)
    start = time.perf_counter()
    function(embeddings, labels).backward()  # type: ignore[no-untyped-call]
    synchronize(embeddings.device)
    return time.perf_counter() - start


def peak_bytes(function: Compute, embeddings: Tensor, labels: Tensor) -> int:
    """The most memory that forward and backward of a loss hold at one time beyond the inputs, after a warm-up.

    Args:
        function: a loss.
        embeddings: ``[B, D]``, a leaf with gradient.
        labels: ``[B]``.
    """
    function(embeddings, labels).backward()  # type: ignore[no-untyped-call]
    embeddings.grad = None
    if embeddings.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(embeddings.device)
        before = torch.cuda.memory_allocated(embeddings.device)
        _seconds(function, embeddings, labels)
        return int(torch.cuda.max_memory_allocated(embeddings.device) - before)
    live = _LiveStorages(embeddings, labels)
    with live:
        function(embeddings, labels).backward()  # type: ignore[no-untyped-call]
    return live.peak


class _LiveStorages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the storages of all tensors that exist at one time, as operators return them; ``peak`` is the most."""

    def __init__(self, *inputs: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = self._now = 0
        self._known = {tensor.untyped_storage()._cdata for tensor in inputs}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._add(leaf.untyped_storage())
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._known:
            return
        self._known.add(key)
        self._now += storage.nbytes()
        self.peak = max(self.peak, self._now)
        weakref.finalize(storage, self._remove, key, storage.nbytes()).atexit = False

    def _remove(self, key: int, nbytes: int) -> None:
        self._known.discard(key)
        self._now -= nbytes
