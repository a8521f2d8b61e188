"""Training and evaluation mode of a network's modules."""

import contextlib
from collections.abc import Iterator

from torch import nn


def is_batch_norm(module: nn.Module) -> bool:
    """Whether a module is a batch norm of torch or timm, or one over processes."""
    return "BatchNorm" in type(module).__name__


@contextlib.contextmanager
def preserved_modes(*networks: nn.Module) -> Iterator[None]:
    """Restore the mode of each module after the block."""
    modes: dict[nn.Module, bool] = {}
    for network in networks:
        for module in network.modules():
            modes[module] = module.training
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
