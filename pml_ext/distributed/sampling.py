"""Batches for several processes, from any sampler."""

import contextlib
import random
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Sampler

from ..samplers import TupleSampler
from ..settings import check_count
from .processes import from_rank_0, num_processes, rank, share_of


class DistributedBatchSampler(Sampler[list[int]]):
    """A ``batch_sampler`` that divides the batches of any sampler among the processes.

    Rank 0 draws each pass for all; rank r of W gets the r-th of W consecutive parts of every batch. With
    :class:`pml_ext.DistributedLoss`, W processes train as one does on whole batches.

    The generators of ``random``, numpy and torch are seeded with the seed and the number of the pass while it is drawn,
    and restored afterwards.

    Args:
        sampler: a sampler of indices or of batches, from PML, ``pml_ext`` or torch.
        batch_size: items in a batch of all processes together; None for a sampler of batches.
        seed: of the draws.
        num_processes: W; by default taken from the process group when a pass begins.
        rank: of this process. With ``num_processes`` and ``rank``, every process draws for itself.

    Raises:
        TypeError, ValueError: a TupleSampler, ``batch_size`` with a sampler of batches, or fewer items than
            processes in a batch.

    Example:
        >>> batches = DistributedBatchSampler(range(8), 4, num_processes=2, rank=1)
        >>> list(batches), len(batches)
        ([[2, 3], [6, 7]], 2)
    """

    def __init__(
        self,
        sampler: Iterable[Any],
        batch_size: int | None = None,
        seed: int = 0,
        num_processes: int | None = None,
        rank: int | None = None,
    ) -> None:
        if not hasattr(sampler, "__iter__") or not hasattr(sampler, "__len__"):
            raise TypeError(f"sampler must be an object such as MPerClassSampler(labels, m=4); got {sampler!r}")
        if isinstance(sampler, TupleSampler):
            raise TypeError(
                "TupleSampler gives whole pairs or triplets, which processes do not divide; wanted a sampler of "
                "indices, such as MPerClassSampler(labels, m=4)"
            )
        if batch_size is not None:
            check_count(self, "batch_size", batch_size)
        if (num_processes is None) != (rank is None):
            raise ValueError("num_processes and rank go together; leave out both to use the process group")
        if num_processes is not None and rank is not None:
            check_count(self, "num_processes", num_processes)
            if rank not in range(num_processes):
                raise ValueError(f"rank must be from 0 to {num_processes - 1}; got {rank!r}")
        self.sampler = sampler
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0  # number of the next pass
        self._place = None if rank is None or num_processes is None else (rank, num_processes)

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next pass, from 0; every pass increases it by one."""
        self.epoch = epoch

    def __len__(self) -> int:
        count = len(self.sampler)  # type: ignore[arg-type]
        if self.batch_size is None:
            return count
        return count // self.batch_size

    def __iter__(self) -> Iterator[list[int]]:
        if self._place is not None:
            place = self._place
            joined = self._draw()
        else:
            place = rank(), num_processes()
            joined = from_rank_0(self._draw() if place[0] == 0 else None)
        self.epoch += 1
        number, processes = place
        for batch in joined:
            if len(batch) < processes:
                raise ValueError(f"a batch of {len(batch)} items has none for some of {processes} processes")
            yield batch[share_of(len(batch), number, processes)]

    def _draw(self) -> list[list[int]]:
        with _seeded(self.seed, self.epoch):
            drawn = list(self.sampler)
        if not drawn:
            return []
        gives_batches = isinstance(drawn[0], (list, tuple))
        if gives_batches:
            if self.batch_size is not None:
                raise TypeError(f"{type(self.sampler).__name__} gives batches; leave out batch_size")
            return [[int(index) for index in batch] for batch in drawn]
        if self.batch_size is None:
            raise TypeError(f"{type(self.sampler).__name__} gives single items; batch_size is missing")
        indices = [int(index) for index in drawn]
        starts = range(0, len(indices) - self.batch_size + 1, self.batch_size)
        return [indices[start : start + self.batch_size] for start in starts]

    def state_dict(self) -> dict[str, Any]:
        """The number of the next pass, and the sampler's state if it has one."""
        state: dict[str, Any] = {"epoch": self.epoch}
        if hasattr(self.sampler, "state_dict"):
            state["sampler"] = self.sampler.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of :meth:`state_dict`."""
        self.epoch = state["epoch"]
        if hasattr(self.sampler, "load_state_dict"):
            self.sampler.load_state_dict(state["sampler"])


@contextlib.contextmanager
def _seeded(seed: int, epoch: int) -> Iterator[None]:
    number = int(np.random.default_rng((seed, epoch)).integers(2**32))
    before_random = random.getstate()
    before_numpy = np.random.get_state()
    random.seed(number)
    np.random.seed(number)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(torch.Generator().manual_seed(number).get_state())
            yield
    finally:
        random.setstate(before_random)
        np.random.set_state(before_numpy)
