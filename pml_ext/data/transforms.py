"""Transforms from a stored image to the input of a network.

The steps of inference are torch's alone and equal torchvision's ``v2`` transforms of the same name, since importing
torchvision takes longer than importing torch; augmentations are torchvision's.
"""

from __future__ import annotations

import dataclasses
import math
import platform
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..errors import ConfigError

THUMBNAIL = 32  # pixels each way
Normalization = tuple[tuple[float, ...], tuple[float, ...]]


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """Preprocessing of photographs beyond the size of the input; ``[data.images]`` of a recipe."""

    resize: int | None = None  # pixels of the shorter side before the crop; None: 256 / 224 of the crop's
    squash: bool = False  # images become squares before the crop, whatever their aspect ratio was
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"  # of resizing
    bgr: bool = False  # the channels are blue, green, red
    value_range: int = 1  # greatest value before any normalization, 1 or 255
    random_crop: bool = False  # training images are cropped at a random place, without resizing
    random_crop_scale: tuple[float, float] | None = None  # training crops are parts of such shares of the area, resized
    flip: bool = False  # training images are mirrored left to right half of the time


class Steps(nn.Module):
    """A transform in three parts: a deterministic first step, further steps on one image, and steps on a batch.

    The first step, None where the steps begin with a random one, leaves its own result alone, so that its results can
    be cached and go through all steps. ``smallest``: pixels that an image's shorter side may be reduced to before.
    """

    def __init__(
        self, first: nn.Module | None, rest: Sequence[nn.Module], last: Sequence[nn.Module], smallest: int
    ) -> None:
        super().__init__()
        self.first, self.smallest = first, smallest
        self.first_name = str(first)  # has all that the first step depends on
        self.rest, self.last = nn.Sequential(*rest), nn.Sequential(*last)

    def forward(self, image: Tensor) -> Tensor:
        """Return a uint8 image ``[C, H, W]`` as float32 ``[C, S, S]``."""
        return self.last(self.rest(image if self.first is None else self.first(image)))  # type: ignore[no-any-return]

    def divided(self) -> tuple[Steps, nn.Sequential]:
        """Return the steps on one image, and those on a batch: uint8 images are a quarter of the network's input."""
        return Steps(self.first, [*self.rest], [], self.smallest), self.last


def build_transforms(
    image_size: int,
    channels: int,
    crop: bool = False,
    normalize: Normalization | None = None,
    shift: int = 0,
    random_crop: bool = False,
    flip: bool = False,
    pipeline: Pipeline = Pipeline(),
) -> tuple[Steps, Steps]:
    """Return the transforms of training images and of all others, from uint8 ``[C, H, W]`` to float32 ``[C, S, S]``.

    Args:
        image_size: S, in pixels.
        channels: C of the images.
        crop: resize the shorter side and crop a square from the middle, rather than resizing to a square.
        normalize: means and standard deviations per channel, such as ImageNet's.
        shift: largest random move of a training image each way, in pixels; the edge is filled with black.
        random_crop: crop training images at random (``RandomResizedCrop`` of 0.2 to 1 of the area).
        flip: mirror training images left to right half of the time.
        pipeline: of photographs; its crops and its mirroring come on top.

    Raises:
        ConfigError: a setting outside its range.
    """
    if not 0 <= shift < image_size:
        raise ConfigError(f"shift must be from 0 to {image_size - 1} pixels, not {shift}")
    if pipeline.resize is not None and pipeline.resize < image_size:
        raise ConfigError(f"resize must be at least what is cut out, {image_size} pixels, not {pipeline.resize}")
    area = pipeline.random_crop_scale or ((0.2, 1.0) if random_crop else None)
    if area is not None and not 0 < area[0] <= area[1] <= 1:
        raise ConfigError(f"random_crop_scale must be a range above 0 and up to 1, smaller first, not {list(area)}")
    if pipeline.random_crop and area is not None:
        raise ConfigError("random_crop of [data.images] and another setting say how to crop; leave one of them out")
    first, order = _Resize(image_size, crop, pipeline), _ChannelOrder(pipeline.bgr)
    augment: list[nn.Module] = [] if area or pipeline.random_crop else [CenterCrop(image_size)]
    if area or pipeline.random_crop or shift or flip or pipeline.flip:
        from torchvision.transforms import v2

        if area:
            mode = v2.InterpolationMode(pipeline.interpolation)
            augment.append(v2.RandomResizedCrop(image_size, scale=area, interpolation=mode, antialias=True))
        elif pipeline.random_crop:
            augment.append(v2.RandomCrop(image_size))
        if shift:
            augment.append(v2.RandomCrop(image_size, padding=shift))
        if flip or pipeline.flip:
            augment.append(v2.RandomHorizontalFlip())
    last = [ToFloat(pipeline.value_range == 1, [values[:channels] for values in normalize or ()])]
    plain = Steps(first, [CenterCrop(image_size), order], last, first.side)
    if area is not None and pipeline.resize is None:  # a part of the photograph itself
        # the smallest part, of the smallest area and an aspect ratio of 3 : 4, still has S pixels each way
        smallest = math.ceil(image_size / math.sqrt(0.75 * area[0]))
        return Steps(None, [*augment, order], last, smallest), plain
    return Steps(first, [*augment, order], last, first.side), plain


