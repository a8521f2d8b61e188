"""An epoch's batches: the part of each that a process trains on, the seed of each image's augmentation, the reading."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, Sampler

from ..distributed import from_rank_0, num_processes, rank
from .workers import Watched, begin

Item = tuple[int, int]  # the index of an image, and the seed of its augmentation


def draw(sampler: Sampler[Any], batch_size: int, iterations: int) -> list[list[int]]:
    """The first batches of one pass of a sampler.

    Args:
        sampler: gives indices, or batches of them.
        batch_size: images in a batch; of no meaning where the sampler gives batches.
        iterations: how many batches are wanted.
    """
    batches = sampler if isinstance(sampler, BatchSampler) else BatchSampler(sampler, batch_size, drop_last=True)
    return [list(map(int, batch)) for batch in islice(batches, iterations)]


class EpochBatches(BatchSampler):
    """An epoch's batches, of which this process gets its part.

    Rank r of W gets the r-th of W consecutive parts of each batch, so that the parts joined in the order of the ranks
    are the batch. The augmentation of an image depends on the seed, the epoch and the place in it, and on nothing else:
    not on the number of processes, nor on that of a data loader's workers.

    Args:
        joined: indices of the images of every batch.
        seed: of the run.
        epoch: from 1.
        rank: this process.
        processes: how many there are.
    """

    def __init__(self, joined: list[list[int]], seed: int, epoch: int, rank: int = 0, processes: int = 1) -> None:
        seeds = iter(np.random.default_rng((seed, epoch)).integers(2**63, size=sum(map(len, joined))).tolist())
        self._batches: list[list[Item]] = []
        for batch in joined:
            items = list(zip(batch, islice(seeds, len(batch)), strict=True))
            self._batches.append(items[_share(len(items), rank, processes)])

    def after(self, count: int) -> EpochBatches:
        """The batches that are left after some were trained on.

        Args:
            count: of those.
        """
        left = copy.copy(self)
        left._batches = self._batches[count:]
        return left

    def indices(self, number: int) -> Tensor:
        """The images of this process's part of a batch, ``[B]``, int64.

        Args:
            number: of the batch, from 0.
        """
        return torch.as_tensor([index for index, _ in self._batches[number]], dtype=torch.int64)

    def __iter__(self) -> Iterator[list[Item]]:  # type: ignore[override]  # an image's index and seed
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)


def _share(length: int, rank: int, processes: int) -> slice:
    """Rank's part: consecutive parts whose lengths differ by 1 at most."""
    return slice(length * rank // processes, length * (rank + 1) // processes)


class SeededImages(Dataset[tuple[Tensor, int]]):
    """Images whose augmentation is drawn from a seed that comes with the index.

    Args:
        images: items are ``(image, label)``; their transforms draw from torch's generator of the CPU.
    """

    def __init__(self, images: Dataset[tuple[Tensor, int]]) -> None:
        self._images = images

    def __len__(self) -> int:
        return len(self._images)  # type: ignore[arg-type]

    def watched(self, workers: int) -> Watched:
        """From now on it is known which image each worker reads.

        Args:
            workers: how many there will be. With any, images are as :meth:`LabeledImages.for_workers` gives them.
        """
        self._images = watched = Watched(self._images, workers)
        return watched

    def __getitem__(self, item: Item) -> tuple[Tensor, int]:
        return self.__getitems__([item])[0]

    def __getitems__(self, items: Sequence[Item]) -> list[tuple[Tensor, int]]:
        """A whole batch, as a data loader asks for it: torch's generator is put aside once, not once per image."""
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
        """The batches of an epoch on the device, in order.

        One number is drawn from torch's generator of the CPU at once, as a data loader made for the epoch draws it:
        with any number of workers, and in a run that goes on, random numbers are the same.

        Args:
            batches: the epoch's.
            labels: of all images, in place of their own, ``[N]``.

        Returns:
            Images ``[B, C, H, W]`` and labels ``[B]``, batch by batch.

        Raises:
            DataError: a worker died, or an image cannot be read; while batches are taken.
        """
        if self._loader is None:
            raise RuntimeError("the reader is closed")
        self._generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_()))
        self._batches.now = batches
        return self._read(batches, labels)

    def _read(self, batches: EpochBatches, others: NDArray[np.int64] | None) -> Iterator[tuple[Tensor, Tensor]]:
        assert self._loader is not None
        for number, (images, labels) in enumerate(self._watched.batches(self._loader)):
            if others is not None:
                labels = torch.from_numpy(others[batches.indices(number).numpy()])
            yield self._on_device(images, labels)

    def close(self) -> None:
        """Ends the workers."""
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
    """The batches that the loader reads next; asked in this process, also where others read."""

    def __init__(self) -> None:
        self.now: EpochBatches | list[list[Item]] = []

    def __iter__(self) -> Iterator[list[Item]]:  # type: ignore[override]  # an image's index and seed
        return iter(self.now)

    def __len__(self) -> int:
        return len(self.now)


def draw_for_all(sampler: Any, batch_size: int, iterations: int, seed: int, epoch: int) -> EpochBatches:
    """The epoch's batches as rank 0 draws them; the other processes' networks have random numbers of their own.

    Args:
        sampler: as of :func:`draw`.
        batch_size: images per batch, over all processes.
        iterations: how many batches.
        seed: of the run.
        epoch: from 1.
    """
    drawn = draw(sampler, batch_size, iterations) if rank() == 0 else None
    if rank() > 0:
        torch.manual_seed(hash((seed, epoch, rank())))
    return EpochBatches(from_rank_0(drawn), seed, epoch, rank(), num_processes())
