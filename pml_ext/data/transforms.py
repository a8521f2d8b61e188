"""Transforms from a stored image to the input of a network; augmentations are torchvision's ``v2`` transforms.

Torchvision is imported when a transform augments: the import takes longer than that of torch, and a query needs none.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from torch import Tensor, nn

from ..errors import ConfigError, needs_extra
from .steps import CenterCrop, Normalize, ToFloat, resize

THUMBNAIL = 32  # pixels each way
Normalization = tuple[tuple[float, ...], tuple[float, ...]]


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """Preprocessing of photographs beyond the size of the input; ``[data.images]`` of a recipe.

    Args:
        resize: pixels of the shorter side before a square is cut out; with ``squash``, of both. None: 256 / 224 of the
            square's.
        squash: images become squares before the cut, whatever their aspect ratio was.
        bgr: the channels are blue, green, red.
        value_range: greatest value before any normalization, 1 or 255.
        random_crop: a training image's square is cut at a random place, in its size.
        random_crop_scale: a training image's square is a random part of it, resized: range of the part's area as a
            share of the image's, above 0 and up to 1.
        flip: training images are mirrored left to right half of the time.
    """

    resize: int | None = None
    squash: bool = False
    bgr: bool = False
    value_range: int = 1
    random_crop: bool = False
    random_crop_scale: tuple[float, float] | None = None
    flip: bool = False


class Steps(nn.Module):
    """A transform in three parts: a deterministic first step, further steps on one image, and steps on a batch.

    The first step leaves its own result alone, so that its results can be cached and go through all steps.

    Args:
        first: the first step; None where the steps begin with a random one.
        rest: the others, up to a uint8 image of the wanted size.
        last: the same for each image, so that a batch can go through them whole.
        smallest: shorter side that an image may be reduced to before the first step, in pixels.
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
    rotate: float = 0.0,
    scale: tuple[float, float] = (1.0, 1.0),
    random_crop: bool = False,
    flip: bool = False,
    pipeline: Pipeline = Pipeline(),
) -> tuple[Steps, Steps]:
    """Return the transforms of training images and of all others, from uint8 ``[C, H, W]`` to float32 ``[C, S, S]``.

    Args:
        image_size: S, in pixels.
        channels: C of the images.
        crop: resize the shorter side and cut a square from the middle, rather than resizing to a square.
        normalize: means and standard deviations per channel, such as ImageNet's.
        shift: largest move of a training image each way, in pixels, drawn at random; the edge is filled with black.
        rotate: largest turn of a training image each way, in degrees, from 0 to 180, drawn at random.
        scale: range of the random factor by which a training image grows, above 0.
        random_crop: cut training images at random (``RandomResizedCrop`` of 0.2 to 1 of the area).
        flip: mirror training images left to right half of the time.
        pipeline: of photographs; its cuts and its mirroring come on top.

    Raises:
        ConfigError: a setting outside its range.
    """
    if not 0 <= shift < image_size:
        raise ConfigError(
            f"shift must be from 0 to {image_size - 1} pixels for images of size {image_size}, not {shift}"
        )
    if not 0 <= rotate <= 180:
        raise ConfigError(f"rotate must be from 0 to 180 degrees, not {rotate}")
    if not 0 < scale[0] <= scale[1]:
        raise ConfigError(f"scale must be a range of factors above 0, smaller first, not {list(scale)}")
    if pipeline.resize is not None and pipeline.resize < image_size:
        raise ConfigError(f"resize must be at least what is cut out, {image_size} pixels, not {pipeline.resize}")
    area = pipeline.random_crop_scale or ((0.2, 1.0) if random_crop else None)
    if area is not None and not 0 < area[0] <= area[1] <= 1:
        raise ConfigError(f"random_crop_scale must be a range above 0 and up to 1, smaller first, not {list(area)}")
    if pipeline.random_crop and area is not None:
        raise ConfigError(
            "random_crop of [data.images] cuts a square in its size, and another setting a part that is "
            "resized; leave one of them out"
        )
    first = _Resize(image_size, crop, pipeline)
    in_order = _ChannelOrder(pipeline.bgr)
    last: list[nn.Module] = [ToFloat(scale=pipeline.value_range == 1)]
    if normalize is not None:
        mean, std = normalize
        last.append(Normalize(mean[:channels], std[:channels]))
    augment: list[nn.Module] = [] if area or pipeline.random_crop else [CenterCrop(image_size)]
    augment += _augmentation(image_size, shift, rotate, scale, area, pipeline.random_crop, flip or pipeline.flip)
    plain = Steps(first, [CenterCrop(image_size), in_order], last, first.side)
    if area is not None and pipeline.resize is None:  # a part of the photograph itself
        # the smallest part, of the smallest area and an aspect ratio of 3 : 4, still has S pixels each way
        smallest = math.ceil(image_size / math.sqrt(0.75 * area[0]))
        return Steps(None, [*augment, in_order], last, smallest), plain
    return Steps(first, [*augment, in_order], last, first.side), plain


def _augmentation(
    size: int,
    shift: int,
    rotate: float,
    scale: tuple[float, float],
    area: tuple[float, float] | None,
    random_crop: bool,
    flip: bool,
) -> list[nn.Module]:
    """Return the random steps of training."""
    affine = rotate or tuple(scale) != (1.0, 1.0)
    if not (area or random_crop or affine or shift or flip):
        return []
    with needs_extra("train", "an augmentation"):
        from torchvision.transforms import v2

    steps: list[nn.Module] = []
    if area is not None:
        steps.append(v2.RandomResizedCrop(size, scale=area, antialias=True))
    elif random_crop:
        steps.append(v2.RandomCrop(size))
    if affine:
        steps.append(v2.RandomAffine(rotate, scale=tuple(scale), interpolation=v2.InterpolationMode.BILINEAR))
    if shift:
        steps.append(v2.RandomCrop(size, padding=shift))
    if flip:
        steps.append(v2.RandomHorizontalFlip())
    return steps


class _Resize(nn.Module):
    """Resizes an image to a square, or its shorter side; leaves an image of the wanted size alone by default."""

    def __init__(self, size: int, crop: bool, pipeline: Pipeline) -> None:
        super().__init__()
        squash = pipeline.squash or not (crop or pipeline.resize)
        self.side = pipeline.resize or (size if squash else round(size * 256 / 224))
        self.left_alone = size if pipeline.resize is None else None
        self.size = (self.side, self.side) if squash else self.side

    def extra_repr(self) -> str:
        return f"{self.size}, left_alone={self.left_alone}"  # names what a cache of resized images holds

    def forward(self, image: Tensor) -> Tensor:
        if image.shape[-2:] == (self.left_alone, self.left_alone):
            return image
        return resize(image, self.size)


class _ChannelOrder(nn.Module):
    """Makes an image contiguous, channel by channel, which later steps are several times as fast on."""

    def __init__(self, bgr: bool) -> None:
        super().__init__()
        self.bgr = bgr

    def forward(self, image: Tensor) -> Tensor:
        return (image.flip(-3) if self.bgr else image).contiguous()


def raw_pixels(images: Tensor) -> Tensor:
    """Return the pixels of images as vectors ``[B, C * S * S]``, S at most 32: the baseline without a network.

    Args:
        images: transformed, ``[B, C, H, W]``; larger ones than 32 x 32 are reduced to that size.
    """
    if max(images.shape[-2:]) > THUMBNAIL:
        images = resize(images, (THUMBNAIL, THUMBNAIL))
    return images.flatten(1).float()
