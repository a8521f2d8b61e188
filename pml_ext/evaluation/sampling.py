"""Samples of rows."""

import torch
from torch import Tensor


def sample_indices(count: int, most: int, seed: int) -> Tensor:
    """At most ``most`` random indices below ``count``, in ascending order."""
    if count <= most:
        return torch.arange(count)
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:most].sort().values
