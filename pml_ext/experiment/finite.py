"""NaN and infinity found in many tensors at a time, with one wait for the device."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn


def first_bad(tensors: Mapping[str, Tensor]) -> tuple[str, float] | None:
    """The first of some tensors that holds a value which is not finite.

    Args:
        tensors: floating point tensors by name, of any shapes, sparse ones too, on one device.

    Returns:
        Its name, and NaN or infinity; None where all values are finite.
    """
    filled = {name: stored(tensor) for name, tensor in tensors.items() if tensor.numel()}
    if not filled:
        return None
    # the greatest absolute value of each: NaN stays NaN, and nothing is squared, which would overflow
    greatest = torch.stack(torch._foreach_norm(list(filled.values()), math.inf)).tolist()
    return next(((name, value) for name, value in zip(filled, greatest, strict=True) if not math.isfinite(value)), None)


def stored(tensor: Tensor) -> Tensor:
    """The values that a tensor stores, without gradient; of a sparse tensor, the entries that it holds."""
    tensor = tensor.detach()
    return tensor.coalesce().values() if tensor.is_sparse else tensor


def bad_weight(modules: Mapping[str, nn.Module]) -> tuple[str, float] | None:
    """The first parameter of some modules that is not finite, and the value; None where all are finite.

    Args:
        modules: by name.
    """
    weights = {
        f"weight {group}.{name}": parameter
        for group, module in modules.items()
        for name, parameter in module.named_parameters()
    }
    return first_bad(weights)


def bad_buffer(modules: Mapping[str, nn.Module]) -> tuple[str, float] | None:
    """The first buffer of some modules that makes NaN of every image, and the value; None if there is none.

    An infinite variance does not: what it divides becomes 0. Other buffers may be infinite by design, as masks are.

    Args:
        modules: by name.
    """
    return first_bad(
        {
            name: buffer if name.endswith("running_mean") else buffer.nan_to_num(math.nan, 0.0, 0.0)
            for name, buffer in _buffers(modules).items()
        }
    )


def infinite_variance(modules: Mapping[str, nn.Module]) -> str | None:
    """What to say of the first running variance of a batch norm that is not finite; None if all are.

    Args:
        modules: by name.
    """
    bad = first_bad({name: buffer for name, buffer in _buffers(modules).items() if name.endswith("running_var")})
    if bad is None:
        return None
    return f"{bad[0]} has become infinite: features are the same for every image there; try a lower optimizer.lr"


def _buffers(modules: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    return {
        f"{group}.{name}": buffer
        for group, module in modules.items()
        for name, buffer in module.named_buffers()
        if buffer.is_floating_point()
    }
