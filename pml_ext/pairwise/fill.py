"""Operators with numbers, which are made once: filling outside of a mask, and products with a factor."""

from __future__ import annotations

import torch
from torch import Tensor

from .batch import transformed

_CONSTANTS: dict[tuple[float | tuple[float, ...], torch.dtype, torch.device], Tensor] = {}
_SMALL = 1 << 12
_FLOATS_ON = frozenset({"cpu"})  # types of devices where masks are faster as floats
_ROW_NUMBERS: dict[torch.device, Tensor] = {}  # those that were asked for last


def indicators(masks: Tensor, like: Tensor) -> Tensor:
    """Return masks in their fastest form: 1 and 0 in the dtype of ``like``, or booleans.

    A CPU takes two to ten times as long for an operator with a boolean as for one with floats. Small matrices take the
    time of starting operators, and a GPU that of moving bytes: there masks stay as they are, as they do if compiled.
    """
    if masks.dtype == torch.bool and prefers_floats(like):
        return masks.view(torch.uint8).to(like.dtype)
    return masks


def prefers_floats(values: Tensor) -> bool:
    """Return whether masks of a matrix are faster as floats: it is on a CPU, not small, and not compiled."""
    return values.numel() > _SMALL and values.device.type in _FLOATS_ON and not torch.compiler.is_compiling()


def fill_outside(values: Tensor, mask: Tensor, number: float | tuple[float, ...]) -> Tensor:
    """Return values inside a mask, boolean or 1 and 0, and a number outside, finite unless the mask is boolean."""
    if mask.dtype == torch.bool:
        return torch.where(mask, values, constant(number, values))
    return torch.lerp(constant(number, values), values, mask)


def zero_outside(values: Tensor, mask: Tensor) -> Tensor:
    """Return values inside a mask, boolean or 1 and 0, and 0 outside; values and mask are broadcast."""
    if mask.dtype == torch.bool:
        return torch.where(mask, values, constant(0, values))
    return values * mask


def without_tiny(shares: Tensor) -> Tensor:
    """Return shares of sums, on a CPU in place, with 0 for those below the square of the dtype's precision.

    Denormal numbers take a CPU a hundred times as long as others.
    """
    if prefers_floats(shares):
        return torch.threshold_(shares, torch.finfo(shares.dtype).eps ** 2, 0)
    return shares


def weights_of_shares(weights: Tensor, shares: Tensor) -> Tensor:
    """Return weights with 0 for those whose product with one of :func:`without_tiny`'s shares could be denormal."""
    if not prefers_floats(shares):
        return weights
    precision = torch.finfo(weights.dtype)
    return torch.nn.functional.hardshrink(weights, precision.tiny / precision.eps**2)


def zero_at_most(values: Tensor, others: Tensor, limit: float) -> Tensor:
    """Return values, and 0 where ``others``, of the same shape, are at most a limit; a NaN there keeps the value.

    It is the derivative of ``relu`` in a general form, and may be differentiated itself.
    """
    kept: Tensor = torch.ops.aten.threshold_backward(values, others, limit)
    return kept


def scaled_product(values: Tensor, others: Tensor, factor: float) -> Tensor:
    """Return the product of two tensors, which are broadcast, and a factor, in one pass."""
    return torch.addcmul(constant(0, values), values, others, value=factor)


def constant(number: float | tuple[float, ...], like: Tensor) -> Tensor:
    """Return a number as a tensor of no dimension, with the dtype and on the device of another.

    A tuple of S numbers gives a tensor ``[S, 1, 1]``, one number for each matrix of ``[S, B, R]``.

    Given a Python number, ``torch.where`` makes such a tensor in every call, by an operator of its own. Here it is made
    once and kept, unless it would not outlive the call: under torch.compile and torch.func, in inference mode, and for
    subclasses of Tensor.
    """
    if type(like) is not Tensor or torch.compiler.is_compiling():
        return _made(number, like)
    key = (number, like.dtype, like.device)
    known = _CONSTANTS.get(key)
    if known is None:
        known = _made(number, like)
        if _outlives_the_call():
            _CONSTANTS[key] = known
    return known


def row_numbers(like: Tensor) -> Tensor:
    """Return the numbers of a tensor's rows, 0, 1, ..., on its device; not to be written to.

    They are made once for batches of one size, under the conditions of :func:`constant`.
    """
    rows = like.shape[0]
    device = like.device
    if type(like) is not Tensor or torch.compiler.is_compiling():
        return torch.arange(rows, device=device)
    known = _ROW_NUMBERS.get(device)
    if known is None or known.shape[0] != rows:
        known = torch.arange(rows, device=device)
        if _outlives_the_call():
            _ROW_NUMBERS[device] = known
    return known


def _outlives_the_call() -> bool:
    """Return whether a tensor that is made now can be used in other calls."""
    return not (torch.is_inference_mode_enabled() or transformed())


def _made(number: float | tuple[float, ...], like: Tensor) -> Tensor:
    if isinstance(number, tuple):
        return like.new_tensor(number).view(-1, 1, 1)
    return like.new_full((), number)
