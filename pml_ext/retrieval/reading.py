"""Image files of a folder as batches, read by data-loader workers; and what users pass for an image, as a tensor."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from ..data import Steps, image_tensor, read_image
from ..errors import ConfigError, DataError
from ..experiment.workers import Watched, begin

MOST_WORKERS, FEW = 8, 256
Item = tuple[Tensor | None, int, str]
Batch = tuple[Tensor | None, list[int], dict[int, str]]


class FileImages(Dataset[Item]):
    """Files of a folder; an item is the transformed image, its number, and why there is none.

    Args:
        paths: of the files.
        channels: what they are read as.
        steps: what is done to each.
    """

    def __init__(self, paths: Sequence[Path], channels: int, steps: Steps) -> None:
        self.paths, self._channels, self._steps = paths, channels, steps

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Item:
        try:
            image = read_image(self.paths[index], self._channels, smallest=self._steps.smallest)
        except DataError as error:
            return None, index, str(error)
        return self._steps(image), index, ""


def default_workers(images: int) -> int:
    """How many processes read so many files, where nobody says: none for fewer than 256.

    Else as many as this process may use processors, up to 8; none where processes cannot be forked (Windows, macOS),
    since there a script without ``if __name__ == "__main__"`` would start itself anew.

    Args:
        images: to be read.
    """
    if images < FEW or multiprocessing.get_all_start_methods()[0] == "spawn":
        return 0
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(max(1, processors // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))), MOST_WORKERS)


def check_workers(workers: int | None) -> None:
    """Refuses a number of workers that there cannot be.

    Raises:
        ConfigError: below 0.
    """
    if workers is not None and workers < 0:
        raise ConfigError(f"--workers {workers}: wanted 0 or more")


def read_batches(
    paths: Sequence[Path], channels: int, steps: Steps, batch_size: int, workers: int, device: torch.device
) -> Iterator[Batch]:
    """Image files as a network gets them, in order.

    Args:
        paths: of the files.
        channels: what they are read as.
        steps: what is done to them; the last ones on the device.
        batch_size: files at a time.
        workers: processes that read; 0 for this one.
        device: where batches are wanted.

    Yields:
        Images ``[B, C, S, S]``, or None if no file of the batch can be read; the number of each; and why others cannot.

    Raises:
        DataError: a worker died; the text has the image that it had.
    """
    early, last = steps.divided()
    pinned = device.type in ("cuda", "xpu")
    watched = Watched(FileImages(paths, channels, early), workers)  # type: ignore[arg-type]
    loader: DataLoader[Any] = DataLoader(
        watched,
        batch_size,
        num_workers=workers,
        pin_memory=pinned,
        generator=torch.Generator(),
        worker_init_fn=begin,
        collate_fn=_joined,
    )
    for images, numbers, unreadable in watched.batches(loader):
        yield images if images is None else last(images.to(device, non_blocking=pinned)), numbers, unreadable


def _joined(items: Sequence[Item]) -> Batch:
    images = [image for image, _, _ in items if image is not None]
    return (
        default_collate(images) if images else None,
        [number for image, number, _ in items if image is not None],
        {number: why for image, number, why in items if image is None},
    )


def several(images: Any) -> Any:
    """What a user passes for images as something to iterate over, once; a single image becomes a list of one.

    Args:
        images: a path, a PIL image, an array, a tensor; or several of them in a list, an array, a tensor, a generator.

    Raises:
        TypeError: anything else.
    """
    if isinstance(images, (str, Path)) or _is_pil(images):
        return [images]
    if isinstance(images, Tensor):
        return [images] if images.ndim < 4 else images
    if isinstance(images, np.ndarray) and images.dtype != object:
        if images.ndim == 3 and images.shape[2] not in (1, 3, 4):
            raise TypeError(
                f"an array of the shape {list(images.shape)} is no image [H, W] or [H, W, 3]; pass several "
                "as a list, or as [N, H, W, 3]"
            )
        return [images] if images.ndim < 4 else images
    if isinstance(images, (bytes, dict)) or not hasattr(images, "__iter__"):
        raise TypeError(f"wanted images, or a folder, not {_described(images)}; {_WANTED}")
    return images


_WANTED = (
    "an image is a path, a PIL image, a uint8 array [H, W, 3] or [H, W], or a uint8 tensor [C, H, W], C being 1 or 3"
)


def as_tensor(image: Any, channels: int, smallest: int | None) -> Tensor:
    """What a user passes for an image as uint8 ``[C, H, W]``.

    Args:
        image: a path, a PIL image, an array or a tensor.
        channels: C that is wanted; files, PIL images and arrays are converted.
        smallest: as of :func:`read_image`.

    Raises:
        DataError: a file that cannot be read.
        TypeError: something else, or an array or tensor of another type or shape.
    """
    if isinstance(image, (str, os.PathLike)):
        path = Path(image)
        if not path.is_file():
            raise DataError(f"{path}: {'a folder; wanted an image file' if path.is_dir() else 'no such file'}")
        return read_image(path, channels, smallest=smallest)
    if isinstance(image, Tensor):
        if image.dtype != torch.uint8 or image.ndim != 3 or image.shape[0] not in (1, 3) or 0 in image.shape:
            raise TypeError(f"{_WANTED}; not {_described(image)}")
        if image.shape[0] != channels:
            raise TypeError(
                f"a tensor of {image.shape[0]} channels; the run's images have {channels}; files, PIL "
                "images and arrays are converted"
            )
        return image
    if isinstance(image, np.ndarray):
        gray = image.ndim == 2 or (image.ndim == 3 and image.shape[2] == 1)
        if image.dtype != np.uint8 or not (gray or (image.ndim == 3 and image.shape[2] in (3, 4))) or 0 in image.shape:
            raise TypeError(f"{_WANTED}; not {_described(image)}")
        from PIL import Image

        image = Image.fromarray(np.ascontiguousarray(image.reshape(image.shape[:2]) if gray else image))
    if _is_pil(image):
        try:
            return image_tensor(image, channels)
        except (OSError, SyntaxError, ValueError) as error:  # it is decoded now
            raise DataError(f"a PIL image cannot be read ({error})") from None
    raise TypeError(f"{_WANTED}; not {_described(image)}")


def _is_pil(image: Any) -> bool:
    from PIL import Image

    return isinstance(image, Image.Image)


def _described(value: Any) -> str:
    if isinstance(value, (Tensor, np.ndarray)):
        kind = "a tensor" if isinstance(value, Tensor) else "an array"
        return f"{kind} of {str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return f"{type(value).__name__} {value!r}"[:100]
