"""A user's own folder of images."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from ..errors import ConfigError, DataError
from .splits import DataSplits, LabeledImages, hold_out_classes, split_by_image


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
    if split not in ("class", "image"):
        raise ConfigError(f"split of a folder must be 'class' or 'image', not {split!r}")
    if not 0 < train_fraction < 1:
        raise ConfigError(f"train_fraction of a folder must be above 0 and below 1, not {train_fraction}")
    place = (root or Path()) / Path(path).expanduser()
    if not place.is_dir():
        raise DataError(f"{place}: no such folder; folder:PATH wants one sub-folder of images per class")
    parts = [place / "train", place / "test"]
    if all(part.is_dir() for part in parts):
        names = sorted({name for part in parts for name in _classes(part)})
        train, test = (_images(part, names, channels) for part in parts)
    else:
        divide = hold_out_classes if split == "class" else split_by_image
        train, test = divide(_images(place, _classes(place), channels), 1 - train_fraction, seed)
    for part, images in (("train", train), ("test", test)):
        if len(images) < 2:
            raise DataError(f"{place}: {len(images)} images to {part} with; wanted two or more per class")
    if len(set(train.labels.tolist())) < 2:
        raise DataError(f"{place}: one class to train with; wanted two or more")
    return DataSplits(train, test, image_size=image_size, channels=channels, crop=True)


def _classes(place: Path) -> list[str]:
    return sorted(name for name in next(os.walk(place, onerror=_refuse))[1] if not name.startswith("."))


def _refuse(error: OSError) -> None:
    raise DataError(f"{error.filename}: cannot be listed ({error.strerror}); give it back its read permission")


def _images(place: Path, names: list[str], channels: int) -> LabeledImages:
    """Return the images below the folders of classes; hidden files and folders, and other files, are left out."""
    from torchvision.datasets.folder import IMG_EXTENSIONS

    files: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(names):
        found = []
        for folder, folders, inside in os.walk(place / name, onerror=_refuse if (place / name).is_dir() else None):
            folders[:] = [each for each in folders if not each.startswith(".")]
            found += [Path(folder, each) for each in inside if not each.startswith(".")]
        found = sorted(file for file in found if file.name.lower().endswith(IMG_EXTENSIONS) and file.is_file())
        files += found
        labels += [label] * len(found)
    if not files:
        raise DataError(f"{place}: no images in sub-folders; wanted one sub-folder of .jpg, .png, ... files per class")
    return LabeledImages(files, labels, names, channels=channels)
