"""A user's own folder of images."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from ..errors import ConfigError, DataError
from .splits import DataSplits, LabeledImages, split_by_class, split_by_image


def folder(
    root: Path | None = None,
    path: str = "",
    image_size: int = 224,
    channels: Literal[1, 3] = 3,
    split: Literal["class", "image"] = "class",
    train_fraction: float = 0.5,
    seed: int = 0,
) -> DataSplits:
    """Return a folder of images, one sub-folder per class, or ``train/CLASS`` and ``test/CLASS``.

    The shorter side of an image is resized, and a square cut from the middle. Unless the folder has ``train`` and
    ``test``, it is split by class (test classes are never trained on) or by image.

    Args:
        root: a folder that ``path`` is relative to.
        path: the folder.
        image_size: height and width of the network's input, in pixels.
        channels: 1 (gray) or 3 (color).
        split: ``"class"`` or ``"image"``.
        train_fraction: the share of the classes, or of each class's images, to train with, above 0 and below 1.
        seed: of the split.

    Raises:
        ConfigError: a setting outside its range.
        DataError: no such folder, no images, or one class alone.
    """
    if image_size < 1:
        raise ConfigError(f"image_size of a folder must be at least 1 pixel, not {image_size}")
    if channels not in (1, 3):
        raise ConfigError(f"channels of a folder must be 1 (gray) or 3 (color), not {channels!r}")
    if split not in ("class", "image"):
        raise ConfigError(f"split of a folder must be 'class' or 'image', not {split!r}")
    if not (0 < train_fraction < 1 and math.isfinite(train_fraction)):
        raise ConfigError(f"train_fraction of a folder must be above 0 and below 1, not {train_fraction}")
    place = (root or Path()) / Path(path).expanduser()
    if not place.is_dir():
        raise DataError(f"{place}: no such folder; folder:PATH wants one sub-folder of images per class")
    parts = [place / "train", place / "test"]
    if all(part.is_dir() for part in parts):
        names = sorted({name for part in parts for name in _classes(part)})
        train, test = (_images(part, names, channels) for part in parts)
    else:
        everything = _images(place, _classes(place), channels)
        divide: Callable[..., tuple[LabeledImages, LabeledImages]] = (
            split_by_class if split == "class" else split_by_image
        )
        train, test = divide(everything, 1 - train_fraction, seed)
    for part, images in (("train", train), ("test", test)):
        if len(images) < 2:
            raise DataError(f"{place}: {len(images)} images to {part} with; wanted two or more per class")
    if len(set(train.labels.tolist())) < 2:
        raise DataError(f"{place}: one class to train with; wanted two or more")
    return DataSplits(train, test, image_size=image_size, channels=channels, crop=True)


def image_files(place: Path) -> list[Path]:
    """Return the image files below a folder, sorted; other files, hidden files and hidden folders are left out.

    Args:
        place: the folder.

    Raises:
        DataError: a folder cannot be listed.
    """
    from torchvision.datasets.folder import IMG_EXTENSIONS, has_file_allowed_extension

    def refuse(error: OSError) -> None:
        raise DataError(f"{error.filename}: cannot be listed ({error.strerror}); give it back its read permission")

    files = []
    for folder, folders, names in os.walk(place, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files += [
            Path(folder, name)
            for name in names
            if not name.startswith(".") and has_file_allowed_extension(name, IMG_EXTENSIONS)
        ]
    return sorted(file for file in files if file.is_file())


def _classes(place: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in place.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise DataError(f"{place}: cannot be listed ({error.strerror}); give it back its read permission") from None


def _images(place: Path, names: list[str], channels: int) -> LabeledImages:
    entries = [
        (file, label)
        for label, name in enumerate(names)
        if (place / name).is_dir()
        for file in image_files(place / name)
    ]
    if not entries:
        raise DataError(f"{place}: no images in sub-folders; wanted one sub-folder of .jpg, .png, ... files per class")
    files, labels = zip(*entries, strict=True)
    return LabeledImages(files, labels, names, channels=channels)
