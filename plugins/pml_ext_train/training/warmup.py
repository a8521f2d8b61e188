"""Warm-up: learning rates that rise linearly in the first epochs of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch


def warmup_factor(epochs: float, epoch: int, iteration: int, iterations: int) -> float:
    r"""Return the factor of the learning rate in iteration i of I in epoch e, both from 1.

    .. math:: \min(1, (e - 1 + i / I) / W)

    ``epochs`` is W, above 0. The last iteration of the warm-up has factor 1.
    """
    return min(1.0, (epoch - 1 + iteration / iterations) / epochs)


class WarmUp:
    """Factors of the learning rates of some optimizers during an epoch.

    They apply only within an iteration, so schedules, stages and checkpoints do not depend on them.

    Args:
        epochs: length of the warm-up; may be a fraction.
        epoch: the epoch of the run, from 1.
        iterations: iterations of the epoch.
        finished: iterations that a resumed run has completed.
        optimizers: the optimizers to warm up.
    """

    def __init__(
        self, epochs: float, epoch: int, iterations: int, finished: int, optimizers: Iterable[torch.optim.Optimizer]
    ) -> None:
        self._epochs = epochs
        self._epoch = epoch
        self._iterations = iterations
        self._finished = finished
        self._optimizers = list(optimizers)

    @contextmanager
    def next_iteration(self) -> Iterator[None]:
        """Multiply the learning rates of the next iteration within the context."""
        self._finished += 1
        factor = warmup_factor(self._epochs, self._epoch, self._finished, self._iterations)
        groups = []  # looked up in each iteration, since loading a checkpoint replaces them
        for optimizer in self._optimizers:
            groups += optimizer.param_groups
        scheduled = [group["lr"] for group in groups]
        try:
            for group in groups:
                group["lr"] *= factor
            yield
        finally:
            for group, rate in zip(groups, scheduled, strict=True):
                group["lr"] = rate
