"""Operators with constants: filling outside a mask, and products with a factor."""

import torch
from torch import Tensor

from .batch import transformed

_CONSTANTS: dict[tuple[float | tuple[float, ...], torch.dtype, torch.device], Tensor] = {}
_SMALL = 1 << 12
_FLOATS_ON = frozenset({"cpu"})  # types of devices where masks are faster as floats
_ROW_NUMBERS: dict[torch.device, Tensor] = {}  # those that were asked for last


def indicators(masks: Tensor, like: Tensor) -> Tensor:
    """Masks in their fastest form: 1 and 0 in the dtype of ``like``, or booleans.

    Floats are faster for large matrices on a CPU.
    """
    if masks.dtype == torch.bool and prefers_floats(like):
        return masks.view(torch.uint8).to(like.dtype)
    return masks


def prefers_floats(values: Tensor) -> bool:
    """Whether masks of a matrix are faster as floats."""
    return values.numel() > _SMALL and values.device.type in _FLOATS_ON and not torch.compiler.is_compiling()


def fill_outside(values: Tensor, mask: Tensor, number: float | tuple[float, ...]) -> Tensor:
    """Values inside a mask, else a number, finite unless the mask is boolean."""
    if mask.dtype == torch.bool:
        return torch.where(mask, values, constant(number, values))
    return torch.lerp(constant(number, values), values, mask)


def zero_outside(values: Tensor, mask: Tensor) -> Tensor:
    """Values inside a mask, else 0; the arguments broadcast."""
    if mask.dtype == torch.bool:
        return torch.where(mask, values, constant(0, values))
    return values * mask


def without_tiny(shares: Tensor) -> Tensor:
    """Zero shares below the squared precision, on a CPU in place, where denormals are slow."""
    if prefers_floats(shares):
        return torch.threshold_(shares, torch.finfo(shares.dtype).eps ** 2, 0)
    return shares


def weights_of_shares(weights: Tensor, shares: Tensor) -> Tensor:
    """Zero weights whose product with a share could be denormal."""
    if not prefers_floats(shares):
        return weights
    precision = torch.finfo(weights.dtype)
    return torch.nn.functional.hardshrink(weights, precision.tiny / precision.eps**2)


def zero_at_most(values: Tensor, others: Tensor, limit: float) -> Tensor:
    """Values, with 0 where ``others`` is at most a limit; NaN there keeps the value."""
    kept: Tensor = torch.ops.aten.threshold_backward(values, others, limit)
    return kept


def constant(number: float | tuple[float, ...], like: Tensor) -> Tensor:
    """A number as a cached tensor without dimensions, with the dtype and device of ``like``.

    A tuple of S numbers gives ``[S, 1, 1]``. Nothing is cached under torch.compile and torch.func, in inference mode,
    and for Tensor subclasses.
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
    """Row numbers 0, 1, ... of a tensor, cached, so read-only."""
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
    return not (torch.is_inference_mode_enabled() or transformed())


def _made(number: float | tuple[float, ...], like: Tensor) -> Tensor:
    if isinstance(number, tuple):
        return like.new_tensor(number).view(-1, 1, 1)
    return like.new_full((), number)
