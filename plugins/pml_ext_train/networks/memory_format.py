"""Memory format: on a CPU, most convolutions are faster in channels-last."""

import torch
from torch import nn

from .modes import evaluation_mode


def use_channels_last(network: nn.Module, channels: int, image_size: int) -> torch.memory_format:
    """Convert a network on a CPU to channels-last, if possible; return the images' format.

    Results differ only by rounding. The network stays unchanged if it has no convolutions, or fails on two images of
    zeros ``[2, C, S, S]``.
    """
    if not any(parameter.ndim == 4 for parameter in network.parameters()):
        return torch.contiguous_format
    images = torch.zeros(2, channels, image_size, image_size)
    with evaluation_mode(network), torch.no_grad(), torch.random.fork_rng(devices=[]):
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        try:
            network(images.to(memory_format=torch.channels_last))
        except RuntimeError:
            network.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
            return torch.contiguous_format
    return torch.channels_last
