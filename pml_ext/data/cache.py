"""Images cached as the first step of their transform leaves them, so that a file is decoded once.

A split on the disk is a folder with the pixels of all images, one after the other, and an index of them. The pixels are
mapped into memory, which processes and runs share. The folder's name is a checksum of the paths, sizes and times of
change of the image files, of their boxes, of the first step, and of the versions that decode and resize.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import ConfigError, DataError
from .splits import LabeledImages, ResizedCache
from .transforms import Steps

Where = Literal["none", "memory", "disk"]
PIXELS, INDEX = "pixels.u8", "index.npz"
CHUNK = 256  # images that are read ahead


def prepare(
    images: LabeledImages,
    steps: Steps,
    cache: Where = "none",
    skip_unreadable: bool = False,
    workers: int = 0,
    tell: Callable[[str], None] = lambda text: None,
) -> tuple[LabeledImages, dict[str, str]]:
    """Return a split ready to be read, its images cached where wanted, and ``{path: reason}`` of what it leaves out.

    Args:
        images: the split.
        steps: its transform; the result of the first step is cached.
        cache: where.
        skip_unreadable: leave out unreadable files, which else raise an error when they are read. Without a cache,
            every file is read once to know.
        workers: threads that read; 0 for as many as there are processors, up to 8.
        tell: called with a line before images are read.

    Raises:
        ConfigError: there is nothing to cache.
        DataError: a file that cannot be read, no image that can, or a cache that cannot be written.
    """
    if isinstance(images.images, Tensor) and cache != "none":
        raise ConfigError(f"data.cache: found {cache!r}, but the images of this data set are in memory; leave it out")
    if isinstance(images.images, Tensor) or (cache == "none" and not skip_unreadable):
        return images, {}
    if steps.first is None and cache != "none":
        raise ConfigError(
            "data.cache: training images are cut from the photographs as they are, which leaves nothing to keep; "
            "data.images.resize resizes them before"
        )
    read = functools.partial(_first_step, images, steps.first or nn.Identity(), steps.smallest, skip_unreadable)
    results = functools.partial(_in_order, read, len(images), workers or min(os.cpu_count() or 1, 8))
    if cache == "disk":
        folder = cache_folder() / _key(images, steps.first_name)[:32]
        mapped = MappedImages.of(folder)
        if mapped is None:
            tell(f"writing {len(images):,} resized images to {folder}")
            mapped = _write(folder, results)
        kept: Sequence[Tensor] = mapped
        unreadable = mapped.unreadable
        if unreadable and not skip_unreadable:
            raise DataError(next(iter(unreadable.values())))
    else:
        tell(f"reading {len(images):,} images{', into memory' if cache == 'memory' else ''}")
        kept, unreadable = [], {}
        for index, (image, reason) in enumerate(results()):
            if reason:
                unreadable[index] = reason
            kept.append(image if cache == "memory" else torch.empty(0))
    if len(unreadable) == len(images):
        raise DataError(f"none of {len(images)} images can be read; the first: {next(iter(unreadable.values()))}")
    if cache != "none":
        images = images.replace(cache=ResizedCache(kept, np.arange(len(images)), steps.first_name))
    skipped = {str(images.images[index]): reason for index, reason in unreadable.items()}
    return images.subset(np.setdiff1d(np.arange(len(images)), list(unreadable))), skipped


def cache_folder() -> Path:
    """Return the folder of the disk cache: ``$PML_EXT_IMAGES``, or ``images`` in the user's cache."""
    if set_by_user := os.environ.get("PML_EXT_IMAGES"):
        return Path(set_by_user).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pml_ext" / "images"


class MappedImages(Sequence[Tensor]):
    """The images of a folder of the disk cache, mapped into memory; ``[C, H, W]``, uint8, each."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / PIXELS
        with np.load(folder / INDEX) as index:
            self._shapes, unreadable = index["shapes"], json.loads(str(index["unreadable"]))
        self.unreadable: dict[int, str] = {int(number): reason for number, reason in unreadable.items()}
        self._ends = self._shapes.prod(axis=1, dtype=np.int64).cumsum()
        if self._path.stat().st_size != self._ends[-1]:
            raise ValueError(f"{self._path} is not whole")
        self._pixels: Any = None

    @classmethod
    def of(cls, folder: Path) -> MappedImages | None:
        """Return the images of a folder, or None where it is missing or damaged."""
        try:
            return cls(folder)
        except Exception:  # damaged files raise errors of many kinds
            return None

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: Any) -> Any:
        if self._pixels is None:  # opened by each process that reads; copy-on-write, as torch wants writable memory
            self._pixels = np.memmap(self._path, dtype=np.uint8, mode="c")
        shape, end = self._shapes[index].tolist(), int(self._ends[index])
        pixels = np.asarray(self._pixels[end - int(np.prod(shape)) : end])
        return torch.from_numpy(pixels).view(shape).permute(2, 0, 1)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_pixels": None}


def _first_step(images: LabeledImages, first: nn.Module, smallest: int, skip: bool, index: int) -> tuple[Tensor, str]:
    """Return an image after the first step, its channels last in memory; or the reason why there is none."""
    try:
        image: Tensor = first(images.image(index, smallest))
    except DataError as error:
        if not skip:
            raise
        return torch.zeros(images.channels, 0, 0, dtype=torch.uint8), str(error)
    return image.permute(1, 2, 0).contiguous().permute(2, 0, 1), ""


def _in_order(read: Callable[[int], tuple[Tensor, str]], count: int, threads: int) -> Iterator[tuple[Tensor, str]]:
    with ThreadPoolExecutor(threads) as pool:
        for start in range(0, count, CHUNK):
            yield from pool.map(read, range(start, min(start + CHUNK, count)))


def _key(images: LabeledImages, first: str) -> str:
    """Return a checksum of everything that resized images depend on."""
    versions = {name: version(name) for name in ("pillow", "torchvision", "torch")}
    digest = hashlib.sha256(json.dumps([first, images.channels, versions]).encode())
    for index, path in enumerate(images.paths or []):
        state = [path.stat().st_size, path.stat().st_mtime_ns] if path.exists() else []
        box = None if images.boxes is None else images.boxes[index].tolist()
        digest.update(json.dumps([os.fspath(path.absolute()), state, box]).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _write(folder: Path, results: Callable[[], Iterator[tuple[Tensor, str]]]) -> MappedImages:
    """Write the folder of a split and move it into place, so that half of one is never found."""
    shapes: list[tuple[int, ...]] = []
    unreadable: dict[int, str] = {}
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".writing-", dir=folder.parent) as temporary:
            new = Path(temporary, "new")
            new.mkdir()
            with (new / PIXELS).open("wb") as file:
                for index, (image, reason) in enumerate(results()):
                    pixels = image.permute(1, 2, 0).numpy()
                    shapes.append(pixels.shape)
                    file.write(pixels.tobytes())
                    if reason:
                        unreadable[index] = reason
            np.savez(new / INDEX, shapes=np.array(shapes, dtype=np.int32), unreadable=np.array(json.dumps(unreadable)))
            if MappedImages.of(folder) is None:  # else another process was faster
                shutil.rmtree(folder, ignore_errors=True)
                new.rename(folder)
    except OSError as error:
        raise DataError(
            f"{folder}: cannot be written ({error.strerror or error}); PML_EXT_IMAGES names another folder, "
            'or take cache = "none"'
        ) from None
    return MappedImages(folder)
