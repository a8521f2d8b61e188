"""Labeled images: what every data set gives."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from ..errors import DataError

# What Pillow may take a file for, whatever its name; others start programs (an EPS starts Ghostscript).
FORMATS = ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "PPM", "GIF")

Transform = Callable[[Tensor], Tensor]


class LabelledImages(Dataset[tuple[Tensor, int]]):
    """Images with integer labels; an item is ``(image, label)``.

    Args:
        images: uint8 images ``[N, C, H, W]``, or the paths of image files, read when they are wanted.
        labels: ``[N]``, integers; each is an index of ``class_names``.
        class_names: the name of every class of the data set, whichever split it is in.
        transform: what is done to a uint8 image ``[C, H, W]``; None leaves it.
        channels: what files are read as: 1 (gray) or 3 (color).
    """

    def __init__(
        self,
        images: Tensor | Sequence[Path],
        labels: Any,
        class_names: Sequence[str],
        transform: Transform | None = None,
        channels: int = 3,
    ) -> None:
        self.images = images
        self.labels: NDArray[np.int64] = np.asarray(labels, dtype=np.int64)
        self.class_names = list(class_names)
        self.transform = transform
        self.channels = channels
        if len(self.images) != len(self.labels):
            raise ValueError(f"{len(self.images)} images, but {len(self.labels)} labels")

    @property
    def paths(self) -> list[Path] | None:
        """The files, where the images are files."""
        return None if isinstance(self.images, Tensor) else list(self.images)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.image(index)
        return (image if self.transform is None else self.transform(image)), int(self.labels[index])

    def image(self, index: int) -> Tensor:
        """The image itself, before the transform: uint8, ``[C, H, W]``.

        Raises:
            DataError: its file cannot be read; the text has the path.
        """
        if isinstance(self.images, Tensor):
            return self.images[index]
        return read_image(self.images[index], self.channels)

    def with_transform(self, transform: Transform | None) -> LabelledImages:
        """The same images with another transform."""
        return LabelledImages(self.images, self.labels, self.class_names, transform, self.channels)

    def subset(self, indices: Any) -> LabelledImages:
        """Some of the images, by index or boolean mask."""
        chosen = np.arange(len(self))[np.asarray(indices)]
        images = self.images[torch.from_numpy(chosen)] if isinstance(self.images, Tensor) else [
            self.images[index] for index in chosen
        ]  # fmt: skip
        return LabelledImages(images, self.labels[chosen], self.class_names, self.transform, self.channels)


@dataclasses.dataclass(frozen=True)
class DataSplits:
    """What a data set's factory returns.

    Args:
        train: images to train with.
        test: images to test with.
        image_size: height and width, in pixels, of what a network gets.
        channels: 1 (gray) or 3 (color).
        crop: whether an image is cropped to a square after its shorter side was resized (photographs), rather than
            resized to the square.

    Raises:
        DataError: other channels, or no image size.
    """

    train: LabelledImages
    test: LabelledImages
    image_size: int
    channels: int
    crop: bool = False

    def __post_init__(self) -> None:
        if self.channels not in (1, 3):
            raise DataError(f"DataSplits: channels must be 1 (gray) or 3 (color), not {self.channels!r}")
        if self.image_size < 1:
            raise DataError(f"DataSplits: image_size must be at least 1 pixel, not {self.image_size!r}")


def read_image(path: Path, channels: int = 3) -> Tensor:
    """An image file as uint8 ``[C, H, W]``, turned upright as its EXIF data say, transparency on white.

    Args:
        path: the file.
        channels: 1 (gray) or 3 (color).

    Raises:
        DataError: the file is missing, no image, or broken; the text has the path.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(path, formats=FORMATS) as file:
            image: Any = ImageOps.exif_transpose(file)
            if image.mode.startswith("I;16"):  # 16 bits: PIL would clip, not scale
                image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
            if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
                image = image.convert("RGBA")
                image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
            pixels = np.array(image.convert("L" if channels == 1 else "RGB"))
    except (OSError, UnidentifiedImageError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{path}: not a readable image ({error}); mend or remove the file") from None
    return torch.from_numpy(pixels).reshape(*pixels.shape[:2], channels).permute(2, 0, 1)


def split_by_class(images: LabelledImages, fraction: float, seed: int) -> tuple[LabelledImages, LabelledImages]:
    """Divides the classes: no class is in both parts.

    Args:
        images: what to divide.
        fraction: the share of the classes in the second part, between 0 and 1; at least one class in each.
        seed: of the draw.

    Returns:
        Both parts; labels stay what they were.

    Raises:
        DataError: fewer than two classes.
    """
    classes = np.unique(images.labels)
    if len(classes) < 2:
        raise DataError(f"found {len(classes)} class; dividing by class needs two or more")
    count = min(max(1, round(len(classes) * fraction)), len(classes) - 1)
    chosen = np.isin(images.labels, np.random.default_rng(seed).permutation(classes)[:count])
    return images.subset(~chosen), images.subset(chosen)


def split_by_image(images: LabelledImages, fraction: float, seed: int) -> tuple[LabelledImages, LabelledImages]:
    """Divides the images of every class, in a random order.

    Args:
        images: what to divide.
        fraction: the share of each class's images in the second part, rounded to whole images.
        seed: of the draw.

    Returns:
        Both parts; labels stay what they were.
    """
    generator = np.random.default_rng(seed)
    second = np.zeros(len(images), dtype=bool)
    for label in np.unique(images.labels):
        members = generator.permutation(np.flatnonzero(images.labels == label))
        second[members[: round(len(members) * fraction)]] = True
    return images.subset(~second), images.subset(second)


def hold_out_classes(train: LabelledImages, fraction: float, seed: int = 0) -> tuple[LabelledImages, LabelledImages]:
    """Training classes and held-out ones to choose a model by.

    Args:
        train: the training images.
        fraction: the share of the classes to hold out, between 0 and 1.
        seed: of the draw.

    Returns:
        What is left to train with, and the held-out images; labels stay what they were.
    """
    return split_by_class(train, fraction, seed)
