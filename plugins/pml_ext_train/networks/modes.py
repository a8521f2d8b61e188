"""Training and evaluation mode of a network's modules."""

import contextlib
from collections.abc import Iterator

from torch import nn


def is_batch_norm(module: nn.Module) -> bool:
    """Whether a module is a batch norm of torch or timm, or one over processes."""
    return "BatchNorm" in type(module).__name__


@contextlib.contextmanager
def evaluation_mode(*networks: nn.Module) -> Iterator[None]:
    """Put networks into evaluation mode; restore the mode of each module after the block."""
    together = nn.ModuleList(networks)
    modes = {module: module.training for module in together.modules()}
    together.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
