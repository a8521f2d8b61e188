"""The story of a run: prepare, test, train epoch after epoch, test again, report."""

import functools
import math
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from pml_ext import registry
from pml_ext.distributed import from_rank_0, wait_for_all_ranks
from pml_ext.errors import StoppedError

from ..recipe import flat
from ..records import NETWORK, REPORT, Records, build_tracker, import_tracker, write_run_json
from . import signals
from .checkpointing import Checkpointer
from .checks import check_validation, check_zero_loss, warn_of_collapse, warn_of_small_batches, warn_of_zero_loss
from .closed_form import fit_embedder
from .devices import deterministic_algorithms
from .epoch import begin_epoch, check_weights, stopping_for_nonfinite
from .listener import forward_notes, forward_warnings
from .pseudo_labels import relabel
from .run import Run
from .state import start_from
from .validation import test_before, validate

Metrics = dict[str, Any]


def train_run(
    run: Run,
    finish: Callable[[Run, Records], Metrics],
    resume: bool = False,
    after_validation: Callable[[int, float], None] | None = None,
) -> Metrics:
    """Train, test and write everything; return the contents of ``metrics.json``.

    ``after_validation`` receives each validated epoch and the best value so far. ``finish`` tests the trained network
    and writes the results. Raises TrainingError for NaN or infinite values, DataError for an unusable checkpoint,
    MissingExtraError for a missing tracker, and StoppedError after a signal.
    """
    for table in run.recipe.track:
        import_tracker(table.name)
    check_validation(run)
    with deterministic_algorithms(run.recipe.engine.deterministic):
        run.inputs.compute(run.stages)
        warn_of_small_batches(run)
        checkpointer = prepare(run, resume)
        records = open_records(run, len(checkpointer.finished_losses()))  # None on all ranks but 0
        return train_epochs(run, records, checkpointer, after_validation, finish)


def train_epochs(
    run: Run,
    records: Records | None,
    checkpointer: Checkpointer,
    after_validation: Callable[[int, float], None] | None,
    finish: Callable[[Run, Records], Metrics],
) -> Metrics:
    """Train the remaining epochs and test; all ranks return ``metrics.json``."""
    status = "failed"
    metrics: Metrics = {}
    try:
        if run.epoch < run.epochs:
            run.inputs.compute_views()  # not inside of an epoch, which a signal would not interrupt
        while run.epoch < run.epochs:
            run.epoch += 1
            with signals.deferred():
                train_and_validate(run, records, checkpointer, after_validation)
            signals.check(f"after epoch {run.epoch}; its checkpoint is written")
        if records is not None:
            metrics = finish(run, records)
        metrics = from_rank_0(metrics)
        status = "finished"
        return metrics
    except StoppedError:
        status = "stopped"
        raise
    finally:
        run.inputs.close()
        if records is not None:
            records.finish(status, metrics, run.folder / REPORT)


# Before the first epoch


def prepare(run: Run, resume: bool) -> Checkpointer:
    """Restore a resumed run, or test the untrained network and prepare components."""
    _ = run.engine  # raises its errors before the tests
    checkpointer = Checkpointer(run)
    restored = resume and checkpointer.resume()
    if not restored:
        run.cut = run.inputs.cut_of(run.stages[0])
        if run.recipe.model.init is not None:
            start_from(run, Path(run.recipe.model.init))
        fit_embedder(run)
        test_before(run, checkpointer)
        relabel(run, run.stages[0])
        run.call_parts("prepare")
    if resume:
        checkpointer.find_unfinished_epoch()
    wait_for_all_ranks()  # until all have read the checkpoints; rank 0 then deletes one
    if run.rank == 0:
        checkpointer.forget_epoch()
        write_run_json(run.folder, NETWORK, run.data.network_json(run.network.features))
    return checkpointer


def open_records(run: Run, finished_iterations: int = 0) -> Records | None:
    """Open rank 0's records and trackers; a resumed run continues after its checkpoint.

    ``finished_iterations`` counts an unfinished epoch's iterations.
    """
    if run.rank > 0:
        return None
    iteration = run.stages.iterations_until(run.epoch) + finished_iterations
    settings = flat(run.recipe.as_dict())
    trackers = []
    for table in run.recipe.track:
        factory = functools.partial(build_tracker, table, run.folder, settings, iteration, run.epoch)
        trackers.append((_title(table.name), factory))
    return Records(run.folder, iteration, run.epoch, run.warn, trackers)


def _title(name: str) -> str:
    """A tracker's name, with its plugin if that is not shipped."""
    plugin, _ = registry.find("tracker", name)
    record = registry.record_of(plugin)
    if record is None or record.shipped:
        return name
    return f"{name} of the plugin {plugin!r}"


# An epoch


def train_and_validate(
    run: Run,
    records: Records | None,
    checkpointer: Checkpointer,
    after_validation: Callable[[int, float], None] | None,
) -> None:
    """Train an epoch; rank 0 then validates, writes the checkpoint, and reports loss and speed."""
    iterations_before = len(checkpointer.finished_losses())  # of this epoch, before the run was interrupted
    started = time.perf_counter()
    losses = train_epoch(run, records, checkpointer)
    seconds = time.perf_counter() - started
    run.history.train_seconds += seconds
    if records is None:
        return
    validate(run, records, checkpointer)
    checkpointer.save_epoch()
    if after_validation is not None and run.history.best["epoch"] is not None:
        after_validation(run.epoch, run.history.best["value"])
    iterations = len(losses) - iterations_before
    tell_speed(run, losses, iterations, seconds, time.perf_counter() - started)


def train_epoch(run: Run, records: Records | None, checkpointer: Checkpointer) -> list[float]:
    """Train one epoch; return its losses, including those before an interruption.

    Raises TrainingError for non-finite values, and for losses that stay 0.
    """
    epoch = begin_epoch(run, checkpointer, recorded=records is not None)
    with (
        stopping_for_nonfinite(epoch),
        forward_warnings(run.warn),
        forward_notes(run.listener.step),
        epoch.reader.naming_images(),
    ):
        for step in epoch.steps():
            warn_of_zero_loss(epoch)
            if records is not None:
                records.add(epoch.iteration, epoch.recorded.rows(step))
            run.listener.iteration(run.epoch, len(epoch.losses), len(epoch.batches), step.loss)
            if len(epoch.losses) < len(epoch.batches):
                checkpointer.between_iterations(records, epoch.losses)
    check_weights(epoch)
    check_zero_loss(epoch)
    warn_of_collapse(epoch, step.embeddings)
    return epoch.losses


def tell_speed(run: Run, losses: list[float], iterations: int, seconds: float, seconds_with_tests: float) -> None:
    """Report an epoch's mean loss, images per second, and time left in its stage."""
    stage = run.stages.of(run.epoch)
    left = run.stages.iterations_until(min(stage.last, run.epochs)) - run.stages.iterations_until(run.epoch)
    time_left = f"{timedelta(seconds=round(left / iterations * seconds_with_tests))} left"
    if stage.last < run.epochs:
        time_left += f" of stage {run.stages.index(stage) + 1}"
    rate = iterations * stage.batch_size / seconds
    mean = np.mean([loss for loss in losses if math.isfinite(loss)] or [math.nan])
    run.listener.step(f"epoch {run.epoch} of {run.epochs}: loss {mean:.4f}, {rate:.0f} {run.data.unit}/s, {time_left}")
