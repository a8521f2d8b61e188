"""How the time of a training step divides, and how it compares with that of a bare loop over the same batches."""

from __future__ import annotations

import copy
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from ..devices import choose_device, synchronize
from ..errors import ConfigError
from .batches import BatchReader, EpochBatches, SeededImages, draw
from .engine import Engine, Objective, Step
from .recipe import EngineTable, load_recipes
from .records import Records
from .run import Run

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

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


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
    freeze_batch_norm: bool = False,
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
        freeze_batch_norm: whether the trunk's batch norms keep their statistics; the bare loop's do not.
    """
    bare = _bare_loop(*copy.deepcopy((trunk, embedder, objective)), images, batches, device, workers)
    watch = _Stopwatch(device)
    engine = Engine(trunk, embedder, device, settings, freeze_batch_norm, watch.lap)
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


def profile_recipe(
    name: str,
    data: Path | None = None,
    overrides: Iterable[str] = (),
    device: str = "auto",
    threads: int | None = None,
    steps: int = 60,
    seed: int = 0,
    warm_up: int = 5,
) -> StepProfile:
    """Measures training steps of a recipe: of its own loss, with what a run records, in a folder that is removed.

    Args:
        name: a recipe's name or file.
        data: the folder of the data, where the data set wants one.
        overrides: ``KEY=VALUE`` pairs.
        device: ``"auto"``, ``"cpu"``, ``"cuda"``, ``"mps"`` or ``"xpu"``.
        threads: of torch on the CPU, while measuring; None leaves them.
        steps: how many are measured.
        seed: of all generators.
        warm_up: steps before them that do not count.

    Raises:
        ConfigError: a recipe with several variants, a wrong device or number.
    """
    for what, value in (("steps", steps), ("threads", threads)):
        if value is not None and value < 1:
            raise ConfigError(f"{what} must be at least 1, not {value}")
    recipes = load_recipes(name, overrides)
    if len(recipes) > 1:
        raise ConfigError(f"{name} has {len(recipes)} variants; wanted one of them, for example {next(iter(recipes))}")
    ((full_name, recipe),) = recipes.items()
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads or before)
        with tempfile.TemporaryDirectory() as folder:
            run = Run(recipe, full_name, Path(folder), seed, choose_device(device), data)
            return _profile_run(run, steps, warm_up)
    finally:
        torch.set_num_threads(before)


def _profile_run(run: Run, steps: int, warm_up: int) -> StepProfile:
    run.call_parts("prepare")
    run.epoch = run.recipe.schedule.epochs  # the last, when a memory is in use and a sampler knows the network
    stage = run.stages.of(run.epoch)
    run.relabel(stage)
    labels, images = run.pseudo_labels, run.training_images
    if labels is not None:
        images = images.replace(labels=labels, class_names=[])
    run.call_parts("start_epoch")
    joined: list[list[int]] = []
    while len(joined) < steps + warm_up:
        joined += draw(stage.sampler, stage.batch_size, min(stage.iterations, steps + warm_up - len(joined)))
    objective, held = run.trained.objective(stage, recorded=True)
    records, done = Records(run.folder, 0, 0), 0

    def record(step: Step) -> None:
        nonlocal done
        done += 1
        records.add(done, held.rows(step))

    try:
        return profile_steps(
            run.trunk,
            run.embedder,
            images,
            EpochBatches(joined, run.seed, run.epoch),
            objective,
            run.device,
            run.recipe.engine,
            run.recipe.data.workers,
            record,
            warm_up,
            run.recipe.model.freeze_batch_norm,
        )
    finally:
        records.close()
