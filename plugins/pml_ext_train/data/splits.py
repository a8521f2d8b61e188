"""The splits of a data set, by class or by image."""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pml_ext.errors import ConfigError, DataError

from .images import LabeledImages


@dataclasses.dataclass(frozen=True)
class DataSplits:
    """The splits of a data set.

    Each image of ``test`` is a query among all others; ``query`` is searched in ``gallery``. Vectors have neither
    ``image_size`` nor ``channels``. Unlabeled data have only ``train``, and nothing is tested.
    """

    train: LabeledImages
    test: LabeledImages | None = None
    _: dataclasses.KW_ONLY
    image_size: int = 0  # height and width of the network's input, in pixels
    channels: int = 0  # 1 (gray) or 3 (color)
    crop: bool = False  # whether to resize the shorter side and crop a square, rather than resize to a square
    query: LabeledImages | None = None
    gallery: LabeledImages | None = None
    validation: LabeledImages | None = None  # chooses the epoch with evaluation.select_on = "split"
    parents: Mapping[str, Sequence[str]] | None = None  # parents of each class and each ancestor, by name
    note: str = ""  # a warning about the data, shown by runs
    labeled: bool = True  # whether labels are meaningful

    def __post_init__(self) -> None:
        for name, part in self._parts().items():
            _check_part(name, part)
        if self.vector_size is None:
            self._check_images()
        else:
            self._check_vectors()
        for name, part in self.tested().items():
            if (part.tuples is None) != (self.train.tuples is None):
                raise DataError(f"DataSplits: train and {name} must both have listed tuples, or both labels")
        if not self.labeled:
            if len(self._parts()) > 1:
                raise DataError("DataSplits: images without labels cannot be tested; leave out all but train")
            return
        if list(self.tested()) not in (["test"], ["query", "gallery"]):
            have = " and ".join(self.tested()) or "neither"
            raise DataError(f"DataSplits: needs test, or query and gallery; found {have}")

    def _check_images(self) -> None:
        if self.image_size < 1:
            raise DataError(f"image_size must be 1 or more pixels, not {self.image_size!r}")
        if self.channels not in (1, 3):
            raise DataError(f"DataSplits: channels must be 1 (gray) or 3 (color), not {self.channels!r}")
        for name, part in self._parts().items():
            images = part.images
            if not isinstance(images, Tensor):
                continue
            if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != self.channels:
                raise ValueError(
                    f"DataSplits: images of {name} are {images.dtype} of shape {list(images.shape)}; they must be "
                    f"uint8 [N, {self.channels}, H, W]"
                )

    def _check_vectors(self) -> None:
        if self.image_size or self.channels:
            raise DataError("DataSplits: vectors have neither image_size nor channels; leave them out")
        for name, part in self.tested().items():
            if part.vector_size != self.vector_size:
                raise DataError(
                    f"DataSplits: vectors of train have size {self.vector_size}, but those in {name} {part.vector_size}"
                )

    @property
    def vector_size(self) -> int | None:
        """Length of the vectors; None for images."""
        return self.train.vector_size

    def _parts(self) -> dict[str, LabeledImages]:
        """All splits by name."""
        parts = {"train": self.train, **self.tested()}
        if self.validation is not None:
            parts["validation"] = self.validation
        return parts

    def tested(self) -> dict[str, LabeledImages]:
        """The tested splits by name: ``test``, or ``query`` and ``gallery``."""
        parts = {"test": self.test, "query": self.query, "gallery": self.gallery}
        return {name: part for name, part in parts.items() if part is not None}


def _check_part(name: str, part: Any) -> None:
    if not isinstance(part, LabeledImages):
        raise TypeError(f"DataSplits: {name} is {type(part).__name__}, not pml_ext.plugin.LabeledImages")
    if not len(part):
        raise ValueError(f"DataSplits: {name} has no image")
    least = int(part.labels.min())
    most = int(part.labels.max())
    if part.tuples is None and (least < 0 or most >= len(part.class_names)):
        raise ValueError(
            f"DataSplits: labels of {name} are {least} to {most}, but there are {len(part.class_names)} class_names; "
            "labels are indices into them"
        )


