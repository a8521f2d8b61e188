"""Transforms from a stored image to the network's input, built with torchvision."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from pml_ext.errors import ConfigError

THUMBNAIL = 32  # height and width in pixels
# Pixels that a file decoded at a reduced size keeps for each pixel after resizing. The embedding then has a cosine
# distance below 1e-3 to that of the whole image, a Euclidean one of 0.045 (python -m benchmarks.one_vector).
KEPT_WHEN_REDUCED = 4
Normalization = tuple[tuple[float, ...], tuple[float, ...]]


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """Preprocessing options: ``[data.images]`` of a recipe."""

    resize: int | None = None  # shorter side before the crop, pixels; None: image_size, times 256 / 224 unless squash
    squash: bool = False  # resize images to squares before the crop, ignoring the aspect ratio
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"  # interpolation of resizing
    bgr: bool = False  # channels in the order blue, green, red
    value_range: int = 1  # maximum pixel value before any normalization, 1 or 255
    random_crop: bool = False  # crop training images at a random place, without rescaling the crop
    random_crop_scale: tuple[float, float] | None = None  # scale of RandomResizedCrop for training images
    flip: bool = False  # mirror training images left to right with probability 0.5


class Steps(nn.Module):
    """A deterministic first step, further steps on one image, and steps on a batch.

    The first step is idempotent, so cached results can pass through it again; None if a random step comes first.
    ``smallest``: lower bound of the shorter side, in pixels, of a reduced file.
    """

    def __init__(
        self, first: nn.Module | None, rest: Sequence[nn.Module], last: Sequence[nn.Module], smallest: int
    ) -> None:
        super().__init__()
        self.first = first
        self.smallest = smallest
        self.first_name = str(first)  # identifies the first step and its settings
        self.rest = nn.Sequential(*rest)
        self.last = nn.Sequential(*last)

    def forward(self, image: Tensor) -> Tensor:
        """Map a uint8 image ``[C, H, W]`` to float32 ``[C, S, S]``."""
        if self.first is not None:
            image = self.first(image)
        return self.last(self.rest(image))  # type: ignore[no-any-return]

    def divided(self) -> tuple[Steps, nn.Sequential]:
        """The steps on one image, with results in uint8, and the steps on a batch."""
        on_one_image = Steps(self.first, list(self.rest), [], self.smallest)
        return on_one_image, self.last


def build_transforms(
    image_size: int,
    channels: int,
    crop: bool = False,
    normalize: Normalization | None = None,
    shift: int = 0,
    random_crop: bool = False,
    flip: bool = False,
    pipeline: Pipeline = Pipeline(),
    transforms: Sequence[nn.Module] = (),
) -> tuple[Steps, Steps]:
    """Transforms of training images and of others: uint8 ``[C, H, W]`` to float32 ``[C, S, S]``.

    Args:
        image_size: S, in pixels.
        channels: C.
        crop: resize the shorter side and crop the middle, rather than resizing to a square.
        normalize: means and standard deviations per channel.
        shift: largest random translation of a training image, in pixels, with black borders.
        random_crop: crop training images at random (``RandomResizedCrop`` of 0.2 to 1 of the area).
        flip: mirror training images left to right half of the time.
        pipeline: more options.
        transforms: last steps of training images, from uint8 ``[C, S, S]`` in RGB order to the same.

    Raises:
        ConfigError: a setting is outside its range.
    """
    if not 0 <= shift < image_size:
        raise ConfigError(f"shift must be from 0 to {image_size - 1} pixels, not {shift}")
    if pipeline.resize is not None and pipeline.resize < image_size:
        raise ConfigError(f"resize must be at least the size of the crop, {image_size} pixels, not {pipeline.resize}")
    area = pipeline.random_crop_scale
    if area is None and random_crop:
        area = (0.2, 1.0)
    if area is not None and not 0 < area[0] <= area[1] <= 1:
        raise ConfigError(f"random_crop_scale must be two numbers above 0 and up to 1, smaller first, not {list(area)}")
    if pipeline.random_crop and area is not None:
        raise ConfigError("random_crop of [data.images] conflicts with another setting of crops; leave out one")
    from torchvision.transforms import v2

    squash = pipeline.squash or not (crop or pipeline.resize)
    side = pipeline.resize or (image_size if squash else round(image_size * 256 / 224))
    mode = v2.InterpolationMode(pipeline.interpolation)
    first: nn.Module = v2.Resize((side, side) if squash else side, mode, antialias=True)
    if pipeline.resize is None:
        first = _UnlessExact(image_size, first)

    augment: list[nn.Module] = [v2.CenterCrop(image_size)]
    if area is not None:
        augment = [v2.RandomResizedCrop(image_size, scale=area, interpolation=mode, antialias=True)]
    elif pipeline.random_crop:
        augment = [v2.RandomCrop(image_size)]
    if shift:
        augment.append(v2.RandomCrop(image_size, padding=shift))
    if flip or pipeline.flip:
        augment.append(v2.RandomHorizontalFlip())
    augment += transforms

    order = _ChannelOrder(pipeline.bgr)
    last: list[nn.Module] = [v2.ToDtype(torch.float32, scale=pipeline.value_range == 1)]
    if normalize is not None:
        mean, std = normalize
        last.append(v2.Normalize(mean[:channels], std[:channels], inplace=True))

    smallest = KEPT_WHEN_REDUCED * side
    plain = Steps(first, [v2.CenterCrop(image_size), order], last, smallest)
    if area is not None and pipeline.resize is None:  # crops are taken from the original image
        # the smallest crop (minimum area, aspect ratio 3 : 4) must have at least S pixels in height and width
        smallest_crop = math.ceil(image_size / math.sqrt(0.75 * area[0]))
        return Steps(None, [*augment, order], last, smallest_crop), plain
    return Steps(first, [*augment, order], last, smallest), plain


def raw_pixels(images: Tensor) -> Tensor:
    """Images ``[B, C, H, W]`` as vectors of at most 32 x 32 pixels: a baseline."""
    from torchvision.transforms.v2.functional import resize

    if max(images.shape[-2:]) > THUMBNAIL:
        images = resize(images, [THUMBNAIL, THUMBNAIL], antialias=True)
    return images.flatten(1).float()


class _UnlessExact(nn.Module):
    """A resize that leaves images of ``size`` x ``size`` pixels unchanged."""

    def __init__(self, size: int, resize: nn.Module) -> None:
        super().__init__()
        self.size = size
        self.resize = resize

    def extra_repr(self) -> str:
        return f"size={self.size}"  # a part of Steps.first_name, which identifies a cache

    def forward(self, image: Tensor) -> Tensor:
        if image.shape[-2:] == (self.size, self.size):
            return image
        return self.resize(image)  # type: ignore[no-any-return]


class _ChannelOrder(nn.Module):
    """Conversion to contiguous [C, H, W], which makes later steps faster, and to BGR."""

    def __init__(self, bgr: bool) -> None:
        super().__init__()
        self.bgr = bgr

    def forward(self, image: Tensor) -> Tensor:
        if self.bgr:
            image = image.flip(-3)
        return image.contiguous()
