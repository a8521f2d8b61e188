"""Images of a folder, listed and read in batches; single images that a caller passes, as tensors."""

from __future__ import annotations

import dataclasses
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
from ..experiment.batches import Watched, begin
from .checks import check_images_folder

MOST_WORKERS, FEW = 8, 256
Facts = tuple[int, int]
"""Size in bytes, and time of the last modification in nanoseconds since 1970, of a file."""
Item = tuple[Tensor | None, int, str]
Batch = tuple[Tensor | None, list[int], dict[int, str]]


# Folders


@dataclasses.dataclass(frozen=True)
class Listing:
    """The visible files below a folder, in the order of their paths, folder by folder."""

    folder: Path
    names: list[str]
    facts: list[Facts]
    others: dict[str, str]


def list_folder(folder: Path) -> Listing:
    """List a folder without opening a file; hidden files, and hidden and linked folders, are left out."""
    check_images_folder(folder)
    from torchvision.datasets.folder import IMG_EXTENSIONS  # takes a second, which a query need not

    listing = Listing(folder, [], [], {})
    for name, about in _files(folder, "", listing.others):
        if name.lower().endswith(IMG_EXTENSIONS):
            listing.names.append(name)
            listing.facts.append((about.st_size, about.st_mtime_ns))
        else:
            listing.others[name] = f"{folder / name}: no image by its name"
    return listing


def _files(folder: Path, inside: str, others: dict[str, str]) -> Iterator[tuple[str, os.stat_result]]:
    try:
        entries = sorted(os.scandir(folder / inside), key=lambda entry: entry.name)
    except OSError as error:
        others[inside] = f"{folder / inside}: cannot be read ({error.strerror or error})"
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        name = f"{inside}/{entry.name}" if inside else entry.name
        if entry.is_dir(follow_symlinks=False):
            yield from _files(folder, name, others)
            continue
        try:
            if entry.is_file():
                yield name, entry.stat()
            elif entry.is_symlink():
                to = "a folder, which is not followed" if entry.is_dir() else "what is not there"
                others[name] = f"{folder / name}: a link to {to}"
        except OSError:  # gone meanwhile
            continue


class FileImages(Dataset[Item]):
    """Transformed images of files, each with its number and why it could not be read."""

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
    """Return how many processes read so many files by default.

    None for fewer than 256, and where processes cannot be forked (Windows, macOS), since a script without
    ``if __name__ == "__main__"`` would start itself anew there; else one per processor, up to 8.
    """
    if images < FEW or multiprocessing.get_all_start_methods()[0] == "spawn":
        return 0
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(max(1, processors // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))), MOST_WORKERS)


def check_workers(workers: int | None) -> None:
    """Refuse fewer than 0 workers with a ConfigError."""
    if workers is not None and workers < 0:
        raise ConfigError(f"--workers {workers}: wanted 0 or more")


def read_batches(
    paths: Sequence[Path], channels: int, steps: Steps, batch_size: int, workers: int, device: torch.device
) -> Iterator[Batch]:
    """Read image files for a network, in order."""
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
    for images, numbers, unreadable in watched.read(loader):
        yield images if images is None else last(images.to(device, non_blocking=pinned)), numbers, unreadable


def _joined(items: Sequence[Item]) -> Batch:
    images = [image for image, _, _ in items if image is not None]
    return (
        default_collate(images) if images else None,
        [number for image, number, _ in items if image is not None],
        {number: why for image, number, why in items if image is None},
    )


# Single images


def several(images: Any) -> Any:
    """Return what a caller passes for images as something to iterate over once; a single image becomes a list."""
    if isinstance(images, (str, os.PathLike)) or _is_pil(images):
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
    """Return what a caller passes for an image as uint8 ``[C, H, W]``."""
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
