"""Lists of images, read in batches; conversion of single images to tensors."""

import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import torch
from PIL import Image, features
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from pml_ext.errors import ConfigError, DataError, shortened
from pml_ext_train.data import (
    AS_KEPT,
    DamagedImageError,
    FolderRules,
    Listing,
    Steps,
    image_tensor,
    list_folder,
    read_image,
)
from pml_ext_train.files import MISSING, file_stat
from pml_ext_train.training import WorkerDataset, data_loader

from ..collection.problems import ExcludedImages

READ = 64  # images per batch of a reading worker
MOST_WORKERS = 8
FEW = 1_000
NAMED = 5  # of the files that are not read, in an error
Images = Any  # a path, a PIL image, an array, a tensor, or several of these
Listed = str | Path | Sequence[str | Path]  # a folder, an address, a table, shards, or paths of images
Item = tuple[Tensor | None, int, str]
Batch = tuple[Tensor | list[Tensor], list[int], dict[int, str]]


def found_instead(listing: Listing) -> str:
    """What a folder without images has instead, for the end of an error."""
    if not listing.others:
        return ", and found nothing"
    reasons = [shortened(reason, 200) for reason in sorted(listing.others.values())]
    more = f"; and {len(reasons) - NAMED} more" if len(reasons) > NAMED else ""
    return f"; found {'; '.join(reasons[:NAMED])}{more}"


def warn_of_excluded(listing: Listing, stacklevel: int = 2) -> None:
    """Warn of images that patterns leave out."""
    if listing.left_out:
        warnings.warn(listing.left_out, ExcludedImages, stacklevel=stacklevel + 1)


def list_files(items: Sequence[str | Path], folder: str | Path | None) -> Listing:
    """List images by paths relative to a folder, by default their deepest common one."""
    if not items:
        raise ConfigError("no images are listed; wanted one or more")
    if folder is not None and "://" in str(folder):
        raise ConfigError(f"--list has files below a folder of this machine, not {folder}")
    paths = [os.path.join(folder or "", item) for item in items]
    if not folder:
        folders = [os.path.dirname(os.path.abspath(item)) for item in items]
        folder = os.path.commonpath(folders)
    root = Path(folder).resolve()

    names: list[str] = []
    for path in paths:
        real_path = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        name = os.path.relpath(real_path, root).replace(os.sep, "/")
        if ".." in name.split("/"):
            raise ConfigError(f"{shortened(name, 200)} is not below {root}, the folder of the listed images")
        names.append(name)
    names = list(dict.fromkeys(names))
    stats = [file_stat(root / name) or MISSING for name in names]
    return Listing(root, names, stats, {}, [])


def listed(items: Listed, folder: str | Path | None = None, rules: FolderRules = AS_KEPT) -> Listing | str:
    """List images without reading them: a folder, or paths relative to ``folder``.

    Addresses, Parquet tables and tar shards are returned as text, for the plugin ``parts``.
    """
    if not isinstance(items, (str, os.PathLike)):
        return list_files(items, folder)
    place = os.fspath(items)
    if place.endswith((".parquet", ".tar")) or "://" in place:
        return place
    listing = list_folder(Path(place), rules)
    if not listing.names:
        raise DataError(f"{Path(place).resolve()}: not named like an image")
    warn_of_excluded(listing, stacklevel=3)
    return listing._replace(folder=Path(place).resolve())


class Damage(str):
    """Why a file is not a readable image, until it changes."""

    __slots__ = ()


def reader() -> str:
    """What reads images: Pillow's version, and its formats."""
    formats = [name for name in ("webp", "avif") if name in features.modules and features.check_module(name)]
    return " ".join([PIL.__version__, *features.get_supported_codecs(), *formats])


