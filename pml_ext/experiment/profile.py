"""Times of training steps, and their ratio to a bare loop over the same batches."""

from __future__ import annotations

import contextlib
import copy
import itertools
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.benchmark import timer  # waits for the accelerator
from torch.utils.data import DataLoader, Dataset

from ..devices import choose_device
from ..errors import ConfigError
from .batches import Batches, BatchReader, draw, epoch_batches
from .engine import Engine, Objective, Step
from .features import FeatureReader
from .recipe import load_recipes
from .records import Records
from .run import Run


@dataclass(frozen=True)
class StepProfile:
    """Median times of training steps in milliseconds."""

    step: float  # with the check for finite values and the records
    bare: float  # of a loop that reads, goes forward and backward and steps, in float32 and not compiled
    ratio: float  # of the two, step by step
    steps: int  # that were measured


def profile_steps(
    engine: Engine,
    images: Dataset[tuple[Tensor, int]],
    batches: Batches,
    objective: Objective,
    workers: int = 0,
    record: Callable[[Step], None] = lambda _: None,
    warm_up: int = 3,
    features: FeatureReader | None = None,
) -> StepProfile:
    """Time an engine and a bare loop over the same batches, in turns, so that a busy machine slows both alike.

    The bare loop has copies of the network, the loss, the miner and the optimizers. ``warm_up`` steps do not count.
    With ``features`` these are read instead of images; the bare loop takes rows of a tensor that has all of them.
    """
    network, own = copy.deepcopy((nn.Sequential(*engine.networks.values()), objective))

    def bare_loop() -> Iterator[None]:
        indices: Any = [[index for index, _ in batch] for batch in batches]
        network.train()
        own.loss.train()
        plain: Iterable[tuple[Tensor, Tensor]] = DataLoader(images, batch_sampler=indices, num_workers=workers)
        if features is not None:
            rows, own_labels = features.views[0][:], features.labels
            plain = ((rows[batch], own_labels[batch]) for batch in indices)
        for pixels, labels in plain:
            pixels, labels = pixels.to(engine.device), labels.to(engine.device)
            for optimizer in own.optimizers.values():
                optimizer.zero_grad()
            embeddings = network(pixels)
            indices_tuple = own.miner(embeddings, labels) if own.miner is not None else None
            own.loss(embeddings, labels, indices_tuple).backward()
            for optimizer in own.optimizers.values():
                optimizer.step()
            yield

    reader = features or BatchReader(images, workers, engine.device, engine.memory_format)
    steps, bare = map(record, engine.epoch(reader.read(batches), objective)), bare_loop()
    times: dict[Any, list[float]] = {steps: [], bare: []}
    for number in range(len(batches)):
        for loop in (steps, bare) if number % 2 else (bare, steps):
            started = timer()
            next(loop)
            times[loop].append(1e3 * (timer() - started))
    reader.close()
    ours, theirs = times[steps][warm_up:], times[bare][warm_up:]
    ratio = statistics.median(one / other for one, other in zip(ours, theirs, strict=True))
    return StepProfile(statistics.median(ours), statistics.median(theirs), ratio, len(ours))


def profile_recipe(
    name: str,
    data: Path | None = None,
    overrides: Iterable[str] = (),
    device: str = "auto",
    threads: int | None = None,
    steps: int = 60,
    warm_up: int = 5,
) -> StepProfile:
    """Profile training steps of a recipe in a temporary folder; arguments as of :func:`pml_ext.experiment.train`."""
    recipes = load_recipes(name, overrides)
    if len(recipes) > 1:
        raise ConfigError(f"{name} has {len(recipes)} variants; wanted one of them, for example {next(iter(recipes))}")
    ((full_name, recipe),) = recipes.items()
    before, steps = torch.get_num_threads(), steps + warm_up
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        stack.callback(torch.set_num_threads, before)
        torch.set_num_threads(threads or before)
        run = Run(recipe, full_name, Path(folder), 0, choose_device(device), data)
        run.call_parts("prepare")
        run.epoch = recipe.schedule.epochs  # the last, when a memory is in use and a sampler knows the network
        stage = run.stages.of(run.epoch)
        run.relabel(stage)
        images = run.training_images
        if run.pseudo_labels is not None:
            images = images.replace(labels=run.pseudo_labels, class_names=[])
        run.call_parts("start_epoch")
        batches: list[list[int]] = []
        while len(batches) < steps:
            batches += draw(stage.sampler, stage.batch_size, min(stage.iterations, steps - len(batches)))
        objective, held = run.objective(stage, recorded=True)
        reader, numbers = run.reader() if run.frozen else None, itertools.count(1)
        features = reader if isinstance(reader, FeatureReader) else None
        records = stack.enter_context(contextlib.closing(Records(run.folder, 0, 0)))
        drawn, workers = epoch_batches(batches, run.seed, run.epoch), recipe.data.workers

        def record(step: Step) -> None:
            records.add(next(numbers), held.rows(step))

        return profile_steps(run.engine, images, drawn, objective, workers, record, warm_up, features)
