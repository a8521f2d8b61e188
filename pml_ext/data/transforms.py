"""From a stored image to what the network gets; torchvision draws what is random in training."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from torch import Tensor, nn

from ..errors import ConfigError, needs_extra
from .steps import CenterCrop, Normalize, Resize, ToFloat, resize

THUMBNAIL = 32  # pixels each way
Normalization = tuple[tuple[float, ...], tuple[float, ...]]


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """How photographs become what a network gets, beyond its size; ``[data.images]`` of a recipe.

    Args:
        resize: pixels of the shorter side before a square is cut out; with ``squash``, of both. None: 256 / 224 of the
            square's.
        squash: images become squares, whatever their form was, before the cut.
        bgr: the channels are blue, green, red.
        value_range: what the greatest value is before any normalization, 1 or 255.
        random_crop: a training image's square is cut at random, in its size.
        random_crop_scale: a training image's square is a random part of it, resized: the range of its area, as a share
            of the image's, above 0 and up to 1.
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
    """What is done to an image: a first step that is the same each time, and what follows.

    Applied to its own result the first step changes nothing, so results of it can be kept and go through all steps.

    Args:
        first: the first step; None where the steps begin with a random one.
        rest: the others, up to a uint8 image of the wanted size.
        last: from there to what the network gets; the same to each image, so that a batch can go through them whole.
        smallest: what the shorter side of an image may be reduced to before, in pixels.
    """

    def __init__(
        self, first: nn.Module | None, rest: Sequence[nn.Module], last: Sequence[nn.Module], smallest: int
    ) -> None:
        super().__init__()
        self.first, self.smallest = first, smallest
        self.first_name = str(first)  # says all that the first step depends on
        self.rest, self.last = nn.Sequential(*rest), nn.Sequential(*last)

    def forward(self, image: Tensor) -> Tensor:
        """A uint8 image ``[C, H, W]`` as float32 ``[C, S, S]``."""
        return self.last(self.rest(image if self.first is None else self.first(image)))  # type: ignore[no-any-return]

    def divided(self) -> tuple[Steps, nn.Sequential]:
        """All steps but the last ones; and these, for batches: a uint8 image is a quarter of what the network gets."""
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
    """Transforms from uint8 ``[C, H, W]`` to float32 ``[C, S, S]``, values 0 to 1 before any normalization.

    Args:
        image_size: S, in pixels.
        channels: C of the images.
        crop: resize the shorter side and cut a square from the middle, rather than resizing to a square.
        normalize: means and standard deviations per channel, such as ImageNet's.
        shift: the largest move of a training image each way, in pixels, drawn at random; the edge is filled with black.
        rotate: the largest turn of a training image each way, in degrees, from 0 to 180, drawn at random.
        scale: and grow by a random factor in this range, above 0.
        random_crop: and are cut at random (``RandomResizedCrop`` of 0.2 to 1 of the area), as for photographs.
        flip: and are mirrored left to right half of the time.
        pipeline: of photographs; what it says of cuts and mirroring is done besides.

    Returns:
        The transform of training images and that of all others.

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
    cut = CenterCrop(image_size)
    order = _InOrder(pipeline.bgr)
    finish: list[nn.Module] = [ToFloat(scale=pipeline.value_range == 1)]
    if normalize is not None:
        mean, std = normalize
        finish.append(Normalize(mean[:channels], std[:channels]))
    cuts = _training_cuts(image_size, shift, rotate, scale, area, pipeline.random_crop, flip or pipeline.flip)
    augment = cuts if pipeline.random_crop or area is not None else [cut, *cuts]
    plain = Steps(first, [cut, order], finish, first.side)
    if area is not None and pipeline.resize is None:  # a part of the image as it is
        # the smallest part that is drawn, of the smallest area and a ratio of 3 : 4, still has S pixels each way
        return Steps(None, [*augment, order], finish, math.ceil(image_size / math.sqrt(0.75 * area[0]))), plain
    return Steps(first, [*augment, order], finish, first.side), plain


def _training_cuts(
    size: int,
    shift: int,
    rotate: float,
    scale: tuple[float, float],
    area: tuple[float, float] | None,
    random_crop: bool,
    flip: bool,
) -> list[nn.Module]:
    """What is random in training, after an image is resized; arguments as of :func:`build_transforms`."""
    turned = rotate or tuple(scale) != (1.0, 1.0)
    if not (area or random_crop or turned or shift or flip):
        return []
    with needs_extra("train", "what is random in training"):
        from torchvision.transforms import v2

    steps: list[nn.Module] = []
    if area is not None:
        steps.append(v2.RandomResizedCrop(size, scale=area, antialias=True))
    elif random_crop:
        steps.append(v2.RandomCrop(size))
    if turned:
        steps.append(v2.RandomAffine(rotate, scale=tuple(scale), interpolation=v2.InterpolationMode.BILINEAR))
    if shift:
        steps.append(v2.RandomCrop(size, padding=shift))
    if flip:
        steps.append(v2.RandomHorizontalFlip())
    return steps


class _Resize(nn.Module):
    """Resizes an image to a square, or its shorter side.

    Args:
        size: of what is cut out afterwards; unless a pipeline says what to resize to, such an image is left alone.
        crop: whether something is cut out.
        pipeline: says what to resize to.
    """

    def __init__(self, size: int, crop: bool, pipeline: Pipeline) -> None:
        super().__init__()
        squash = pipeline.squash or not (crop or pipeline.resize)
        self.side = pipeline.resize or (size if squash else round(size * 256 / 224))
        self.left_alone = size if pipeline.resize is None else None
        self.resize = Resize((self.side, self.side) if squash else self.side)

    def extra_repr(self) -> str:
        return f"left_alone={self.left_alone}"

    def forward(self, image: Tensor) -> Tensor:
        if image.shape[-2:] == (self.left_alone, self.left_alone):
            return image
        return self.resize(image)  # type: ignore[no-any-return]


class _InOrder(nn.Module):
    """Has an image lie in memory channel by channel, which what follows is several times as fast on.

    Args:
        bgr: blue, green, red for red, green, blue.
    """

    def __init__(self, bgr: bool) -> None:
        super().__init__()
        self.bgr = bgr

    def forward(self, image: Tensor) -> Tensor:
        return (image.flip(-3) if self.bgr else image).contiguous()


def raw_pixels(images: Tensor) -> Tensor:
    """The pixels of images as vectors: what retrieval without a network sees.

    Images larger than 32 x 32 are looked at as thumbnails of that size, so that memory grows with these alone.

    Args:
        images: transformed, ``[B, C, H, W]``.

    Returns:
        ``[B, C * S * S]``, float32, S at most 32.
    """
    if max(images.shape[-2:]) > THUMBNAIL:
        images = resize(images, (THUMBNAIL, THUMBNAIL))
    return images.flatten(1).float()
