"""Images kept as the first step of their pipeline leaves them, in memory or on the disk: a file is decoded once.

The file of a split has the pixels of all images, one after the other, then where each begins and its shape, then a line
of JSON that says what it was made from. It is mapped into memory, so processes and runs share it. Its name is a
checksum of the paths, sizes and times of change of the image files, of their boxes, of the first step, and of the
versions that decode and resize: where one of these changes, another file is made.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..errors import ConfigError, DataError
from ..files import write_atomically
from .splits import Kept, LabeledImages
from .transforms import Steps

Where = Literal["none", "memory", "disk"]
FORMAT = 1
SAMPLE = 64  # images by which the size of a file is estimated
AHEAD = 4  # images per thread that are read before they are wanted


class Prepared:
    """A split that is ready to be read.

    Args:
        images: the split, without what cannot be read.
        skipped: ``{path: why}`` of what was left out.
    """

    def __init__(self, images: LabeledImages, skipped: dict[str, str]) -> None:
        self.images, self.skipped = images, skipped


def prepare(
    images: LabeledImages,
    steps: Steps,
    cache: Where = "none",
    skip_unreadable: bool = False,
    workers: int = 0,
    tell: Callable[[str], None] = lambda text: None,
) -> Prepared:
    """Keeps the images of a split where that is wanted, and leaves out files that cannot be read.

    Args:
        images: the split.
        steps: what is done to its images; the result of the first step is kept.
        cache: where.
        skip_unreadable: whether unreadable files are left out; else they raise an error when they are read. Without a
            cache, every file is read once to know.
        workers: threads that read; 0 for as many as there are processors, up to 8.
        tell: called with a line before images are read.

    Raises:
        ConfigError: there is nothing to keep.
        DataError: a file that cannot be read, no image that can, or no room for the file.
    """
    if isinstance(images.images, Tensor):
        if cache != "none":
            raise ConfigError(
                f"data.cache: found {cache!r}, but the images of this data set are in memory; leave it out"
            )
        return Prepared(images, {})
    if cache == "none" and not skip_unreadable:
        return Prepared(images, {})
    if steps.first is None:
        if cache != "none":
            raise ConfigError(
                "data.cache: training images are cut from the photographs as they are, which leaves nothing to keep; "
                "data.images.resize resizes them before"
            )
        first: nn.Module = nn.Identity()
    else:
        first = steps.first
    threads = workers or min(os.cpu_count() or 1, 8)
    read = functools.partial(_first_step, images, first, steps.smallest, skip_unreadable)
    if cache == "none":
        tell(f"reading {len(images):,} images, to leave out what cannot be read")
        whys = [why for _, why in _in_order(read, len(images), threads)]
        return _without(images, {index: why for index, why in enumerate(whys) if why})
    if cache == "memory":
        tell(f"reading {len(images):,} images into memory")
        everything = list(_in_order(read, len(images), threads))
        held: Sequence[Tensor] = [image for image, _ in everything]
        bad = {index: why for index, (_, why) in enumerate(everything) if why}
    else:
        key = _key(images, steps.first_name)
        path = cache_folder() / f"{key[:32]}.images"
        if not _is_whole(path, key):
            tell(f"writing {len(images):,} resized images to {path}")
            _write(path, key, read, len(images), threads)
        mapped = MappedImages(path)
        held, bad = mapped, mapped.skipped
        if bad and not skip_unreadable:
            raise DataError(next(iter(bad.values())))
    kept = Kept(held, np.arange(len(images)), steps.first_name)
    return _without(images.with_kept(kept), bad)


def cache_folder() -> Path:
    """Where resized images are kept on the disk: ``$PML_EXT_IMAGES``, or ``images`` in the user's cache."""
    if set_by_user := os.environ.get("PML_EXT_IMAGES"):
        return Path(set_by_user).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pml_ext" / "images"


