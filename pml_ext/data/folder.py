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
    classes: Literal["outer", "leaf"] = "outer",
    levels: int | None = None,
) -> DataSplits:
    """Return a folder of images, one sub-folder per class, or ``train/CLASS`` and ``test/CLASS``.

    The shorter side of an image is resized, and a square cut from the middle. Unless the folder has ``train`` and
    ``test``, it is split by class (test classes are never trained on) or by image.

    Args:
        root: the folder that ``path`` is relative to.
        path: the folder.
        image_size: height and width of the network's input, in pixels.
        channels: 1 (gray) or 3 (color).
        split: ``"class"`` or ``"image"``.
        train_fraction: the share of the classes, or of each class's images, to train with, above 0 and below 1.
        seed: random seed of the split.
        classes: in nested folders, the class is the outermost folder (``"outer"``), or the innermost, named by its path
            (``"leaf"``).
        levels: instead of ``classes``: depth of the class folders, named by their paths, for a hierarchy of classes.

    Raises:
        ConfigError: a setting outside its range.
        DataError: the folder is missing, or has no images or only one class.
    """
    if levels is not None and (levels < 1 or classes != "outer"):
        raise ConfigError(
            f"levels of a folder must be 1 or more, and goes without classes; found {levels}, {classes!r}"
        )
    if not 0 < train_fraction < 1:
        raise ConfigError(f"train_fraction of a folder must be above 0 and below 1, not {train_fraction}")
    place = (root or Path()) / Path(path).expanduser()
    if not os.path.isdir(place):
        raise DataError(f"{place}: no such folder; folder:PATH wants one sub-folder of images per class")
    parts = [place / "train", place / "test"]
    parts = parts if all(part.is_dir() for part in parts) else [place]
    depth = None if classes == "leaf" else levels or 1
    found = [_files_by_class(part, depth) for part in parts]
    names = sorted(set().union(*found))
    labeled = [_labeled(files, names, channels) for files in found]
    inner = [file.parent for each in labeled for file in each.paths or () if file.parents[1] not in parts]
    leaf = "--set data.classes=leaf takes each innermost folder as a class"
    if len(labeled) == 1:
        if len(names) == 1:
            remedy = leaf if inner else "wanted a sub-folder for each of several classes"
            raise DataError(f"{place}: found 1 class, {names[0]}; {remedy}")
        divide = hold_out_classes if split == "class" else split_by_image
        labeled = [*divide(labeled[0], 1 - train_fraction, seed)]
    train, test = labeled
    for part, images in (("train", train), ("test", test)):
        if len(images) < 2:
            raise DataError(f"{place}: {len(images)} images to {part} with; wanted two or more per class")
    if len(set(train.labels.tolist())) < 2:
        divided = len(parts) == 1 and split == "class"
        other = "; --set data.split=image divides the images of each class" if divided else ""
        raise DataError(f"{place}: one class to train with; wanted two or more{other}")
    note = ""
    if inner and classes == "outer" and levels is None:
        note = f"{inner[0]} is a folder inside of a class's folder, whose class its images get; {leaf}"
    return DataSplits(train, test, image_size=image_size, channels=channels, crop=True, note=note)


def _refuse(error: OSError) -> None:
    raise DataError(f"{error.filename}: cannot be listed ({error.strerror}); check its permissions")


def _files_by_class(place: Path, depth: int | None) -> dict[str, list[Path]]:
    """Return image files by class, the first ``depth`` folders of a path (None: all); skip hidden and other files."""
    from torchvision.datasets.folder import IMG_EXTENSIONS

    found: dict[str, list[Path]] = {}
    for top in sorted(name for name in next(os.walk(place, onerror=_refuse))[1] if not name.startswith(".")):
        for folder, folders, files in os.walk(place / top, onerror=_refuse):
            folders[:] = [each for each in folders if not each.startswith(".")]
            images = [Path(folder, each) for each in files if not each.startswith(".")]
            images = [file for file in images if file.name.lower().endswith(IMG_EXTENSIONS) and file.is_file()]
            name = "/".join(Path(folder).relative_to(place).parts[:depth])
            if images:
                found.setdefault(name, []).extend(images)
    if not found:
        raise DataError(f"{place}: no images in sub-folders; wanted one sub-folder of .jpg, .png, ... files per class")
    return found


def _labeled(found: dict[str, list[Path]], names: list[str], channels: int) -> LabeledImages:
    files = [file for name in names for file in sorted(found.get(name, ()))]
    labels = [label for label, name in enumerate(names) for _ in found.get(name, ())]
    return LabeledImages(files, labels, names, channels=channels)
