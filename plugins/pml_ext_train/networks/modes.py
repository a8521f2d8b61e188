"""The modes of a network's modules: training or evaluation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import nn


def is_batch_norm(module: nn.Module) -> bool:
    """Return whether a module is a batch norm: torch's, timm's with an activation inside, or one over processes."""
    return "BatchNorm" in type(module).__name__


@contextlib.contextmanager
def preserved_modes(*networks: nn.Module) -> Iterator[None]:
    """Restore the mode of each module, training or evaluation, after the block."""
    modes: dict[nn.Module, bool] = {}
    for network in networks:
        for module in network.modules():
            modes[module] = module.training
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
