"""Warm-up: learning rates that rise linearly to those of the schedule, in the first epochs of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch


def warmup_factor(epochs: float, epoch: int, iteration: int, iterations: int) -> float:
    r"""Return the factor of the learning rate in iteration i of the I iterations of epoch e, both counted from 1.

    .. math:: \min(1, (e - 1 + i / I) / W)

    ``epochs`` is W, above 0. The last iteration of the warm-up has the factor 1, and no iteration has 0.
    """
    return min(1.0, (epoch - 1 + iteration / iterations) / epochs)


class WarmUp:
    """The factors of the learning rates of some optimizers in the iterations of an epoch.

    They hold within an iteration alone. Before and after it, the optimizers have the learning rates of the schedule,
    so that schedules, stages and checkpoints do not depend on the warm-up.

    Args:
        epochs: length of the warm-up; may be a part of an epoch.
        epoch: the epoch of the run, from 1.
        iterations: number of iterations of the epoch.
        finished: number of its iterations that are over, in a run that is resumed.
        optimizers: those whose learning rates are multiplied.
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
        """Multiply the learning rates of the next iteration, within the context."""
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
