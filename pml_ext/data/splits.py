"""Labeled images, and the splits of a data set."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset

from ..errors import ConfigError, DataError
from ..pairwise import ListedTuples, sample_tuples
from .reading import Box, read_image
from .transforms import Steps

Transform = Callable[[Tensor], Tensor]


class PackedImages(NamedTuple):
    """Images of different sizes in one tensor, which worker processes share by one file descriptor."""

    pixels: Tensor  # uint8, all images one after the other, channels last
    starts: Any  # of each image in ``pixels``, [N]
    shapes: Any  # height, width and channels of each image, [N, 3]

    @classmethod
    def of(cls, images: list[Tensor]) -> PackedImages:
        """Pack images ``[C, H, W]``, and empty the list to spare memory."""
        shapes = np.array([image.permute(1, 2, 0).shape for image in images], dtype=np.int64).reshape(-1, 3)
        sizes = shapes.prod(axis=1)
        ends = sizes.cumsum()
        pixels = torch.empty(int(ends[-1]), dtype=torch.uint8)
        packed = cls(pixels, ends - sizes, shapes)
        while images:
            last = images.pop()
            packed.image(len(images)).copy_(last)
        return packed

    def image(self, index: int) -> Tensor:
        """Return an image, ``[C, H, W]``, a view."""
        shape = self.shapes[index]
        start = self.starts[index]
        return self.pixels[start : start + shape.prod()].view(*shape.tolist()).permute(2, 0, 1)

    def subset(self, indices: Any) -> PackedImages:
        """Return some of the images, which share their pixels with these."""
        return self._replace(starts=self.starts[indices], shapes=self.shapes[indices])


class ResizedCache(NamedTuple):
    """Cached results of a transform's first step, with the step's name."""

    images: PackedImages
    first: str


@dataclasses.dataclass(eq=False, repr=False)
class LabeledImages(Dataset[tuple[Tensor, int]]):
    """Images, or vectors in place of images, with integer labels; an item is ``(image, label)``."""

    images: Tensor | Sequence[Path]  # uint8 [N, C, H, W], or image files, read on access; of vectors float32 [N, D]
    labels: Any  # indices into class_names, [N]
    class_names: Sequence[str]  # of all classes of the data set, over all splits
    transform: Transform | None = None  # applied to a uint8 image [C, H, W]
    channels: int = 3  # of images read from files: 1 (gray) or 3 (color)
    boxes: Any = None  # crop box of each file, [N, 4], columns as in Box; None for whole files
    groups: Any = None  # group of each image, texts, [N], "" for none; a query's own group is not in its gallery
    cache: ResizedCache | None = None  # read instead of the files if the transform has the same first step
    ids: Any = None  # of vectors: their names, texts, [N]; by default the numbers of their rows
    tuples: ListedTuples | None = None  # listed pairs or triplets of the images, in place of labels, which are then 0

    def __post_init__(self) -> None:
        self.labels = _as_labels(self.labels)
        if isinstance(self.images, np.ndarray) and self.images.dtype.kind in "uif":
            raise TypeError("images must be a tensor, or paths of files, not a NumPy array; type torch.from_numpy(...)")
        self.class_names = list(self.class_names)
        if self.boxes is not None:
            self.boxes = np.asarray(self.boxes, dtype=np.float64)
        if self.groups is not None:
            self.groups = np.asarray(self.groups, dtype=str)
            if len(self.groups) != len(self.labels):
                raise ValueError(f"{len(self.labels)} images, but {len(self.groups)} groups")
        if self.vector_size is not None:
            if self.ids is None:
                self.ids = np.arange(len(self.labels))
            self.ids = np.asarray(self.ids).astype(str)
            if len(self.ids) != len(self.labels):
                raise ValueError(f"{len(self.labels)} vectors, but {len(self.ids)} ids")
        if len(self.images) != len(self.labels):
            raise ValueError(f"{len(self.images)} images, but {len(self.labels)} labels")
        if self.tuples is not None and len(self.tuples) and int(self.tuples.rows.max()) >= len(self.labels):
            raise ValueError(f"{len(self.labels)} images, but tuples of the row {int(self.tuples.rows.max())}")

    @property
    def paths(self) -> list[Path] | None:
        """Paths of the image files; None for images in memory."""
        if isinstance(self.images, Tensor):
            return None
        return list(self.images)

    @property
    def vectors(self) -> Tensor:
        """The vectors, ``[N, D]``, where there are no images."""
        assert isinstance(self.images, Tensor)
        assert self.images.ndim == 2
        return self.images

    @property
    def vector_size(self) -> int | None:
        """The length of the vectors; None for images."""
        if isinstance(self.images, Tensor) and self.images.ndim == 2:
            return self.images.shape[1]
        return None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if self.cache is not None and self.cache.first == getattr(self.transform, "first_name", None):
            image = self.cache.images.image(index)
        else:
            image = self.image(index, getattr(self.transform, "smallest", None))
        if self.transform is not None:
            image = self.transform(image)
        return image, int(self.labels[index])

    def image(self, index: int, smallest: int | None = None) -> Tensor:
        """Return an image before the transform, uint8 ``[C, H, W]``; see :func:`read_image`."""
        if isinstance(self.images, Tensor):
            return self.images[index]
        if self.boxes is None:
            box = None
        else:
            box = Box(*self.boxes[index])
        return read_image(self.images[index], self.channels, box, smallest)

    def replace(self, **changes: Any) -> LabeledImages:
        """Return the same images with other arguments, such as ``labels`` or ``transform``."""
        return dataclasses.replace(self, **changes)

    def with_transform(self, transform: Transform | None) -> LabeledImages:
        """Return the same images with another transform."""
        return self.replace(transform=transform)

    def for_workers(self) -> tuple[LabeledImages, Transform]:
        """Return images with the steps for workers, uint8 output if possible, and the steps on a batch."""
        if not isinstance(self.transform, Steps):
            return self, nn.Identity()
        steps_of_workers, steps_of_batch = self.transform.divided()
        return self.with_transform(steps_of_workers), steps_of_batch

    def subset(self, indices: Any) -> LabeledImages:
        """Return some of the images, by index or boolean mask, and the listed tuples whose images are all there."""
        chosen = np.arange(len(self))[np.asarray(indices)]
        if isinstance(self.images, Tensor):
            images: Tensor | list[Path] = self.images[chosen]
        else:
            images = [self.images[index] for index in chosen]
        boxes = None
        if self.boxes is not None:
            boxes = self.boxes[chosen]
        groups = None
        if self.groups is not None:
            groups = self.groups[chosen]
        ids = None
        if self.ids is not None:
            ids = self.ids[chosen]
        cache = None
        if self.cache is not None:
            cache = self.cache._replace(images=self.cache.images.subset(chosen))
        tuples = None
        if self.tuples is not None:
            tuples = self.tuples.among(chosen, len(self))
        return self.replace(
            images=images,
            labels=self.labels[chosen],
            boxes=boxes,
            groups=groups,
            ids=ids,
            cache=cache,
            tuples=tuples,
        )

    def sample_of_tuples(self, images: int, seed: int) -> LabeledImages:
        """Return a random sample of the listed pairs or triplets, which have at most so many images, and their images.

        Two pairs, or a triplet, remain in any case.
        """
        assert self.tuples is not None
        sample = sample_tuples(self.tuples, images // self.tuples.rows.shape[1], seed)
        used = torch.unique(sample.rows).numpy()
        return self.subset(used).replace(tuples=sample.among(used, len(self)))


def _as_labels(labels: Any) -> NDArray[np.int64]:
    """Return labels as integers, ``[N]``; ValueError for others, such as rows of a one-hot matrix or NaN."""
    given = np.asarray(labels)
    if given.ndim != 1:
        raise ValueError(f"labels must have one dimension, [N], not the shape {list(given.shape)}")
    if given.dtype.kind == "f" and not (given == np.floor(given)).all():
        wrong = given[given != np.floor(given)][0]
        raise ValueError(f"labels must be integers, indices into class_names; found {wrong}")
    return given.astype(np.int64, copy=False)


@dataclasses.dataclass(frozen=True)
class DataSplits:
    """The splits of a data set, returned by its factory.

    Each image of ``test`` is a query among all others; each image of ``query`` is searched in ``gallery``. Vectors have
    neither ``image_size`` nor ``channels``.
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

    def __post_init__(self) -> None:
        for name, part in self._parts().items():
            _check_part(name, part)
        if self.vector_size is None:
            self._check_images()
        else:
            self._check_vectors()
        for name, part in self.tested().items():
            if (part.tuples is None) != (self.train.tuples is None):
                raise DataError(f"DataSplits: train and {name} must both have listed tuples, or labels")
        if list(self.tested()) not in (["test"], ["query", "gallery"]):
            have = " and ".join(self.tested()) or "none of these"
            raise DataError(f"DataSplits: wanted test, or query and gallery, not {have}")

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
                found = f"{images.dtype} of shape {list(images.shape)}"
                raise ValueError(f"DataSplits: images of {name} are {found}; wanted uint8 [N, {self.channels}, H, W]")

    def _check_vectors(self) -> None:
        if self.image_size or self.channels:
            raise DataError("DataSplits: vectors have no image_size and no channels; leave them out")
        for name, part in self.tested().items():
            if part.vector_size != self.vector_size:
                raise DataError(
                    f"DataSplits: vectors of size {self.vector_size} to train, and of {part.vector_size} in {name}"
                )

    @property
    def vector_size(self) -> int | None:
        """The length of the vectors; None for images."""
        return self.train.vector_size

    def _parts(self) -> dict[str, LabeledImages]:
        """Return all splits by name."""
        parts = {"train": self.train, **self.tested()}
        if self.validation is not None:
            parts["validation"] = self.validation
        return parts

    def tested(self) -> dict[str, LabeledImages]:
        """Return the tested splits by name: ``test``, or ``query`` and ``gallery``."""
        parts = {"test": self.test, "query": self.query, "gallery": self.gallery}
        return {name: part for name, part in parts.items() if part is not None}


