"""From a stored image to what the network gets, on torchvision's transforms."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torchvision.transforms import v2

from ..errors import ConfigError

THUMBNAIL = 32  # pixels each way
Normalization = tuple[tuple[float, ...], tuple[float, ...]]


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
) -> tuple[nn.Module, nn.Module]:
    """Transforms from uint8 ``[C, H, W]`` to float32 ``[C, S, S]``, values 0 to 1 before any normalization.

    Args:
        image_size: S, in pixels.
        channels: C of the images.
        crop: resize the shorter side and cut a square from the middle, rather than resizing to a square.
        normalize: means and standard deviations per channel, such as ImageNet's.
        shift: the largest move of a training image each way, in pixels, drawn at random; the edge is filled with black.
        rotate: the largest turn of a training image each way, in degrees, from 0 to 180, drawn at random.
        scale: and grow by a random factor in this range, above 0.
        random_crop: and are cut at random (``RandomResizedCrop``), as for photographs.
        flip: and are mirrored left to right half of the time.

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
    square = _Square(image_size, crop)
    finish: list[nn.Module] = [v2.ToDtype(torch.float32, scale=True)]
    if normalize is not None:
        mean, std = normalize
        finish.append(v2.Normalize(mean[:channels], std[:channels]))
    augment: list[nn.Module] = []
    if random_crop:
        augment.append(v2.RandomResizedCrop(image_size, scale=(0.2, 1.0), antialias=True))
    else:
        augment.append(square)
    if rotate or tuple(scale) != (1.0, 1.0):
        augment.append(v2.RandomAffine(rotate, scale=tuple(scale), interpolation=v2.InterpolationMode.BILINEAR))
    if shift:
        augment.append(v2.RandomCrop(image_size, padding=shift))
    if flip:
        augment.append(v2.RandomHorizontalFlip())
    return v2.Compose([*augment, *finish]), v2.Compose([square, *finish])


class _Square(nn.Module):
    """Resizes to a square, or resizes the shorter side and crops; leaves an image of the right size alone."""

    def __init__(self, size: int, crop: bool) -> None:
        super().__init__()
        self.size = size
        resize = v2.Resize(round(size * 256 / 224), antialias=True) if crop else v2.Resize((size, size), antialias=True)
        self.steps = v2.Compose([resize, v2.CenterCrop(size)]) if crop else resize

    def forward(self, image: Tensor) -> Tensor:
        if image.shape[-2:] == (self.size, self.size):
            return image
        return self.steps(image)  # type: ignore[no-any-return]


def raw_pixels(images: Tensor) -> Tensor:
    """The pixels of images as vectors: what retrieval without a network sees.

    Images larger than 32 x 32 are looked at as thumbnails of that size, so that memory grows with these alone.

    Args:
        images: transformed, ``[B, C, H, W]``.

    Returns:
        ``[B, C * S * S]``, float32, S at most 32.
    """
    if max(images.shape[-2:]) > THUMBNAIL:
        images = v2.functional.resize(images, [THUMBNAIL, THUMBNAIL], antialias=True)
    return images.flatten(1).float()
