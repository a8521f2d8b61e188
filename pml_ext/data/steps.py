"""Image steps of inference in torch alone: importing torchvision takes longer than importing torch.

Each step equals torchvision's v2 transform of the same name; tests hold them to it.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


def resize(image: Tensor, size: int | Sequence[int]) -> Tensor:
    """Return an image in another size, bilinear with antialiasing, as ``v2.functional.resize`` does.

    Args:
        image: ``[..., C, H, W]``.
        size: height and width, or one number: the shorter side.
    """
    *before, channels, height, width = image.shape
    if isinstance(size, int):
        shorter, longer = sorted((height, width))
        other = int(size * longer / shorter)
        new = (other, size) if width <= height else (size, other)
    else:
        new = (size[0], size[1])
    if new == (height, width) or image.numel() == 0:
        return image.reshape(*before, channels, *new)
    dtype, batch = image.dtype, image.reshape(-1, channels, height, width)
    if len(batch) == 1 and batch.is_contiguous(memory_format=torch.channels_last) and image.numel() != batch.stride(0):
        # A batch of one in channels-last layout: torch would take it for channels-first and copy it.
        batch = batch.as_strided(batch.shape, (image.numel(), *batch.stride()[1:]))
    native = dtype.is_floating_point or (dtype == torch.uint8 and image.device.type == "cpu" and _resizes_bytes())
    points = batch if native else batch.float()
    resized = functional.interpolate(points, new, mode="bilinear", align_corners=False, antialias=True)
    return (resized if native else resized.round_().to(dtype)).reshape(*before, channels, *new)


def _resizes_bytes() -> bool:
    """Return whether torchvision resizes uint8 directly on this processor, as v2's dispatch decides."""
    return torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512") or platform.machine() in ("aarch64", "arm64")


class CenterCrop(nn.Module):
    """A square from the middle; missing pixels are black.

    Args:
        size: side of the square in pixels.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def extra_repr(self) -> str:
        """Return the size."""
        return f"{self.size}"

    def forward(self, image: Tensor) -> Tensor:
        """Return the image ``[..., C, H, W]``, changed."""
        wide, high = (max(0, self.size - side) for side in (image.shape[-1], image.shape[-2]))
        if wide or high:
            image = functional.pad(image, (wide // 2, (wide + 1) // 2, high // 2, (high + 1) // 2))
        top, left = (round((side - self.size) / 2) for side in image.shape[-2:])
        return image[..., top : top + self.size, left : left + self.size]


class ToFloat(nn.Module):
    """Conversion to float32.

    Args:
        scale: whether bytes become numbers from 0 to 1.
    """

    def __init__(self, scale: bool) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, image: Tensor) -> Tensor:
        """Return the image ``[..., C, H, W]``, changed."""
        if image.dtype == torch.float32:
            return image
        return image.float().mul_(1 / 255) if self.scale and image.dtype == torch.uint8 else image.float()


class Normalize(nn.Module):
    """Subtraction of a mean and division by a standard deviation, per channel and in place.

    Args:
        mean: of each channel.
        std: of each channel.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.mean, self.std = [*mean], [*std]

    def forward(self, image: Tensor) -> Tensor:
        """Return the image ``[..., C, H, W]``, changed."""
        mean, std = (torch.tensor(each, device=image.device).view(-1, 1, 1) for each in (self.mean, self.std))
        return image.sub_(mean).div_(std)