class MappedImages(Sequence[Tensor]):
    """The images of a file that :func:`prepare` has written, mapped into memory; ``[C, H, W]``, uint8, each.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            about = _about(file)
            file.seek(about["pixels"])
            count = about["images"]
            self._starts = np.frombuffer(file.read(8 * count), dtype=np.int64)
            self._shapes = np.frombuffer(file.read(12 * count), dtype=np.int32).reshape(count, 3)
        self.skipped = {int(index): why for index, why in about["skipped"].items()}
        self._size = about["pixels"]
        self._pixels: Any = None

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: Any) -> Any:
        if self._pixels is None:  # opened by each process that reads; changes would be its own
            self._pixels = np.memmap(self.path, dtype=np.uint8, mode="c", shape=(self._size,))
        height, width, channels = map(int, self._shapes[index])
        start = int(self._starts[index])
        pixels = self._pixels[start : start + height * width * channels]
        return torch.from_numpy(np.asarray(pixels)).view(height, width, channels).permute(2, 0, 1)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_pixels": None}


def _first_step(images: LabeledImages, first: nn.Module, smallest: int, skip: bool, index: int) -> tuple[Tensor, str]:
    """An image after the first step, with the channels last in memory, as decoded images are; or why there is none."""
    try:
        image: Tensor = first(images.image(index, smallest))
    except DataError as error:
        if not skip:
            raise
        return torch.zeros(images.channels, 0, 0, dtype=torch.uint8), str(error)
    return image.permute(1, 2, 0).contiguous().permute(2, 0, 1), ""


def _in_order(read: Callable[[int], tuple[Tensor, str]], count: int, threads: int) -> Iterator[tuple[Tensor, str]]:
    """What is read of each image, in order, by threads that are a few images ahead."""
    with ThreadPoolExecutor(threads) as pool:
        indices = iter(range(count))
        waiting = [pool.submit(read, index) for index in itertools.islice(indices, threads * AHEAD)]
        try:
            while waiting:
                yield waiting.pop(0).result()
                waiting += [pool.submit(read, index) for index in itertools.islice(indices, 1)]
        finally:
            for task in waiting:
                task.cancel()


def _without(images: LabeledImages, bad: dict[int, str]) -> Prepared:
    if not bad:
        return Prepared(images, {})
    if len(bad) == len(images):
        raise DataError(f"none of {len(images)} images can be read; the first: {next(iter(bad.values()))}")
    paths = images.paths or []
    good = np.setdiff1d(np.arange(len(images)), list(bad))
    return Prepared(images.subset(good), {str(paths[index]): why for index, why in bad.items()})


def _key(images: LabeledImages, first: str) -> str:
    """A checksum of what the resized images depend on."""
    digest = hashlib.sha256()
    made_with = {name: version(name) for name in ("pillow", "torchvision", "torch")}
    digest.update(json.dumps([FORMAT, first, images.channels, made_with]).encode())
    for index, path in enumerate(images.paths or []):
        try:
            about = path.stat()
            state = [about.st_size, about.st_mtime_ns]
        except OSError:
            state = []
        box = None if images.boxes is None else images.boxes[index].tolist()
        digest.update(json.dumps([os.fspath(path.absolute()), state, box]).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _write(path: Path, key: str, read: Callable[[int], tuple[Tensor, str]], count: int, threads: int) -> None:
    """Writes the file of a split in one step; half of one is never found."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda temporary: _write_to(temporary, key, read, count, threads))
    except OSError as error:
        raise DataError(
            f"{path}: cannot be written ({error.strerror or error}); PML_EXT_IMAGES names another folder, "
            'or take cache = "none"'
        ) from None


def _write_to(path: Path, key: str, read: Callable[[int], tuple[Tensor, str]], count: int, threads: int) -> None:
    starts: NDArray[np.int64] = np.zeros(count, dtype=np.int64)
    shapes: NDArray[np.int32] = np.zeros((count, 3), dtype=np.int32)
    skipped: dict[int, str] = {}
    size = 0
    with path.open("wb") as file:
        for index, (image, why) in enumerate(_in_order(read, count, threads)):
            pixels = image.permute(1, 2, 0).numpy()
            starts[index], shapes[index] = size, pixels.shape
            file.write(pixels.tobytes())
            size += pixels.nbytes
            if why:
                skipped[index] = why
            if index + 1 == SAMPLE:
                _check_room(path, size * (count - SAMPLE) // SAMPLE)
        file.write(starts.tobytes() + shapes.tobytes())
        about = {"format": FORMAT, "key": key, "images": count, "pixels": size, "skipped": skipped}
        line = json.dumps(about).encode()
        file.write(line + len(line).to_bytes(8, "little"))


def _check_room(path: Path, wanted: int) -> None:
    free = shutil.disk_usage(path.parent).free
    if wanted > free:
        raise DataError(
            f"{path.parent}: {wanted >> 20:,} MB more are needed for resized images, {free >> 20:,} MB are "
            'free; PML_EXT_IMAGES names another folder, or take cache = "none"'
        )


def _is_whole(path: Path, key: str) -> bool:
    """Whether a file is there, made from the same, and not cut."""
    try:
        with path.open("rb") as file:
            about = _about(file)
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return bool(about["key"] == key)


def _about(file: BinaryIO) -> dict[str, Any]:
    """The line of JSON at the end; raises :class:`ValueError` if the file has not the length that it says."""
    end = file.seek(0, os.SEEK_END)
    file.seek(max(0, end - 8))
    length = int.from_bytes(file.read(8), "little")
    if length + 8 > end:
        raise ValueError("cut")
    file.seek(end - 8 - length)
    about: dict[str, Any] = json.loads(file.read(length))
    if about["pixels"] + 20 * about["images"] + length + 8 != end:
        raise ValueError("cut")
    return about
