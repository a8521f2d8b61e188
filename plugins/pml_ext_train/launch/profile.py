"""Times of training steps, compared with a bare loop over the same batches."""

import contextlib
import copy
import itertools
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.benchmark import timer  # waits for the accelerator
from torch.utils.data import DataLoader

from pml_ext.errors import ConfigError

from ..recipe import Overrides, load_recipe
from ..records.recorder import Records
from ..training import Batch, Engine, FeatureReader, Objective, Run, Step, draw, epoch_batches, relabel, worker_context


@dataclass(frozen=True)
class StepProfile:
    """Median times of training steps in milliseconds."""

    step: float  # with the check for finite values and the records
    bare: float  # reading, forward, backward and optimizer step, in float32 and not compiled
    ratio: float  # median of the step-by-step ratios
    steps: int  # number of measured steps


def profile_steps(
    engine: Engine,
    objective: Objective,
    batches: Iterable[Batch],
    plain: Iterable[tuple[Tensor, Tensor]],
    count: int,
    record: Callable[[Step], None] = lambda _: None,
    warm_up: int = 3,
) -> StepProfile:
    """Time ``count`` steps of an engine and a bare loop in turns, so load slows both equally.

    The bare loop reads the same batches, ``plain``, with copies of all parts. The first ``warm_up`` steps do not count.
    """
    network, own = copy.deepcopy((nn.Sequential(*engine.networks.values()), objective))

    def bare_loop() -> Iterator[None]:
        network.train()
        own.loss.train()
        for images, labels in plain:
            images = images.to(engine.device)
            labels = labels.to(engine.device)
            for optimizer in own.optimizers.values():
                optimizer.zero_grad()
            embeddings = network(images)
            indices_tuple = own.miner(embeddings, labels) if own.miner is not None else None
            own.loss(embeddings, labels, indices_tuple).backward()
            for optimizer in own.optimizers.values():
                optimizer.step()
            yield

    steps = map(record, engine.epoch(batches, objective))
    bare = bare_loop()
    times: dict[Any, list[float]] = {steps: [], bare: []}
    for number in range(count):
        both = (steps, bare) if number % 2 else (bare, steps)
        for loop in both:
            started = timer()
            next(loop)
            times[loop].append(1e3 * (timer() - started))
    ours = times[steps][warm_up:]
    theirs = times[bare][warm_up:]
    ratio = statistics.median(one / other for one, other in zip(ours, theirs, strict=True))
    return StepProfile(statistics.median(ours), statistics.median(theirs), ratio, len(ours))


def profile_recipe(
    name: str,
    data: Path | None = None,
    overrides: Overrides = (),
    device: str = "auto",
    threads: int | None = None,
    steps: int = 60,
    warm_up: int = 5,
) -> StepProfile:
    """Profile a recipe's training steps in a temporary folder."""
    recipe = load_recipe(name, overrides)
    before = torch.get_num_threads()
    steps = steps + warm_up
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        stack.callback(torch.set_num_threads, before)
        torch.set_num_threads(threads or before)
        run = Run(recipe, name, Path(folder), 0, device, data)
        if run.data.listed is not None:
            raise ConfigError(
                f"{recipe.data.name} lists {run.data.unit}; choose a recipe of {run.data.noun} with labels"
            )
        run.call_parts("prepare")
        run.epoch = recipe.schedule.epochs  # the last, when a memory is in use and a sampler knows the network
        stage = run.stages.of(run.epoch)
        relabel(run, stage)
        run.call_parts("start_epoch")
        drawn: list[list[int]] = []
        while len(drawn) < steps:
            drawn += draw(stage.sampler, stage.batch_size, min(stage.iterations, steps - len(drawn)))
        views = recipe.data.views
        rows_of_batches = [np.repeat(batch, views).tolist() for batch in drawn]
        objective, held = run.objective(stage, recorded=True)
        labels = run.pseudo_labels
        run.enter_stage(stage)
        stack.callback(run.inputs.close)
        reader = run.inputs.reader_of(stage)
        numbers = itertools.count(1)
        if isinstance(reader, FeatureReader):
            rows = reader.views[0][:]
            known = reader.labels if labels is None else torch.from_numpy(labels)
            plain: Iterable[tuple[Tensor, Tensor]] = ((rows[batch], known[batch]) for batch in rows_of_batches)
        else:
            images = run.data.training_images if labels is None else run.data.training_images.replace(labels=labels)
            workers = recipe.data.workers
            context = worker_context() if workers > 0 else None
            plain = DataLoader(
                images, batch_sampler=rows_of_batches, num_workers=workers, multiprocessing_context=context
            )
        records = stack.enter_context(contextlib.closing(Records(run.folder, 0, 0)))

        def record(step: Step) -> None:
            records.add(next(numbers), held.rows(step))

        batches = reader.read(epoch_batches(drawn, run.seed, run.epoch, views=views), labels)
        return profile_steps(run.engine, objective, batches, plain, len(drawn), record, warm_up)
