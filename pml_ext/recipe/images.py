"""Settings for a user's own images: the split, the image size and the batches that fit a folder or a table."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import DataError
from ..files import toml_value
from .build import build_dataset
from .schema import DataTable

if TYPE_CHECKING:
    from ..data import LabeledImages

RECIPE = "pml/photographs"
MANY_CLASSES = 20  # classes from which on some are kept from training: fewer teach too little about others
FEW_IMAGES = 4  # images of a class that can be divided, two to train and two to test
BATCH, MOST_PER_CLASS = 64, 16
SIDE, IN_MEMORY, SEEN = 64, 20_000, 200  # pixels; images that are cached; files whose size is looked at


def settings_for(place: Path, overrides: Iterable[str] = (), root: Path | None = None) -> tuple[list[str], list[str]]:
    """Return ``KEY=VALUE`` settings for a folder of images or a ``.csv`` table, and three lines that describe them.

    The ``overrides`` of ``data`` are followed. DataError: there are no images, or too few.
    """
    kind, _, path = str(place).partition(":")
    if kind in ("folder", "table") and not os.path.exists(place):  # as recipes write it
        place = Path(path)
    if not os.path.exists(place):
        wanted = "wanted a folder of images, or a .csv table of them"
        raise DataError(f"--images {place}: no such folder or table; {wanted}")
    pairs = (override.partition("=") for override in overrides)
    named = {key.strip(): toml_value(text.strip()) for key, _, text in pairs}
    given = {key.removeprefix("data."): value for key, value in named.items() if key.startswith("data.")}
    options = {key: value for key, value in given.items() if key not in DataTable.model_fields and "." not in key}
    table = place.suffix.lower() == ".csv"
    name = f"{'table' if table else 'folder'}:{place}"
    chosen = "split" in given or table or all((place / part).is_dir() for part in ("train", "test"))
    settings: dict[str, Any] = {"data.name": name, "data.unreadable": "skip"}
    if not chosen:
        parts = _parts(name, options | {"split": "image"}, root)
        counts = _counts(parts)
        few = np.median(counts) < FEW_IMAGES
        if few and len(counts) < FEW_IMAGES:
            found = f"{len(counts)} classes, most with fewer than {FEW_IMAGES} images"
            raise DataError(f"{place}: {found}; wanted two classes of {FEW_IMAGES} images, or {FEW_IMAGES} classes")
        unseen = few or len(counts) >= MANY_CLASSES
        options["split"] = settings["data.split"] = "class" if unseen else "image"
    train, *tested = parts = _parts(name, options, root)
    counts, own = _counts(parts), _counts([train])
    classes = min(len(own), BATCH // 4)
    per_class = int(max(2, min(BATCH // classes, MOST_PER_CLASS, np.median(own))))
    shorter, sizes = _sizes(parts)
    side = int(options.get("image_size", max(16, min(SIDE, shorter // 16 * 16))))
    settings |= {"data.image_size": side, "data.images.resize": round(side * 8 / 7)}
    settings |= {"data.images.random_crop": "true", "data.images.flip": "true"}
    settings |= {"data.cache": "memory"} if sum(map(len, parts)) <= IN_MEMORY else {}
    settings |= {"sampler.m": per_class, "sampler.batch_size": classes * per_class}
    number = f"{counts.min()} to {counts.max()}" if counts.min() < counts.max() else str(counts.min())
    if set(train.labels.tolist()) & set(tested[-1].labels.tolist()):
        of, other = f"half of each class's images to train, the others to test ({len(train):,} to train)", "class"
    else:
        of, other = f"{len(own)} classes to train, {len(counts) - len(own)} others, never trained on, to test", "image"
    lines = [
        f"{place}: {len(counts)} classes of {number} images, {sizes}",
        of if chosen else f"{of}; otherwise: --set data.split={other}",
        f"batches of {classes} classes x {per_class} images, {side} x {side} pixels; larger images: "
        f"--set data.image_size={2 * side}, longer training: --set schedule.epochs=20",
    ]
    return [f"{key}={value}" for key, value in settings.items()], lines


def _parts(name: str, options: dict[str, Any], root: Path | None) -> list[LabeledImages]:
    splits = build_dataset(DataTable(name=name, **options), root)
    return [splits.train, *splits.tested().values()]


def _counts(parts: list[LabeledImages]) -> Any:
    return np.unique(np.concatenate([part.labels for part in parts]), return_counts=True)[1]


def _sizes(parts: list[LabeledImages]) -> tuple[int, str]:
    """Return the median of the images' shorter sides, and the range of their sizes, of a sample of the files."""
    from PIL import Image

    sizes = []
    files = [file for part in parts for file in part.paths or ()]
    for file in files[:: max(1, len(files) // SEEN)]:
        with contextlib.suppress(OSError, Image.DecompressionBombError), Image.open(file) as image:
            sizes.append(image.size)  # a broken file is reported when it is read
    if not sizes:
        raise DataError(f"none of {len(files)} files can be read, {files[0]} first; wanted .jpg, .png, ... files")
    low, high = (f"{size[0]} x {size[1]}" for size in (min(sizes, key=np.prod), max(sizes, key=np.prod)))
    return int(np.median([min(size) for size in sizes])), low if low == high else f"{low} to {high} pixels"