def hold_out_classes(
    images: LabeledImages,
    fraction: float,
    seed: int = 0,
    which: Literal["drawn", "last"] = "drawn",
    fold: int | None = None,
) -> tuple[LabeledImages, LabeledImages]:
    """Hold out a ``fraction`` of the classes; return the rest, and the held-out images.

    Held-out classes are drawn by ``seed``, or are the last by label. With ``fold``, from 1, they are one of
    ``1 / fraction`` random parts of the classes, which do not depend on the seed.
    """
    classes = np.unique(images.labels)
    if len(classes) < 2:
        raise DataError(f"found {len(classes)} class; splitting by class needs two or more")
    count = min(max(1, round(len(classes) * fraction)), len(classes) - 1)
    if fold is not None:
        parts = round(1 / fraction)
        if parts > len(classes):
            raise DataError(f"found {len(classes)} classes; {parts} folds need as many classes")
        chosen = np.random.default_rng(0).permutation(classes)[fold - 1 :: parts]
    elif which == "last":
        chosen = classes[-count:]
    else:
        chosen = np.random.default_rng(seed).permutation(classes)[:count]
    second = np.isin(images.labels, chosen)
    return images.subset(~second), images.subset(second)


def split_by_image(images: LabeledImages, fraction: float, seed: int) -> tuple[LabeledImages, LabeledImages]:
    """Split the images of each class at random; the second part has a ``fraction`` of them."""
    generator = np.random.default_rng(seed)
    second = np.zeros(len(images), dtype=bool)
    for label in np.unique(images.labels):
        members = generator.permutation(np.flatnonzero(images.labels == label))
        count = round(len(members) * fraction)
        second[members[:count]] = True
    return images.subset(~second), images.subset(second)


def divide(
    place: str | Path,
    images: LabeledImages,
    split: Literal["class", "image"] | None,
    train_fraction: float | None,
    seed: int | None,
) -> tuple[LabeledImages, LabeledImages]:
    """Split by class or by image into training and test images.

    None stands for a default. ConfigError for a fraction outside its range; DataError, with ``place``, for parts that
    are too small.
    """
    fraction = 0.5 if train_fraction is None else train_fraction
    if not 0 < fraction < 1:
        raise ConfigError(f"train_fraction must be above 0 and below 1, not {fraction}")
    noun = "images" if images.vector_size is None else "vectors"
    if split == "image":
        train, test = split_by_image(images, 1 - fraction, seed or 0)
        advice = ""
    else:
        train, test = hold_out_classes(images, 1 - fraction, seed or 0)
        advice = f"; --set data.split=image divides the {noun} of each class"
    check_trainable(place, train, test, advice)
    return train, test


def check_trainable(place: str | Path, train: LabeledImages, test: LabeledImages, advice: str = "") -> None:
    """Raise DataError unless both parts have two images, and training images two classes."""
    what = "images" if train.vector_size is None else "vectors"
    for part, images in (("train", train), ("test", test)):
        if len(images) < 2:
            raise DataError(f"{len(images)} {what} to {part} with; each class needs two or more", source=str(place))
    if len(set(train.labels.tolist())) < 2:
        raise DataError(f"one class to train with; training needs two or more{advice}", source=str(place))


def classes_of_two(labels: NDArray[np.int64]) -> int:
    """Number of classes with two or more images."""
    _, counts = np.unique(labels, return_counts=True)
    return int((counts > 1).sum())


def check_galleries(place: str | Path, queries: LabeledImages, gallery: LabeledImages) -> None:
    """Raise DataError for a query whose gallery consists of its own group."""
    if queries.groups is None or gallery.groups is None:
        return
    sizes = Counter(gallery.groups.tolist())
    for number, group in enumerate(queries.groups.tolist()):
        if group and sizes[group] == len(gallery):
            name = f"the vector {queries.ids[number]}" if queries.paths is None else queries.paths[number]
            raise DataError(
                f"{place}: {name} has no gallery, because all {len(gallery)} entries belong to its own group, "
                f"{group!r}; add others (in a table: sequence or camera)"
            )
