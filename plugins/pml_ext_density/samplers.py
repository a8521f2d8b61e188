"""Batches of whole classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Sampler


class WholeClassSampler(Sampler[int]):
    """All images of randomly drawn classes, one class after the other, until a batch is full.

    Of the last class as many images as still fit are drawn at random. Every class is drawn once, in a random order that
    goes on from epoch to epoch, before one is drawn again. A pass gives whole batches alone.

    Args:
        labels: the label of every image, integers, ``[N]``.
        batch_size: images in a batch.
        seed: of the draw; the sampler has a generator of its own.

    Raises:
        ValueError: fewer images than a batch, or a class that alone fills one.

    *Source:* Li et al., Deep Metric Learning with Density Adaptivity, 2019, Sec. IV-A (for Stanford Online Products),
    https://arxiv.org/abs/1909.03909.
    """

    def __init__(self, labels: Sequence[int] | Tensor, batch_size: int, seed: int = 0) -> None:
        known: Any = np.asarray(labels)
        classes, of = np.unique(known, return_inverse=True)
        self._members = [np.flatnonzero(of == number) for number in range(len(classes))]
        if not 1 <= batch_size <= len(known):
            raise ValueError(f"batch_size must be between 1 and the {len(known)} images; got {batch_size}")
        largest = max(range(len(classes)), key=lambda number: len(self._members[number]))
        if len(self._members[largest]) >= batch_size:
            raise ValueError(
                f"class {classes[largest]} has {len(self._members[largest])} images and would fill a batch of "
                f"{batch_size} alone; make batch_size larger, or take MPerClassSampler"
            )
        self.batch_size = batch_size
        self._batches = len(known) // batch_size
        self._generator = np.random.default_rng(seed)
        self._waiting: list[int] = []  # classes still to be drawn, the next one last

    def __len__(self) -> int:
        return self._batches * self.batch_size

    def __iter__(self) -> Iterator[int]:
        for _ in range(self._batches):
            batch: list[int] = []
            used: set[int] = set()
            while len(batch) < self.batch_size:
                number = self._next(used)
                used.add(number)
                images = self._generator.permutation(self._members[number])
                batch += images[: self.batch_size - len(batch)].tolist()
            yield from batch

    def _next(self, used: set[int]) -> int:
        for place in range(len(self._waiting) - 1, -1, -1):
            if self._waiting[place] not in used:
                return self._waiting.pop(place)
        self._waiting = self._generator.permutation(len(self._members)).tolist() + self._waiting
        return self._next(used)

    def state_dict(self) -> dict[str, Any]:
        """Return the generator and the classes still to be drawn."""
        return {"generator": self._generator.bit_generator.state, "waiting": list(self._waiting)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`state_dict` was taken."""
        self._generator.bit_generator.state = state["generator"]
        self._waiting = list(state["waiting"])
