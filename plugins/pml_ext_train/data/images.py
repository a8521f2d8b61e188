"""Labeled images, or vectors in their place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset

from pml_ext.pairwise import ListedTuples, sample_tuples

from .reading import Box, read_image
from .transforms import Steps

Transform = Callable[[Tensor], Tensor]


class PackedImages(NamedTuple):
    """Images of different sizes in one tensor, which worker processes share."""

    pixels: Tensor  # uint8, all images one after the other, channels last
    starts: Any  # index of each image's first pixel, [N]
    shapes: Any  # height, width and channels of each image, [N, 3]

    @classmethod
    def of(cls, images: list[Tensor]) -> PackedImages:
        """Pack images ``[C, H, W]``, emptying the list to save memory."""
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
        """One image ``[C, H, W]``, a view."""
        shape = self.shapes[index]
        start = self.starts[index]
        return self.pixels[start : start + shape.prod()].view(*shape.tolist()).permute(2, 0, 1)

    def subset(self, indices: Any) -> PackedImages:
        """Some of the images; pixels are shared."""
        return self._replace(starts=self.starts[indices], shapes=self.shapes[indices])


class ResizedCache(NamedTuple):
    """Results of a transform's first step, and the step's name."""

    images: PackedImages
    first: str


@dataclasses.dataclass(eq=False, repr=False)
class LabeledImages(Dataset[tuple[Tensor, int]]):
    """Images or vectors with integer labels; an item is ``(image, label)``."""

    images: Tensor | Sequence[Path]  # uint8 [N, C, H, W], or image files, read on access; of vectors float32 [N, D]
    labels: Any  # indices into class_names, [N]
    class_names: Sequence[str]  # of all splits
    transform: Transform | None = None  # applied to a uint8 image [C, H, W]
    channels: int = 3  # of images read from files: 1 (gray) or 3 (color)
    boxes: Any = None  # crop box of each file, [N, 4], columns as in Box; None for whole files
    groups: Any = None  # texts, [N], "" for none; a query's own group is left out of its gallery
    cache: ResizedCache | None = None  # read instead of the files if the transform has the same first step
    ids: Any = None  # names of vectors, texts, [N]; by default row numbers
    tuples: ListedTuples | None = None  # listed pairs or triplets in place of labels, which are then 0

    def __post_init__(self) -> None:
        self.labels = _as_labels(self.labels)
        if isinstance(self.images, np.ndarray) and self.images.dtype.kind in "uif":
            raise TypeError(
                "images must be a tensor or file paths, not a NumPy array; convert it with torch.from_numpy(...)"
            )
        self.class_names = list(self.class_names)
        if self.boxes is not None:
            self.boxes = np.asarray(self.boxes, dtype=np.float64)
        if self.groups is not None:
            self.groups = np.asarray(self.groups, dtype=str)
        if self.vector_size is not None:
            ids = np.arange(len(self.images)) if self.ids is None else self.ids
            self.ids = np.asarray(ids).astype(str)
        for name, values in (("labels", self.labels), ("groups", self.groups), ("ids", self.ids)):
            if values is not None and len(values) != len(self.images):
                raise ValueError(f"{len(self.images)} images, but {len(values)} {name}")
        if self.tuples is not None and len(self.tuples) and int(self.tuples.rows.max()) >= len(self.labels):
            raise ValueError(f"{len(self.labels)} images, but tuples refer to row {int(self.tuples.rows.max())}")

    @property
    def paths(self) -> list[Path] | None:
        """Paths of the image files; None for images in memory."""
        return None if isinstance(self.images, Tensor) else list(self.images)

    @property
    def vectors(self) -> Tensor:
        """The vectors ``[N, D]``; AssertionError for images."""
        assert isinstance(self.images, Tensor)
        assert self.images.ndim == 2
        return self.images

    @property
    def vector_size(self) -> int | None:
        """Length of the vectors; None for images."""
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
        """An image before the transform, uint8 ``[C, H, W]``; see :func:`read_image`."""
        if isinstance(self.images, Tensor):
            return self.images[index]
        box = None if self.boxes is None else Box(*self.boxes[index])
        return read_image(self.images[index], self.channels, box, smallest)

    def replace(self, **changes: Any) -> LabeledImages:
        """A copy with changed fields, such as ``labels`` or ``transform``."""
        return dataclasses.replace(self, **changes)

    def with_transform(self, transform: Transform | None) -> LabeledImages:
        """A copy with another transform."""
        return self.replace(transform=transform)

    def divided(self) -> tuple[LabeledImages, Transform]:
        """Images with the steps on one image, uint8 if possible, and the steps on a batch."""
        if not isinstance(self.transform, Steps):
            return self, nn.Identity()
        on_one_image, on_batch = self.transform.divided()
        return self.with_transform(on_one_image), on_batch

    def subset(self, indices: Any) -> LabeledImages:
        """Some of the images, by index or mask, and the listed tuples among them."""
        chosen = np.arange(len(self))[np.asarray(indices)]
        if isinstance(self.images, Tensor):
            images: Tensor | list[Path] = self.images[chosen]
        else:
            images = [self.images[index] for index in chosen]
        columns = {"labels": self.labels, "boxes": self.boxes, "groups": self.groups, "ids": self.ids}
        selected = {name: column[chosen] for name, column in columns.items() if column is not None}
        cache = self.cache._replace(images=self.cache.images.subset(chosen)) if self.cache is not None else None
        tuples = self.tuples.among(chosen, len(self)) if self.tuples is not None else None
        return self.replace(images=images, cache=cache, tuples=tuples, **selected)

    def sample_of_tuples(self, images: int, seed: int) -> LabeledImages:
        """A random sample of listed tuples with at most so many images (at least one tuple)."""
        assert self.tuples is not None
        sample = sample_tuples(self.tuples, images // self.tuples.rows.shape[1], seed)
        used = torch.unique(sample.rows).numpy()
        return self.subset(used).replace(tuples=sample.among(used, len(self)))


def _as_labels(labels: Any) -> NDArray[np.int64]:
    """Labels as integers ``[N]``; ValueError for others, such as one-hot rows or NaN."""
    given = np.asarray(labels)
    if given.ndim != 1:
        raise ValueError(f"labels must have one dimension, [N], not the shape {list(given.shape)}")
    if given.dtype.kind == "f" and not (given == np.floor(given)).all():
        wrong = given[given != np.floor(given)][0]
        raise ValueError(f"labels must be integers (indices into class_names), not {wrong}")
    return given.astype(np.int64, copy=False)