def raw_pixels(images: Tensor) -> Tensor:
    """Return transformed images ``[B, C, H, W]`` as vectors of at most 32 x 32 pixels, a baseline without a network."""
    if max(images.shape[-2:]) > THUMBNAIL:
        images = resize(images, (THUMBNAIL, THUMBNAIL))
    return images.flatten(1).float()


def resize(image: Tensor, size: int | Sequence[int], mode: str = "bilinear") -> Tensor:
    """Return an image ``[..., C, H, W]`` in another size, height and width or the shorter side, as v2's ``resize``."""
    *before, channels, height, width = image.shape
    if isinstance(size, int):
        other = int(size * max(height, width) / min(height, width))
        size = (other, size) if width <= height else (size, other)
    new = (size[0], size[1])
    if new == (height, width) or image.numel() == 0:
        return image.reshape(*before, channels, *new)
    dtype, batch = image.dtype, image.reshape(-1, channels, height, width)
    if len(batch) == 1 and batch.is_contiguous(memory_format=torch.channels_last) and image.numel() != batch.stride(0):
        # A batch of one in channels-last layout: torch would take it for channels-first and copy it.
        batch = batch.as_strided(batch.shape, (image.numel(), *batch.stride()[1:]))
    on_cpu = dtype == torch.uint8 and image.device.type == "cpu"
    capable = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    arm = platform.machine() in ("aarch64", "arm64")
    native = dtype.is_floating_point or (on_cpu and (capable or arm))  # as v2's dispatch decides
    points = batch if native else batch.float()
    resized = functional.interpolate(points, new, mode=mode, align_corners=False, antialias=True)
    if not native and mode == "bicubic":  # which overshoots
        resized = resized.clamp_(0, 255)
    return (resized if native else resized.round_().to(dtype)).reshape(*before, channels, *new)


class _Resize(nn.Module):
    """Resizes an image to a square, or its shorter side; leaves an image of the wanted size alone by default."""

    def __init__(self, size: int, crop: bool, pipeline: Pipeline) -> None:
        super().__init__()
        squash = pipeline.squash or not (crop or pipeline.resize)
        self.side = pipeline.resize or (size if squash else round(size * 256 / 224))
        self.left_alone = size if pipeline.resize is None else None
        self.mode = pipeline.interpolation
        self.size = (self.side, self.side) if squash else self.side

    def extra_repr(self) -> str:
        return f"{self.size}, {self.mode}, left_alone={self.left_alone}"  # names what a cache of resized images holds

    def forward(self, image: Tensor) -> Tensor:
        return image if image.shape[-2:] == (self.left_alone, self.left_alone) else resize(image, self.size, self.mode)


class CenterCrop(nn.Module):
    """A square of ``size`` pixels from the middle of ``[..., C, H, W]``; missing pixels are black."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, image: Tensor) -> Tensor:
        """Return the square."""
        wide, high = (max(0, self.size - side) for side in (image.shape[-1], image.shape[-2]))
        if wide or high:
            image = functional.pad(image, (wide // 2, (wide + 1) // 2, high // 2, (high + 1) // 2))
        top, left = (round((side - self.size) / 2) for side in image.shape[-2:])
        return image[..., top : top + self.size, left : left + self.size]


class _ChannelOrder(nn.Module):
    """Makes an image contiguous, channel by channel, which later steps are several times as fast on."""

    def __init__(self, bgr: bool) -> None:
        super().__init__()
        self.bgr = bgr

    def forward(self, image: Tensor) -> Tensor:
        return (image.flip(-3) if self.bgr else image).contiguous()


class ToFloat(nn.Module):
    """Conversion to float32, bytes from 0 to 1 with ``scale``; then normalization per channel, in place."""

    def __init__(self, scale: bool, normalize: Sequence[Sequence[float]] = ()) -> None:
        super().__init__()
        self.scale, self.normalize = scale, normalize

    def forward(self, image: Tensor) -> Tensor:
        """Return the image ``[..., C, H, W]``, converted; bytes are copied."""
        scaled = self.scale and image.dtype == torch.uint8
        image = image.float().mul_(1 / 255) if scaled else image.float()
        if self.normalize:
            mean, std = (torch.tensor(each, device=image.device).view(-1, 1, 1) for each in self.normalize)
            image = image.sub_(mean).div_(std)
        return image