def _check_part(name: str, part: Any) -> None:
    """Raise ValueError or TypeError unless a split has images whose labels are indices into its names of classes."""
    if not isinstance(part, LabeledImages):
        raise TypeError(f"DataSplits: {name} is {type(part).__name__}; wanted pml_ext.plugin.LabeledImages")
    if not len(part):
        raise ValueError(f"DataSplits: {name} has no image")
    least = int(part.labels.min())
    most = int(part.labels.max())
    if part.tuples is None and (least < 0 or most >= len(part.class_names)):
        text = f"labels of {name} are {least} to {most}, but there are {len(part.class_names)} class_names"
        raise ValueError(f"DataSplits: {text}; labels are indices into them")


def hold_out_classes(
    images: LabeledImages,
    fraction: float,
    seed: int = 0,
    which: Literal["drawn", "last"] = "drawn",
    fold: int | None = None,
) -> tuple[LabeledImages, LabeledImages]:
    """Split images by class: return the rest, and the images of a held-out ``fraction`` of the classes.

    The held-out classes are drawn at random by ``seed``, or are the last by label. With a ``fold``, from 1, they are
    one of ``1 / fraction`` random parts of the classes, the same parts for every seed.
    """
    classes = np.unique(images.labels)
    if len(classes) < 2:
        raise DataError(f"found {len(classes)} class; dividing by class needs two or more")
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
    """Split the images of every class at random into two parts, the second with a ``fraction`` of them."""
    generator = np.random.default_rng(seed)
    second = np.zeros(len(images), dtype=bool)
    for label in np.unique(images.labels):
        members = generator.permutation(np.flatnonzero(images.labels == label))
        count = round(len(members) * fraction)
        second[members[:count]] = True
    return images.subset(~second), images.subset(second)


