"""Batches of an epoch: the part that a process trains on, the seed of each image's augmentation, and the reading."""

from __future__ import annotations

import atexit
import contextlib
import copy
import gc
import multiprocessing
import os
import re
import signal
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, Sampler, get_worker_info

from ..data import LabeledImages
from ..distributed import from_rank_0, num_processes, rank
from ..errors import DataError, shortened

Item = tuple[int, int]  # the index of an image, and the seed of its augmentation


def draw(sampler: Sampler[Any], batch_size: int, iterations: int) -> list[list[int]]:
    """Return the first batches of one pass of a sampler of indices, or of batches with a size of their own."""
    batches = sampler if isinstance(sampler, BatchSampler) else BatchSampler(sampler, batch_size, drop_last=True)
    return [list(map(int, batch)) for batch in islice(batches, iterations)]


class EpochBatches(BatchSampler):
    """An epoch's batches, of which this process gets its part.

    Rank r of W gets the r-th of W consecutive parts of each batch, so that the parts joined in the order of the ranks
    are the batch. The augmentation of an image depends on the seed, the epoch and the place in it, and on nothing else:
    not on the number of processes, nor on that of a data loader's workers.
    """

    def __init__(self, joined: list[list[int]], seed: int, epoch: int, rank: int = 0, processes: int = 1) -> None:
        seeds = iter(np.random.default_rng((seed, epoch)).integers(2**63, size=sum(map(len, joined))).tolist())
        self._batches: list[list[Item]] = []
        for batch in joined:
            items = list(zip(batch, islice(seeds, len(batch)), strict=True))
            self._batches.append(items[_share(len(items), rank, processes)])

    def after(self, count: int) -> EpochBatches:
        """Return the batches that are left after the first ``count``."""
        left = copy.copy(self)
        left._batches = self._batches[count:]
        return left

    def indices(self, number: int) -> Tensor:
        """Return the images of this process's part of a batch, ``[B]``, int64; batches are counted from 0."""
        return torch.as_tensor([index for index, _ in self._batches[number]], dtype=torch.int64)

    def __iter__(self) -> Iterator[list[Item]]:  # type: ignore[override]  # an image's index and seed
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)


