"""Settings for a user's own images: the split, the image size and the batches that fit a folder or a table."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import DataError
from ..files import toml_value
from .build import build_dataset
from .schema import DataTable

if TYPE_CHECKING:
    from ..data import LabeledImages

MANY_CLASSES = 20  # classes from which on some are kept from training: fewer teach too little about others
FEW_IMAGES = 4  # images of a class that can be divided, two to train and two to test
BATCH = 64  # images, at most
MOST_PER_CLASS = 16
SIDE = 64  # pixels, at most
IN_MEMORY = 20_000  # images that are cached
SAMPLED_FILES = 200  # files whose size is looked at


class OwnImages(NamedTuple):
    """What a folder or a table of images is like, and the settings that fit it, as ``KEY=VALUE``."""

    data: list[str]  # the data set, its split and its cache
    small: list[str]  # size and augmentation of images for a small network that trains from scratch
    batches: list[str]
    description: list[str]  # two lines: the images, and their split
    training_images: int
    training_classes: int
    tested_images: int
    splits_by_class: bool
    side: int  # pixels of a small network's images

    @property
    def last_line(self) -> str:
        """A line about the batches of a small network, and the options that change them."""
        settings = dict(setting.split("=", 1) for setting in self.batches)
        per_class = int(settings["sampler.m"])
        classes = int(settings["sampler.batch_size"]) // per_class
        side = self.side
        return (
            f"batches of {classes} classes x {per_class} images, {side} x {side} pixels; larger images: "
            f"--set data.image_size={2 * side}, longer training: --set schedule.epochs=20"
        )


def settings_for(place: Path, overrides: Iterable[str] = (), root: Path | None = None) -> tuple[list[str], list[str]]:
    """Return ``KEY=VALUE`` settings of a small network for a folder or table, and three lines that describe them.

    The ``overrides`` of ``data`` are followed. DataError: there are no images, or too few.
    """
    found = describe_images(place, overrides, root)
    settings = [*found.data, *found.small, *found.batches]
    return settings, [*found.description, found.last_line]


def describe_images(place: Path, overrides: Iterable[str] = (), root: Path | None = None) -> OwnImages:
    """Look at a folder of images or a ``.csv`` table; as :func:`settings_for`."""
    place = _existing(place)
    table = place.suffix.lower() == ".csv"
    kind = "table" if table else "folder"
    name = f"{kind}:{place}"
    options = _dataset_options(overrides)
    data = [f"data.name={name}", "data.unreadable=skip"]

    divided = table or all((place / part).is_dir() for part in ("train", "test"))
    split_is_chosen = divided or "split" in options
    if not split_is_chosen:
        split = _fitting_split(place, _parts(name, options | {"split": "image"}, root))
        options["split"] = split
        data.append(f"data.split={split}")
    parts = _parts(name, options, root)
    if sum(len(part) for part in parts) <= IN_MEMORY:
        data.append("data.cache=memory")

    images_per_class = _images_per_class(parts)
    trained = _images_per_class(parts[:1])
    image_sizes = _sample_of_sizes(parts)
    side = int(options.get("image_size", _fitting_side(image_sizes)))
    small = [
        f"data.image_size={side}",
        f"data.images.resize={round(side * 8 / 7)}",
        "data.images.random_crop=true",
        "data.images.flip=true",
    ]
    description = [
        f"{place}: {len(images_per_class)} classes of {_range_of(images_per_class)} images, {_size_range(image_sizes)}",
        _description_of_split(parts, split_is_chosen),
    ]
    trained_labels = set(parts[0].labels.tolist())
    return OwnImages(
        data=data,
        small=small,
        batches=batches_for(len(trained), float(np.median(trained))),
        description=description,
        training_images=len(parts[0]),
        training_classes=len(trained),
        tested_images=sum(len(part) for part in parts[1:]),
        splits_by_class=not trained_labels & set(parts[-1].labels.tolist()),
        side=side,
    )


def batches_for(training_classes: int, images_per_class: float) -> list[str]:
    """Return settings of batches of at most 16 classes and 64 images for a median number of images per class."""
    classes = min(training_classes, BATCH // 4)
    per_class = int(max(2, min(BATCH // classes, MOST_PER_CLASS, images_per_class)))
    return [f"sampler.m={per_class}", f"sampler.batch_size={classes * per_class}"]


def _existing(place: Path) -> Path:
    """Return the path of a folder or table, also of one written as in a recipe, ``folder:PATH``; else DataError."""
    kind, _, path = str(place).partition(":")
    if kind in ("folder", "table") and not os.path.exists(place):
        place = Path(path)
    if not os.path.exists(place):
        wanted = "wanted a folder of images, or a .csv table of them"
        raise DataError(f"--images {place}: no such folder or table; {wanted}")
    return place


def _dataset_options(overrides: Iterable[str]) -> dict[str, Any]:
    """Return the arguments of the data set, such as ``split``, among the overrides of ``[data]``."""
    options = {}
    for override in overrides:
        key, _, text = override.partition("=")
        value = toml_value(text.strip())
        table, _, name = key.strip().partition(".")
        if table == "data" and name and "." not in name and name not in DataTable.model_fields:
            options[name] = value
    return options


def _fitting_split(place: Path, parts: list[LabeledImages]) -> str:
    """Return ``"class"`` where there are many classes, or few images of each; else ``"image"``."""
    images_per_class = _images_per_class(parts)
    classes = len(images_per_class)
    few_images = np.median(images_per_class) < FEW_IMAGES
    if few_images and classes < FEW_IMAGES:
        found = f"{classes} classes, most with fewer than {FEW_IMAGES} images"
        raise DataError(f"{place}: {found}; wanted two classes of {FEW_IMAGES} images, or {FEW_IMAGES} classes")
    if few_images or classes >= MANY_CLASSES:
        return "class"
    return "image"


def _description_of_split(parts: list[LabeledImages], split_is_chosen: bool) -> str:
    train = parts[0]
    trained_labels = set(train.labels.tolist())
    if trained_labels & set(parts[-1].labels.tolist()):
        text = f"half of each class's images to train, the others to test ({len(train):,} to train)"
        other = "class"
    else:
        tested = len(_images_per_class(parts)) - len(trained_labels)
        text = f"{len(trained_labels)} classes to train, {tested} others, never trained on, to test"
        other = "image"
    if split_is_chosen:
        return text
    return f"{text}; otherwise: --set data.split={other}"


def _parts(name: str, options: dict[str, Any], root: Path | None) -> list[LabeledImages]:
    splits = build_dataset(DataTable(name=name, **options), root)
    return [splits.train, *splits.tested().values()]


def _images_per_class(parts: list[LabeledImages]) -> Any:
    labels = np.concatenate([part.labels for part in parts])
    _, counts = np.unique(labels, return_counts=True)
    return counts


def _range_of(counts: Any) -> str:
    smallest = counts.min()
    largest = counts.max()
    if smallest < largest:
        return f"{smallest} to {largest}"
    return str(smallest)


def _sample_of_sizes(parts: list[LabeledImages]) -> list[tuple[int, int]]:
    """Return width and height of a sample of the files; DataError if none can be read."""
    from PIL import Image

    files: list[Path] = []
    for part in parts:
        files += part.paths or []
    step = max(1, len(files) // SAMPLED_FILES)

    sizes = []
    for file in files[::step]:
        with contextlib.suppress(OSError, Image.DecompressionBombError), Image.open(file) as image:
            sizes.append(image.size)  # a broken file is reported when it is read
    if not sizes:
        raise DataError(f"none of {len(files)} files can be read, {files[0]} first; wanted .jpg, .png, ... files")
    return sizes


def _fitting_side(sizes: list[tuple[int, int]]) -> int:
    """Return a multiple of 16 pixels that most images have."""
    shorter = int(np.median([min(size) for size in sizes]))
    return max(16, min(SIDE, shorter // 16 * 16))


def _size_range(sizes: list[tuple[int, int]]) -> str:
    smallest = "{} x {}".format(*min(sizes, key=np.prod))
    largest = "{} x {}".format(*max(sizes, key=np.prod))
    if smallest == largest:
        return smallest
    return f"{smallest} to {largest} pixels"
