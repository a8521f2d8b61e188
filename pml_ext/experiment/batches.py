"""An epoch's batches: the share of each that a process trains on, and the seed of every image's augmentation."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, Dataset, Sampler

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

    def __getitem__(self, item: Item) -> tuple[Tensor, int]:
        index, seed = item
        state = torch.get_rng_state()
        try:
            torch.default_generator.manual_seed(seed)
            return self._images[index]
        finally:
            torch.set_rng_state(state)