def _share(length: int, rank: int, processes: int) -> slice:
    """Return a rank's part: consecutive parts whose lengths differ by 1 at most."""
    return slice(length * rank // processes, length * (rank + 1) // processes)


class SeededImages(Dataset[tuple[Tensor, int]]):
    """Images ``(image, label)`` whose transforms draw, from torch's generator, by a seed that comes with the index."""

    def __init__(self, images: Dataset[tuple[Tensor, int]]) -> None:
        self._images = images

    def __len__(self) -> int:
        return len(self._images)  # type: ignore[arg-type]

    def watched(self, workers: int) -> Watched:
        """Watch which image each worker reads, from now on."""
        self._images = watched = Watched(self._images, workers)
        return watched

    def __getitem__(self, item: Item) -> tuple[Tensor, int]:
        return self.__getitems__([item])[0]

    def __getitems__(self, items: Sequence[Item]) -> list[tuple[Tensor, int]]:
        """Return a whole batch, as a data loader asks for it: torch's generator is put aside once, not per image."""
        state = torch.get_rng_state()
        try:
            read = []
            for index, seed in items:
                torch.default_generator.manual_seed(seed)
                read.append(self._images[index])
            return read
        finally:
            torch.set_rng_state(state)


class BatchReader:
    """Reads one epoch's batches after another's; its workers live as long as it does.

    On CUDA and XPU batches come through pinned memory, copied on a stream of their own, so that a batch that is asked
    for while the device works on the one before arrives meanwhile.

    Args:
        images: items are ``(image, label)``, by index and seed.
        workers: processes that read; 0 for this one.
        device: where batches are wanted.
        memory_format: how images lie in memory there.
    """

    def __init__(
        self,
        images: SeededImages,
        workers: int,
        device: torch.device,
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> None:
        self._device, self._memory_format = device, memory_format
        self._streams: Any = getattr(torch, device.type) if device.type in ("cuda", "xpu") else None
        self._stream = self._streams.Stream(device) if self._streams is not None else None
        self._batches = _Batches()
        self._generator = torch.Generator()
        self._watched = images.watched(workers)
        self._loader: DataLoader[Any] | None = DataLoader(
            images,
            batch_sampler=self._batches,
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=self._streams is not None,
            generator=self._generator,
            worker_init_fn=begin,
        )

    def read(self, batches: EpochBatches, labels: NDArray[np.int64] | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Return an iterator over the batches of an epoch: images ``[B, C, H, W]`` and labels ``[B]``, on the device.

        One number is drawn from torch's generator of the CPU at once, as a data loader made for the epoch draws it:
        with any number of workers, and in a resumed run, random numbers are the same. Take the batches inside of
        :meth:`naming_images`.

        Args:
            batches: the epoch's.
            labels: of all images, in place of their own, ``[N]``.
        """
        if self._loader is None:
            raise RuntimeError("the reader is closed")
        self._generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_()))
        self._batches.now = batches
        return self._read(batches, labels)

    def _read(self, batches: EpochBatches, others: NDArray[np.int64] | None) -> Iterator[tuple[Tensor, Tensor]]:
        assert self._loader is not None
        for number, (images, labels) in enumerate(self._loader):
            if others is not None:
                labels = torch.from_numpy(others[batches.indices(number).numpy()])
            yield self._on_device(images, labels)

    def naming_images(self) -> contextlib.AbstractContextManager[None]:
        """Name the image that a worker was reading when it died; see :meth:`Watched.naming_images`."""
        return self._watched.naming_images()

    def close(self) -> None:
        """End the workers."""
        self._loader = None

    def _on_device(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        if self._stream is None:
            images = self._watched.finish(images.to(self._device, memory_format=self._memory_format))
            return images, labels.to(self._device)
        with self._streams.stream(self._stream):
            batch = (
                self._watched.finish(images.to(self._device, non_blocking=True, memory_format=self._memory_format)),
                labels.to(self._device, non_blocking=True),
            )
        working = self._streams.current_stream(self._device)
        working.wait_stream(self._stream)
        for tensor in batch:
            tensor.record_stream(working)  # else its memory could be used again while the device still reads it
        return batch


class _Batches(BatchSampler):
    """The batches that the loader reads next; it asks for them in this process, also where others read."""

    def __init__(self) -> None:
        self.now: EpochBatches | list[list[Item]] = []

    def __iter__(self) -> Iterator[list[Item]]:  # type: ignore[override]  # an image's index and seed
        return iter(self.now)

    def __len__(self) -> int:
        return len(self.now)


def draw_for_all(sampler: Any, batch_size: int, iterations: int, seed: int, epoch: int) -> EpochBatches:
    """Return the epoch's batches as rank 0 draws them; other processes' networks get random numbers of their own."""
    drawn = draw(sampler, batch_size, iterations) if rank() == 0 else None
    if rank() > 0:
        torch.manual_seed(hash((seed, epoch, rank())))
    return EpochBatches(from_rank_0(drawn), seed, epoch, rank(), num_processes())


# Workers

_read: weakref.WeakSet[Watched] = weakref.WeakSet()  # images that workers of this process may read


class Watched(Dataset[tuple[Tensor, int]]):
    """Images of which it is known which one each worker reads.

    Args:
        images: items are ``(image, label)``; with workers, :class:`LabeledImages` are read by
            :meth:`~LabeledImages.for_workers`, and :attr:`finish` does the rest.
        workers: how many read; 0 for none but this process.
    """

    def __init__(self, images: Dataset[tuple[Tensor, int]], workers: int) -> None:
        self.finish: Callable[[Tensor], Tensor] = lambda batch: batch
        if workers > 0 and isinstance(images, LabeledImages):
            images, self.finish = images.for_workers()
        self._images = images
        # of each worker: the number of its process, and the image that it reads
        self.reading = torch.full((max(workers, 1), 2), -1, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        if workers > 0:
            _read.add(self)

    def __len__(self) -> int:
        return len(self._images)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        worker = get_worker_info()
        if worker is not None:
            self.reading[worker.id] = torch.tensor([os.getpid(), index])
        return self._images[index]

    def read(self, loader: DataLoader[Any]) -> Iterator[Any]:
        """Yield the batches of a loader of these images, inside of :meth:`naming_images`."""
        with self.naming_images():
            yield from loader

    @contextlib.contextmanager
    def naming_images(self) -> Iterator[None]:
        """Add to torch's error about a worker that died the image that it was reading.

        Raises:
            DataError: a worker died.
        """
        try:
            yield
        except RuntimeError as error:
            if not str(error).startswith("DataLoader worker"):
                raise
            dead = set(map(int, re.findall(r"\d+", str(error))))
            images = [self._name(image) for process, image in self.reading.tolist() if process in dead]
            raise DataError(
                f"a data-loader worker died while it read {', '.join(images) or 'no image yet'} "
                f"({shortened(error, 200)}). If memory ran out, lower data.workers; else mend or remove the file"
            ) from error

    def _name(self, number: int) -> str:
        paths = getattr(self._images, "paths", None)
        return str(paths[number]) if paths is not None else f"image {number}"


@atexit.register
def _end_workers() -> None:
    """Before multiprocessing ends what is left by one SIGTERM, for which workers stay, and waits without end."""
    own = {process for images in list(_read) for process, _ in images.reading.tolist()}
    left = [child for child in multiprocessing.active_children() if child.pid in own]
    if left and hasattr(signal, "SIGCHLD"):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler raises errors about workers that end
    for child in left:
        child.kill()


def begin(_worker: int) -> None:
    """Begin a worker that ignores the signals which a scheduler sends to every process of a job.

    The run ends it: it must not end before the iteration that the run finishes. A second SIGTERM ends it.
    """
    gc.freeze()  # garbage of the run is not collected here: loaders in it would end the run's workers
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGINT", "SIGHUP"):
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda number, _: signal.signal(number, signal.SIG_DFL))
