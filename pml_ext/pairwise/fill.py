"""Numbers in place of some values of a tensor, by one operator each."""

from __future__ import annotations

import torch
from torch import Tensor

from .batch import transformed

_CONSTANTS: dict[tuple[float, torch.dtype, torch.device], Tensor] = {}


def fill_outside(values: Tensor, mask: Tensor, number: float) -> Tensor:
    """Return values inside a mask, and a number outside of it; values and mask are broadcast."""
    return torch.where(mask, values, constant(number, values))


def zero_at_most(values: Tensor, others: Tensor, limit: float) -> Tensor:
    """Return values, and 0 where ``others``, of the same shape, are at most a limit; a NaN there keeps the value.

    It is the derivative of ``relu`` in a general form, and may be differentiated itself.
    """
    kept: Tensor = torch.ops.aten.threshold_backward(values, others, limit)
    return kept


def constant(number: float, like: Tensor) -> Tensor:
    """Return a number as a tensor of no dimension, with the dtype and on the device of another.

    Given a Python number, ``torch.where`` makes such a tensor in every call, by an operator of its own. Here it is made
    once and kept, unless it would not outlive the call: under torch.compile and torch.func, in inference mode, and for
    subclasses of Tensor.
    """
    if type(like) is not Tensor or torch.compiler.is_compiling():
        return like.new_full((), number)
    key = (number, like.dtype, like.device)
    known = _CONSTANTS.get(key)
    if known is None:
        known = like.new_full((), number)
        if not (torch.is_inference_mode_enabled() or transformed()):
            _CONSTANTS[key] = known
    return known
