"""NaN and infinity found in many tensors at a time, with one wait for the device."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor


def first_bad(tensors: Mapping[str, Tensor]) -> tuple[str, float] | None:
    """The first of some tensors that holds a value which is not finite.

    Args:
        tensors: floating point tensors by name, of any shapes, on one device.

    Returns:
        Its name, and NaN or infinity; None where all values are finite.
    """
    filled = {name: _dense(tensor) for name, tensor in tensors.items() if tensor.numel()}
    if not filled:
        return None
    # the greatest absolute value of each: NaN stays NaN, and nothing is squared, which would overflow
    greatest = torch.stack(torch._foreach_norm(list(filled.values()), math.inf)).tolist()
    return next(((name, value) for name, value in zip(filled, greatest, strict=True) if not math.isfinite(value)), None)


def gradients(parameters: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """The gradients that there are, by the names of their parameters.

    Args:
        parameters: names and parameters.
    """
    return {name: parameter.grad for name, parameter in parameters if parameter.grad is not None}


def _dense(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return tensor.coalesce().values() if tensor.is_sparse else tensor