class FileImages(Dataset[Item]):
    """Transformed images of files; an item is ``(image or None, number, reason or "")``."""

    def __init__(self, paths: Sequence[Path], channels: int, steps: Steps) -> None:
        self.paths = paths
        self._channels = channels
        self._steps = steps

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Item:
        try:
            image = read_image(self.paths[index], self._channels, smallest=self._steps.smallest)
        except DamagedImageError as error:
            return None, index, Damage(error)
        except DataError as error:
            return None, index, str(error)
        return self._steps(image), index, ""


def default_workers(images: int) -> int:
    """The number of worker processes: 0 for few images, in a script, or without a fork server."""
    if images < FEW or sys.platform != "linux" or _is_script():
        return 0
    processors = len(os.sched_getaffinity(0))
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return min(max(1, processors // processes), MOST_WORKERS)


def _is_script() -> bool:
    """Whether the program is a script, which each worker would execute again."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)  # none in a notebook
    return file is not None and main.__spec__ is None and Path(file).stem != "pml-ext"


def read_batches(
    paths: Sequence[Path], channels: int, steps: Steps, batch_size: int, workers: int, device: torch.device
) -> Iterator[Batch]:
    """Yield batches of transformed images, in order."""
    if workers < 0:
        raise ConfigError(f"--workers {workers}: wanted 0 or more")
    early, last = steps.divided()
    dataset = WorkerDataset(FileImages(paths, channels, early), workers)  # type: ignore[arg-type]
    loader = data_loader(dataset, workers, device, batch_size=batch_size, collate_fn=_batch_of)
    with dataset.naming_images():
        for images, numbers, unreadable in loader:
            if isinstance(images, Tensor):
                images = last(images.to(device, non_blocking=loader.pin_memory))
            yield images, numbers, unreadable


def _batch_of(items: Sequence[Item]) -> Batch:
    images = [image for image, _, _ in items if image is not None]
    numbers = [number for image, number, _ in items if image is not None]
    unreadable = {number: why for image, number, why in items if image is None}
    return joined(images), numbers, unreadable


def joined(images: list[Tensor]) -> Tensor | list[Tensor]:
    """Images of one shape as a tensor ``[B, C, H, W]``; otherwise the list."""
    if len({image.shape for image in images}) == 1:
        return default_collate(images)  # type: ignore[no-any-return]
    return images


# Single images

_WANTED = (
    "wanted a path, a PIL image, a uint8 array [H, W, 3] or [H, W], or a uint8 tensor [C, H, W], or several of one kind"
)


def as_images(images: Images) -> Any:
    """Images as an iterable; a single image becomes a list."""
    if isinstance(images, (str, os.PathLike, Image.Image)):
        return [images]
    if isinstance(images, (bytes, dict)) or not hasattr(images, "__iter__"):
        raise TypeError(f"{_WANTED}; not {_described(images)}")
    if getattr(images, "ndim", 0) in (2, 3):
        return [images]
    return images


def as_tensor(image: Any, channels: int, smallest: int | None) -> Tensor:
    """A path, PIL image, array or tensor as a uint8 image ``[C, H, W]``."""
    if isinstance(image, (str, os.PathLike)):
        return read_image(Path(image), channels, smallest=smallest)
    if isinstance(image, Tensor) and image.dtype == torch.uint8 and image.ndim == 3 and 0 not in image.shape:
        if image.shape[0] != channels:
            raise TypeError(f"a tensor of {image.shape[0]} channels; the run's images have {channels}")
        return image
    try:
        if isinstance(image, np.ndarray) and image.dtype == np.uint8:
            if image.shape[2:] == (1,):
                image = image[..., 0]
            image = Image.fromarray(np.ascontiguousarray(image))
    except (ValueError, TypeError) as error:  # invalid shape
        raise DataError(f"an image cannot be read ({error})") from None
    if isinstance(image, Image.Image):
        return image_tensor(image, channels, smallest)
    raise TypeError(f"{_WANTED}; not {_described(image)}")


def _described(value: Any) -> str:
    kind = type(value).__name__
    if isinstance(value, (Tensor, np.ndarray)):
        return f"a {kind} of {value.dtype} {list(value.shape)}"
    return f"a {kind}"