def divide(
    images: LabeledImages, split: Literal["class", "image"], train_fraction: float, seed: int
) -> tuple[LabeledImages, LabeledImages]:
    """Split by class or by image into a part to train with, of this fraction, and one to test with."""
    if split == "class":
        return hold_out_classes(images, 1 - train_fraction, seed)
    return split_by_image(images, 1 - train_fraction, seed)


def check_trainable(place: Path, train: LabeledImages, test: LabeledImages, advice: str = "") -> None:
    """Raise DataError, with the advice, unless there are two images to train and to test, of two training classes."""
    what = "images" if train.vector_size is None else "vectors"
    for part, images in (("train", train), ("test", test)):
        if len(images) < 2:
            raise DataError(f"{place}: {len(images)} {what} to {part} with; wanted two or more per class")
    if len(set(train.labels.tolist())) < 2:
        raise DataError(f"{place}: one class to train with; wanted two or more{advice}")


def first_without_gallery(groups: Sequence[str], searched: Sequence[str]) -> int | None:
    """Return the first query whose own group is all of its gallery, from the groups of both; None for no query."""
    sizes = Counter(searched)
    total = sizes.total()
    for place, group in enumerate(groups):
        if group and sizes[group] == total:
            return place
    return None


def prepare(
    images: LabeledImages,
    steps: Steps,
    cache: Literal["none", "memory"] = "none",
    skip_unreadable: bool = False,
    workers: int = 0,
    tell: Callable[[str], None] = lambda text: None,
) -> tuple[LabeledImages, dict[str, str]]:
    """Return a split, cached or without unreadable files if requested, and ``{path: reason}`` of the files left out.

    The cache holds results of the first of ``steps``. To cache or to skip files, ``workers`` threads (0 for one per
    processor, up to 8) read every file once, after a message to ``tell``. Raises ConfigError if nothing can be cached,
    and DataError for an unreadable file, or with ``skip_unreadable`` if no file can be read.
    """
    in_memory = isinstance(images.images, Tensor)
    keep = cache == "memory"
    if in_memory and keep:
        raise ConfigError(f"data.cache: found {cache!r}, but the images of this data set are in memory; leave it out")
    if in_memory or not (keep or skip_unreadable):
        return images, {}
    if steps.first is None and keep:
        raise ConfigError(
            "data.cache: training images are cut from the photographs as they are, which leaves nothing to keep; "
            "data.images.resize resizes them before"
        )

    first_step = steps.first if keep else None
    into_memory = ", into memory" if keep else ""
    tell(f"reading {len(images):,} images{into_memory}")
    results = _read_all(images, steps.smallest, first_step, skip_unreadable, workers)

    unreadable = {}
    for index, result in enumerate(results):
        if isinstance(result, str):
            unreadable[index] = result
    if len(unreadable) == len(images):
        raise DataError(f"none of {len(images)} images can be read; the first: {unreadable[0]}")
    readable = images.subset(np.setdiff1d(np.arange(len(images)), list(unreadable)))
    if keep:
        kept = [result for result in results if isinstance(result, Tensor)]
        del results
        readable = readable.replace(cache=ResizedCache(PackedImages.of(kept), steps.first_name))
    reasons = {}
    for index, reason in unreadable.items():
        reasons[str(images.images[index])] = reason
    return readable, reasons


def _read_all(
    images: LabeledImages, smallest: int, first_step: nn.Module | None, skip_unreadable: bool, workers: int
) -> list[Tensor | str]:
    """Return each image after the first step, an empty tensor without one, or the reason why it cannot be read."""

    def read(index: int) -> Tensor | str:
        try:
            image = images.image(index, smallest)
        except DataError as error:
            if not skip_unreadable:
                raise
            return str(error)
        if first_step is None:
            return torch.empty(0)
        return first_step(image)  # type: ignore[no-any-return]

    with ThreadPoolExecutor(workers or min(os.cpu_count() or 1, 8)) as pool:
        return list(pool.map(read, range(len(images))))
