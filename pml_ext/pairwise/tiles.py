"""Functions of the rows of a pair matrix, computed a tile of rows at a time.

No tile is kept: the backward pass recomputes each tile, or the forward pass computes its gradient. Memory is therefore
linear in the batch.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .batch import autocast_off, transformed

# Returns a tile's values, given its slice, its rows of the by-row tensors, and the whole tensors.
Part = Callable[[slice, tuple[Tensor, ...], tuple[Tensor, ...]], Sequence[Tensor]]

# Defaults by device, if no size is given. On a CPU, tiles of up to 256 rows stay in its caches, and a tensor above
# 32 MiB is allocated by the system anew each time.
_ENTRIES = {"cpu": 1 << 21}
_ENTRIES_ELSEWHERE = 1 << 25
_MOST_ROWS = {"cpu": 256}
_LEAST_ROWS = 8
_DENSE = {"cpu": 1 << 21}  # entries up to which tiles are not faster, or not needed
_DENSE_ELSEWHERE = 1 << 26
_SHARED = 1 << 18  # entries up to which processes do not share: waiting for each other takes longer than computing


class Sharing(Protocol):
    """Division of a batch's tiles among processes that all have the whole batch."""

    def part(self, count: int) -> slice:
        """The tiles, out of ``count``, that this process computes."""

    def gathered(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[int]]:
        """Each tensor joined in tile order, and the row where this process's part begins."""

    def summed(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Each tensor summed over the processes."""


_sharing: list[Sharing] = []


@contextlib.contextmanager
def shared(sharing: Sharing) -> Iterator[None]:
    """Processes share tiles inside the block: all call the same functions with the same tensors."""
    _sharing.append(sharing)
    try:
        yield
    finally:
        _sharing.pop()


def sharing() -> Sharing | None:
    """The active :class:`Sharing`, or None."""
    return _sharing[-1] if _sharing else None


def rows_per_tile(tile_size: int | None, rows: int, columns: int, device: torch.device) -> int | None:
    """Rows per tile, or None for a matrix small enough to be dense."""
    if tile_size is not None:
        return tile_size
    if sharing() is None:
        dense = _DENSE.get(device.type, _DENSE_ELSEWHERE)
    else:
        dense = _SHARED
    if torch.compiler.is_compiling() or rows * columns <= dense:
        return None
    size = _ENTRIES.get(device.type, _ENTRIES_ELSEWHERE) // columns
    return max(_LEAST_ROWS, min(size, _MOST_ROWS.get(device.type, rows)))


def tiles_of_rows(rows: int, size: int, ends: Sequence[int] | None = None) -> list[slice]:
    """Split rows into tiles of ``size`` rows; without rows there is one empty tile.

    With ascending ``ends``, for example of classes, a tile ends at the first end that gives it ``size`` rows.
    """
    if ends is None:
        return [slice(start, min(start + size, rows)) for start in range(0, max(1, rows), size)]
    slices = []
    start = 0
    for end in ends:
        if end - start >= size or end == rows:
            slices.append(slice(start, end))
            start = end
    return slices or [slice(0, rows)]


def in_parts(function: Callable[..., Any], size: int, *tensors: Tensor) -> list[Any]:
    """A function's results on parts of ``size`` rows; the backward pass recomputes parts.

    Under torch.func, all parts are kept; under torch.compile there is one part.
    """
    if torch.compiler.is_compiling():
        return [function(*tensors)]
    split_tensors = [torch.split(tensor, size) for tensor in tensors]
    parts = list(zip(*split_tensors, strict=True))
    if len(parts) == 1 or transformed() or not torch.is_grad_enabled():
        return [function(*part) for part in parts]
    return [checkpoint(function, *part, use_reentrant=False) for part in parts]


@dataclasses.dataclass(frozen=True)
class _Plan:
    """Arguments of :func:`in_tiles`; tensors in the order by row, whole, parameters."""

    part: Part
    tiles: Sequence[slice]
    num_by_row: int
    num_whole: int
    num_values: int
    at_once: bool
    sharing: Sharing | None

    @property
    def first_parameter(self) -> int:
        return self.num_by_row + self.num_whole

    def tiles_of_process(self) -> Sequence[slice]:
        if self.sharing is None:
            return self.tiles
        return self.tiles[self.sharing.part(len(self.tiles))]

    def compute(self, tile: slice, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        sliced = [tensor[tile] for tensor in tensors[: self.num_by_row]]
        whole = tensors[self.num_by_row : self.first_parameter]
        return tuple(self.part(tile, tuple(sliced), tuple(whole)))


def in_tiles(
    part: Part,
    by_row: Sequence[Tensor],
    whole: Sequence[Tensor],
    tiles: Sequence[slice],
    parameters: Sequence[Tensor] = (),
    values: int = 1,
    at_once: bool = False,
) -> tuple[Tensor, ...]:
    """Compute a function of rows in tiles; return each of its results, concatenated.

    Under torch.func and torch.compile, in forward mode and in double backward, all tiles are kept.

    Args:
        part: maps the slice, the tile's rows of ``by_row`` and the tensors of ``whole`` to one-dimensional results.
        by_row: tensors whose rows are anchors, each ``[B, ...]``.
        whole: tensors that every tile needs whole.
        tiles: slices of the rows.
        parameters: other tensors that may need a gradient.
        values: how many of the results have a gradient; they come first.
        at_once: whether the forward pass computes the gradient, for one value (a mean).
    """
    plan = _Plan(
        part=part,
        tiles=tiles,
        num_by_row=len(by_row),
        num_whole=len(whole),
        num_values=values,
        at_once=at_once and values == 1,
        sharing=sharing(),
    )
    tensors = (*by_row, *whole, *parameters)
    if transformed(*tensors) or torch.compiler.is_compiling():
        return _joined([plan.compute(tile, tensors) for tile in tiles])
    results: tuple[Tensor, ...] = _InTiles.apply(plan, *tensors)  # type: ignore[no-untyped-call]
    return results


def _joined(results: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    return tuple(map(torch.cat, zip(*results, strict=True)))


class _Gradients:
    def __init__(self, plan: _Plan, tensors: Sequence[Tensor], needed: Sequence[bool]) -> None:
        self.plan = plan
        self.needed = needed
        self.total: list[Tensor | None] = [None] * len(tensors)
        whole = slice(plan.num_by_row, plan.first_parameter)
        self.by_row = tensors[: plan.num_by_row]
        self.whole = _leaves(tensors[whole], needed[whole])
        self.parameters = list(tensors[plan.first_parameter :])

    def add(self, tile: slice, weights: Callable[[Sequence[Tensor]], Sequence[Tensor]]) -> tuple[Tensor, ...]:
        """Compute a tile, add the gradient of its weighted values, and return its results."""
        rows = [tensor[tile] for tensor in self.by_row]
        sliced = _leaves(rows, self.needed[: len(rows)])
        with torch.enable_grad():
            results = self.plan.part(tile, tuple(sliced), tuple(self.whole))
        values = results[: self.plan.num_values]
        inputs = [*sliced, *self.whole, *self.parameters]
        gradients = _gradients_of(values, inputs, weights(values), self.needed)
        for number, gradient in enumerate(gradients):
            if gradient is not None:
                self._add(number, tile, gradient)
        return tuple(result.detach() for result in results)

    def _add(self, number: int, tile: slice, gradient: Tensor) -> None:
        total = self.total[number]
        if number < self.plan.num_by_row:
            if total is None:
                total = torch.zeros_like(self.by_row[number])
                self.total[number] = total
            total[tile] = gradient
        elif total is None:
            self.total[number] = gradient.clone(memory_format=torch.contiguous_format)
        else:
            total.add_(gradient)

    def summed_over_processes(self, tensors: Sequence[Tensor]) -> list[Tensor | None]:
        if self.plan.sharing is None:
            return self.total
        numbers = []
        totals = []
        for number, total in enumerate(self.total):
            if not self.needed[number]:
                continue
            if total is None:
                total = torch.zeros_like(tensors[number])
            numbers.append(number)
            totals.append(total)
        for number, gradient in zip(numbers, self.plan.sharing.summed(totals), strict=True):
            self.total[number] = gradient
        return self.total


class _Results:
    """Results in preallocated memory, which lets the allocator reuse the space between tiles."""

    def __init__(self, tiles: int) -> None:
        self._tiles = tiles
        self._buffers: list[Tensor] = []
        self._lengths: list[int] = []

    def add(self, results: Sequence[Tensor]) -> None:
        if not self._lengths:
            for result in results:
                self._buffers.append(result.new_empty(len(result) * max(1, self._tiles)))
                self._lengths.append(0)
        for number, result in enumerate(results):
            start = self._lengths[number]
            stop = self._lengths[number] + len(result)
            if stop > len(self._buffers[number]):
                larger = result.new_empty(2 * stop)
                larger[:start] = self._buffers[number][:start]
                self._buffers[number] = larger
            self._buffers[number][start:stop] = result.detach()
            self._lengths[number] = stop

    def joined(self) -> tuple[Tensor, ...]:
        joined = []
        for buffer, length in zip(self._buffers, self._lengths, strict=True):
            joined.append(buffer[:length].clone())
        return tuple(joined)


class _InTiles(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: _Plan, *tensors: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        needed = ctx.needs_input_grad[1:]
        ctx.plan = plan
        ctx.gradients = None
        tiles = plan.tiles_of_process()
        results = _Results(len(tiles))
        ctx.save_for_backward(*tensors)
        if plan.at_once and any(needed):
            gradients = _Gradients(plan, tensors, needed)
            for tile in tiles:
                results.add(gradients.add(tile, _ones))
            ctx.gradients = gradients.total
        else:
            for tile in tiles:
                results.add(plan.compute(tile, tensors))
        if not tiles:  # there are more processes than tiles
            of_first_tile = plan.compute(plan.tiles[0], tensors)
            results.add([result[:0] for result in of_first_tile])
        joined = results.joined()
        ctx.starts = [0] * plan.num_values  # of each value: the row where this process's part begins
        if plan.sharing is not None:
            gathered, starts = plan.sharing.gathered(joined)
            joined = tuple(gathered)
            ctx.starts = starts[: plan.num_values]
        ctx.mark_non_differentiable(*joined[plan.num_values :])
        return joined

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        with autocast_off(grads[0].device):  # a backward() inside of autocast computes in its precision
            return _InTiles._gradients(ctx, *grads)

    @staticmethod
    def _gradients(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        plan = ctx.plan
        tensors = ctx.saved_tensors
        needed = ctx.needs_input_grad[1:]
        grads = grads[: plan.num_values]
        if torch.is_grad_enabled():  # double backward: all tiles with a graph
            parameters = tensors[plan.first_parameter :]
            # Rows and columns may be one tensor; views give each a gradient of its own.
            views = [tensor.view_as(tensor) for tensor in tensors[: plan.first_parameter]]
            tensors = (*views, *parameters)
            results = _joined([plan.compute(tile, tensors) for tile in plan.tiles])
            values = results[: plan.num_values]
            return (None, *_gradients_of(values, tensors, grads, needed, create_graph=True))

        gradients = _Gradients(plan, tensors, needed)
        if ctx.gradients is not None and _all_equal(grads[0]):
            # The forward pass has computed the gradient of the sum; one weight for all entries scales it.
            if len(grads[0]):
                weight = grads[0][0]
            else:
                weight = grads[0].new_zeros(())
            for number, total in enumerate(ctx.gradients):
                if total is not None:
                    gradients.total[number] = total * weight
            return (None, *gradients.summed_over_processes(tensors))

        starts = list(ctx.starts)
        for tile in plan.tiles_of_process():
            gradients.add(tile, lambda values: _next_weights(grads, starts, values))
        return (None, *gradients.summed_over_processes(tensors))


def _leaves(tensors: Sequence[Tensor], needed: Sequence[bool]) -> list[Tensor]:
    leaves = []
    for tensor, want in zip(tensors, needed, strict=True):
        leaves.append(tensor.detach().requires_grad_(want))
    return leaves


def _ones(values: Sequence[Tensor]) -> list[Tensor]:
    """A weight of 1 for each entry; a stride of 0 marks all weights as equal."""
    weights = []
    for value in values:
        weights.append(value.new_ones(()).expand_as(value))
    return weights


def _gradients_of(
    values: Sequence[Tensor],
    inputs: Sequence[Tensor],
    weights: Sequence[Tensor],
    needed: Sequence[bool],
    create_graph: bool = False,
) -> list[Tensor | None]:
    """The gradient of the weighted values to each input; None if unneeded or independent."""
    outputs = []
    output_weights = []
    for value, weight in zip(values, weights, strict=True):
        if value.requires_grad:
            outputs.append(value)
            output_weights.append(weight)
    numbers = []
    wanted = []
    for number, want in enumerate(needed):
        if want:
            numbers.append(number)
            wanted.append(inputs[number])

    gradients: list[Tensor | None] = [None] * len(inputs)
    if outputs and wanted:
        found = torch.autograd.grad(outputs, wanted, output_weights, create_graph=create_graph, allow_unused=True)
        for number, gradient in zip(numbers, found, strict=True):
            gradients[number] = gradient
    return gradients


def _all_equal(grad: Tensor) -> bool:
    """Whether all weights are equal; on a GPU judged by strides, without waiting."""
    if len(grad) == 0 or grad.stride() == (0,):
        return True
    return grad.device.type == "cpu" and bool((grad == grad[0]).all())


def _next_weights(grads: Sequence[Tensor], starts: list[int], values: Sequence[Tensor]) -> list[Tensor]:
    """The next entries of each gradient, one per entry of its value; advances ``starts``."""
    weights = []
    for number, (grad, value) in enumerate(zip(grads, values, strict=True)):
        start = starts[number]
        end = start + len(value)
        weights.append(grad[start:end])
        starts[number] = end
    return weights
