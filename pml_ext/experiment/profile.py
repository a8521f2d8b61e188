"""How the time of a training step divides, and how it compares with that of a bare loop over the same batches."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from ..devices import synchronize
from .batches import BatchReader, EpochBatches, SeededImages
from .engine import Engine, Objective, Step
from .recipe import EngineTable

PARTS = ("reading", "network", "miner", "loss", "check", "optimizer", "records")


@dataclass(frozen=True)
class StepProfile:
    """What was measured of training steps.

    Args:
        milliseconds: of a step, by part: ``"network"`` and ``"loss"`` forward and backward, ``"check"`` the look at
            loss and gradients and the wait for the device. Medians.
        step: of a whole step; the median.
        bare: of the bare loop on the same batch: reading, forward, loss, backward, optimizers, in float32 and not
            compiled; the median.
        ratio: of the two, step by step; the median.
        steps: how many were measured.
    """

    milliseconds: Mapping[str, float]
    step: float
    bare: float
    ratio: float
    steps: int


class _Stopwatch:
    """Adds up the time since the last look under the name of a part."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._last = device, 0.0
        self.seconds = dict.fromkeys(PARTS, 0.0)

    def start(self) -> None:
        synchronize(self._device)
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._last = time.perf_counter()

    def lap(self, part: str) -> None:
        synchronize(self._device)
        now = time.perf_counter()
        self.seconds[part] += now - self._last
        self._last = now


def profile_steps(
    trunk: nn.Module,
    embedder: nn.Module,
    images: Dataset[tuple[Tensor, int]],
    batches: EpochBatches,
    objective: Objective,
    device: torch.device,
    settings: EngineTable | None = None,
    workers: int = 0,
    record: Callable[[Step], None] = lambda _: None,
    warm_up: int = 3,
) -> StepProfile:
    """Trains on batches by the engine and by a bare loop, in turns, so that a busy machine slows both alike.

    The bare loop has copies of the network, the loss, the miner and the optimizers.

    Args:
        trunk: from images to features.
        embedder: from features to embeddings.
        images: items are ``(image, label)``, augmented.
        batches: at least one more than ``warm_up``.
        objective: what is minimized.
        device: where all of it is.
        settings: of the engine.
        workers: processes that read, for each of the two.
        record: called with every step of the engine, as a run records it.
        warm_up: steps at the beginning that do not count.
    """
    bare = _bare_loop(*copy.deepcopy((trunk, embedder, objective)), images, batches, device, workers)
    watch = _Stopwatch(device)
    engine = Engine(trunk, embedder, device, settings, lap=watch.lap)
    reader = BatchReader(SeededImages(images), workers, device, engine.memory_format)
    steps = engine.epoch(reader.read(batches), objective)
    parts: list[dict[str, float]] = []
    whole: list[float] = []
    others: list[float] = []

    def ours() -> None:
        watch.start()
        record(next(steps))
        watch.lap("records")
        parts.append(watch.seconds)
        whole.append(sum(watch.seconds.values()))

    def theirs() -> None:
        started = time.perf_counter()
        next(bare)
        synchronize(device)
        others.append(time.perf_counter() - started)

    for number in range(len(batches)):
        for turn in (ours, theirs) if number % 2 else (theirs, ours):
            turn()
    reader.close()
    parts, whole, others = parts[warm_up:], whole[warm_up:], others[warm_up:]
    return StepProfile(
        {name: 1e3 * statistics.median(each[name] for each in parts) for name in PARTS},
        1e3 * statistics.median(whole),
        1e3 * statistics.median(others),
        statistics.median(one / other for one, other in zip(whole, others, strict=True)),
        len(whole),
    )


def _bare_loop(
    trunk: nn.Module,
    embedder: nn.Module,
    objective: Objective,
    images: Dataset[tuple[Tensor, int]],
    batches: EpochBatches,
    device: torch.device,
    workers: int,
) -> Iterator[None]:
    """What a user would write, a step at a time."""
    indices: Any = [[index for index, _ in batch] for batch in batches]
    for module in (trunk, embedder, objective.loss):
        module.train()
    for pixels, labels in DataLoader(images, batch_sampler=indices, num_workers=workers):
        pixels, labels = pixels.to(device), labels.to(device)
        for optimizer in objective.optimizers.values():
            optimizer.zero_grad()
        embeddings = embedder(trunk(pixels))
        indices_tuple = objective.miner(embeddings, labels) if objective.miner is not None else None
        objective.loss(embeddings, labels, indices_tuple).backward()
        for optimizer in objective.optimizers.values():
            optimizer.step()
        yield
