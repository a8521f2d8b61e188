"""The story of a run: prepare, test, train epoch after epoch, test again, report."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np

from ..distributed import from_rank_0, wait_for_all_ranks
from ..distributed.devices import deterministic_algorithms
from ..errors import StoppedError
from . import outcome, signals
from .batches import draw_for_all, indices_of, with_indices
from .checkpointing import Checkpointer
from .collapse import warn_of_collapse
from .engine import NotFiniteError, Step
from .folder import NETWORK, REPORT, write_run_json
from .listener import forward_warnings
from .pseudo_labels import relabel
from .recorded_values import RecordedValues
from .recording import open_records
from .records import Records
from .results import finish as test_and_report
from .run import Run
from .trackers import import_tracker
from .validation import test_before, validate
from .zero_loss import check_zero_loss, warn_of_zero_loss

Metrics = dict[str, Any]


def train_run(
    run: Run,
    resume: bool = False,
    after_validation: Callable[[int, float], None] | None = None,
    finish: Callable[[Run, Records], Metrics] = test_and_report,
) -> Metrics:
    """Train, test and write everything; return the contents of ``metrics.json``.

    ``after_validation`` gets each validated epoch and the best value so far. ``finish`` tests the trained network and
    writes the results.

    Raise TrainingError if the loss, an embedding, a gradient or a weight becomes NaN or infinite, DataError for a
    checkpoint that is damaged or does not match the run, MissingExtraError for a tracker that is not installed, and
    StoppedError if a signal ends the run.
    """
    for table in run.recipe.track:
        import_tracker(table.name)
    outcome.check_validation(run)
    with deterministic_algorithms(run.recipe.engine.deterministic):
        run.compute_frozen_features()
        outcome.warn_of_small_batches(run)
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
    """Train the epochs that are left, and test; return the contents of ``metrics.json``, on all ranks."""
    status = "failed"
    metrics: Metrics = {}
    try:
        if run.epoch < run.epochs:
            run.compute_views()  # not inside of an epoch, which a signal would not interrupt
        while run.epoch < run.epochs:
            run.epoch += 1
            with signals.deferred():
                epoch(run, records, checkpointer, after_validation)
            signals.check(f"after epoch {run.epoch}, whose checkpoint is written")
        if records is not None:
            metrics = finish(run, records)
        metrics = from_rank_0(metrics)
        status = "finished"
        return metrics
    except StoppedError:
        status = "stopped"
        raise
    finally:
        run.close_readers()
        if records is not None:
            records.finish(status, metrics, run.folder / REPORT)


# Before the first epoch


def prepare(run: Run, resume: bool) -> Checkpointer:
    """Restore the state of a resumed run, or begin a new one; return what writes its checkpoints.

    A new run tests the untrained network, and prepares the components.
    """
    _ = run.engine  # raises its errors before the tests
    checkpointer = Checkpointer(run)
    restored = resume and checkpointer.resume()
    if not restored:
        run.initialize_weights()
        test_before(run, checkpointer)
        relabel(run, run.stages[0])
        run.call_parts("prepare")
    if resume:
        checkpointer.find_unfinished_epoch()
    wait_for_all_ranks()  # until all have read the checkpoints, of which rank 0 deletes one
    if run.rank == 0:
        checkpointer.forget_epoch()
        write_run_json(run.folder, NETWORK, run.data.network_json(run.network.features))
    return checkpointer


# An epoch


def epoch(
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
    """Train one epoch and return its losses, those before an interruption included.

    Warn if the embeddings of its last batch have collapsed. TrainingError for values that are NaN or infinite, and for
    losses that stay 0.
    """
    stage = run.stages.of(run.epoch)
    run.enter_stage(stage)
    losses = checkpointer.finished_losses()  # one for each finished iteration
    with signals.at_once():  # nothing of the epoch is lost yet
        unfinished = checkpointer.unfinished
        relabel(run, stage, None if unfinished is None else unfinished["pseudo_labels"])
        run.call_parts("start_epoch")
        run.changed()
        objective, recorded = run.objective(stage, recorded=records is not None, finished=len(losses))
        batches, indices_tuples = draw_for_all(  # the tuples only where data are listed pairs or triplets
            stage.sampler, stage.batch_size, stage.iterations, run.seed, run.epoch, run.recipe.data.views
        )
    reader = run.reader_of(stage)
    finished = len(losses)
    reading = reader.read(batches[finished:], run.pseudo_labels)
    if indices_tuples is not None:
        indices_tuples = indices_tuples[finished:]
    checkpointer.enter_epoch()
    try:
        with forward_warnings(run.warn), reader.naming_images():
            for step in run.engine.epoch(with_indices(reading, indices_tuples, run.device), objective):
                images_of_batch = indices_of(batches[len(losses)])
                run.changed()
                run.call_after_step(stage, images_of_batch, step)
                losses.append(step.loss)
                warn_of_zero_loss(run, stage, losses, batches)
                record(run, records, recorded, losses, step)
                run.listener.iteration(run.epoch, len(losses), len(batches), step.loss)
                if len(losses) < len(batches):
                    checkpointer.between_iterations(records, losses)
    except NotFiniteError as error:
        iteration = run.stages.iterations_until(run.epoch - 1) + len(losses) + 1
        problem = str(error)
        if iteration == 1 and "; " not in problem:
            problem += "; no step was taken yet: look at the images, the trunk and the loss"
        raise outcome.stopped(run, problem, f"in iteration {iteration} (epoch {run.epoch})") from error
    outcome.check_weights(run, stage)
    check_zero_loss(run, stage, losses, batches)
    warn_of_collapse(run, step.embeddings, indices_of(batches[-1]))
    return losses


def record(run: Run, records: Records | None, recorded: RecordedValues, losses: list[float], step: Step) -> None:
    """Record the values of the last iteration."""
    run.history.skipped += step.skipped
    if records is not None:
        iteration = run.stages.iterations_until(run.epoch - 1) + len(losses)
        records.add(iteration, recorded.rows(step))


def tell_speed(run: Run, losses: list[float], iterations: int, seconds: float, seconds_with_tests: float) -> None:
    """Report the mean loss of an epoch, images per second, and the time that is left of its stage.

    Steps of the next stage may take another time, for example where more of the trunk is trained.
    """
    stage = run.stages.of(run.epoch)
    left = run.stages.iterations_until(min(stage.last, run.epochs)) - run.stages.iterations_until(run.epoch)
    time_left = f"{timedelta(seconds=round(left / iterations * seconds_with_tests))} left"
    if stage.last < run.epochs:
        time_left += f" of stage {run.stages.index(stage) + 1}"
    rate = iterations * stage.batch_size / seconds
    finite = [loss for loss in losses if math.isfinite(loss)]
    mean = np.mean(finite or [math.nan])
    run.listener.step(f"epoch {run.epoch} of {run.epochs}: loss {mean:.4f}, {rate:.0f} {run.data.unit}/s, {time_left}")
