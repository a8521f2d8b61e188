"""The split, image size and batches that fit a folder or a table of images."""

import contextlib
import itertools
import os
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from pml_ext.errors import DataError, first_of
from pml_ext_train.data import LabeledImages, columns_of_parquet, has_split, open_image, shown_size
from pml_ext_train.recipe import Override, read_tables

from .framing import SQUASH, Framing
from .own_data import (
    dataset_options,
    describe_split,
    fitting_batch,
    fitting_split,
    items_per_class,
    parts_of,
    range_of,
    sampler_of,
    selection_on,
    shares_classes,
    splits_of,
    takes_fitting_batches,
)
from .settings import Settings

BATCH = 64  # images, at most
SIDE = 64  # pixels, at most
FEWEST_ITERATIONS = 20  # in an epoch of a recipe for photographs
IN_MEMORY = 500_000_000  # bytes of images that are cached: 3,300 squares of 224 pixels; a run then stays below 4 GB
SAMPLED_FILES = 200  # files whose size is looked at


@dataclass(frozen=True)
class OwnImages:
    """A folder or a table of images, and the settings that fit it."""

    name: str  # of the data set
    data: Settings  # the data set, its split and its cache
    small: Settings  # size and augmentation of images for a small network that trains from scratch
    description: list[str]  # two lines: the images, and their split
    training_images: int
    training_classes: int
    images_per_class: float  # median of the training classes
    tested_images: int
    splits_by_class: bool
    side: int  # pixels of a small network's images
    aspect: float  # median of the longer side over the shorter
    chosen_size: int | None  # pixels that ``data.image_size`` among the options says
    sampler: str  # that the options name; "" for the recipe's

    def batch_of(self, classes: int) -> tuple[int, int]:
        """Classes in a batch, at most 16, and images of each, if ``classes`` train."""
        return fitting_batch(classes, self.images_per_class, BATCH)

    def batches_of(self, classes: int) -> Settings:
        """The settings of :meth:`batch_of`."""
        in_batch, per_class = self.batch_of(classes)
        return {"sampler.m": per_class, "sampler.batch_size": in_batch * per_class}

    def iterations(self, share: float = 1.0) -> int:
        """Iterations of an epoch: a pass over a share of the training images, or more if they are few."""
        classes, per_class = self.batch_of(self.training_classes)
        return max(FEWEST_ITERATIONS, int(share * self.training_images) // (classes * per_class))

    def with_training_images(self, images: LabeledImages) -> Self:
        """The same with the numbers of other training images, such as the readable ones."""
        _, counts = np.unique(images.labels, return_counts=True)
        return replace(
            self,
            training_images=len(images),
            training_classes=len(counts),
            images_per_class=float(np.median(counts)),
        )

    def settings_of(self, recipe: str, framing: Framing | None = None) -> Settings:
        """The settings of ``recipe`` that fit the images.

        A ``framing`` replaces the recipe's crop of photographs. Images are cached if they fit into memory. Batches fit
        the images unless the options choose another sampler.
        """
        tables = read_tables(recipe)
        image_settings = dict(tables.get("data", {}).get("images", {}))
        batches: Settings = {}
        if takes_fitting_batches(tables.get("sampler", {}), self.sampler):
            batches = self.batches_of(self.training_classes)
        if "crop" not in image_settings:
            return self.data | self.small | batches
        if self.chosen_size is not None:
            image_settings["crop"] = self.chosen_size
            image_settings["resize"] = self.chosen_size
        settings = self.data | {f"data.images.{name}": value for name, value in image_settings.items()}
        if framing is not None:
            settings |= framing.settings
        side = settings.get("data.images.resize") or settings["data.images.crop"]
        aspect = 1.0 if settings.get(SQUASH) else self.aspect
        settings.pop("data.cache", None)
        if _fits_in_memory(self.training_images + self.tested_images, side, aspect):
            settings["data.cache"] = "memory"
        return settings | batches | {"sampler.iterations": self.iterations()}

    @property
    def last_line(self) -> str:
        """A line about the batches of a small network, and the options that change them."""
        classes, per_class = self.batch_of(self.training_classes)
        return (
            f"batches of {classes} classes x {per_class} images, {self.side} x {self.side} pixels; larger images: "
            f"--set data.image_size={2 * self.side}, longer training: --set schedule.epochs=20"
        )


def describe_images(place: Path, overrides: Iterable[Override] = (), root: Path | None = None) -> OwnImages:
    """Look at a folder of images, or a ``.csv`` or ``.parquet`` table of them.

    Follows the overrides of ``data``. DataError for too few images.
    """
    place = _existing(place)
    overrides = list(overrides)
    name = name_of(place)
    options = dataset_options(overrides)
    _check_columns(place, options)
    data: Settings = {"data.name": name, "data.unreadable": "skip"}

    split_is_chosen = "split" in options or _is_divided(place, options)
    if not split_is_chosen:
        split = fitting_split(place, parts_of(splits_of(name, options | {"split": "image"}, root)))
        options["split"] = split
        data["data.split"] = split
    splits = splits_of(name, options, root)
    data |= selection_on(splits)
    parts = parts_of(splits)
    images_per_class = items_per_class(parts)
    trained_per_class = items_per_class(parts[:1])
    image_sizes = _sample_of_sizes(parts)
    aspect = float(np.median([max(size) / min(size) for size in image_sizes]))
    chosen_size = options.get("image_size")
    side = int(chosen_size or _fitting_side(image_sizes))
    if _fits_in_memory(sum(len(part) for part in parts), side, aspect):
        data["data.cache"] = "memory"
    small: Settings = {
        "data.image_size": side,
        "data.images.resize": round(side * 8 / 7),
        "data.images.random_crop": True,
        "data.images.flip": True,
    }
    description = [
        f"{place}: {len(images_per_class)} classes of {range_of(images_per_class)} images, {_size_range(image_sizes)}",
        describe_split(parts, split_is_chosen),
    ]
    return OwnImages(
        name=name,
        data=data,
        small=small,
        description=description,
        training_images=len(parts[0]),
        training_classes=len(trained_per_class),
        images_per_class=float(np.median(trained_per_class)),
        tested_images=sum(len(part) for part in parts[1:]),
        splits_by_class=not shares_classes(parts),
        side=side,
        aspect=aspect,
        chosen_size=None if chosen_size is None else int(chosen_size),
        sampler=sampler_of(overrides),
    )


def _existing(place: Path) -> Path:
    kind, _, path = str(place).partition(":")
    if kind in ("folder", "table") and not os.path.exists(place):
        place = Path(path)
    wanted = "wanted a folder of images, a .csv or .parquet table of them, or a file of vectors"
    if not os.path.exists(place):
        raise DataError(f"{place}: no such folder or file; {wanted}")
    if os.path.isfile(place) and not is_table(place):
        raise DataError(f"{place}: one file; {wanted}: pml-ext fit {shlex.quote(str(place.parent))}")
    return place


def is_table(place: Path) -> bool:
    """Whether a path is a table of images: a CSV file, or a Parquet file without embeddings."""
    if place.suffix.lower() == ".parquet" and place.is_file():
        return "embeddings" not in columns_of_parquet(place)
    return place.suffix.lower() == ".csv"


def name_of(place: Path) -> str:
    """The data set's name, ``folder:PATH`` or ``table:PATH``."""
    return f"{'table' if is_table(place) else 'folder'}:{place}"


def _check_columns(place: Path, options: Mapping[str, Any]) -> None:
    if place.suffix.lower() != ".parquet" or "columns" in options:
        return
    found = columns_of_parquet(place)
    if "path" not in found:
        raise DataError(
            f"{place}: found the columns {first_of(found, 8)}; wanted embeddings and labels, of vectors, or path and "
            "label, of images (of other names: --set data.columns.path=NAME --set data.columns.label=NAME)"
        )


def _is_divided(place: Path, options: Mapping[str, Any]) -> bool:
    if is_table(place):
        return has_split(place, options.get("columns", {}))
    return all((place / part).is_dir() for part in ("train", "test"))


def _sample_of_sizes(parts: list[LabeledImages]) -> list[tuple[int, int]]:
    """Width and height of a sample of the files; DataError if none can be read."""
    files = list(itertools.chain.from_iterable(part.paths or [] for part in parts))
    step = max(1, len(files) // SAMPLED_FILES)

    sizes = []
    for file in files[::step]:
        with contextlib.suppress(DataError), open_image(file) as image:
            sizes.append(shown_size(image))
    if not sizes:
        raise DataError(f"none of {len(files)} files can be read, {files[0]} first; wanted .jpg, .png, ... files")
    return sizes


def _fits_in_memory(images: int, side: int, aspect: float) -> bool:
    return images * 3 * side * side * aspect <= IN_MEMORY


def _fitting_side(sizes: list[tuple[int, int]]) -> int:
    """A multiple of 16 pixels, from 16 to 64, that half of the images reach."""
    shorter = int(np.median([min(size) for size in sizes]))
    return max(16, min(SIDE, shorter // 16 * 16))


def _size_range(sizes: list[tuple[int, int]]) -> str:
    smallest = "{} x {}".format(*min(sizes, key=np.prod))
    largest = "{} x {}".format(*max(sizes, key=np.prod))
    return smallest if smallest == largest else f"{smallest} to {largest} pixels"
