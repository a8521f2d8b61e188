"""Tests of the untrained network, and between epochs."""

import math
import time

from pml_ext.errors import TrainingError

from ..recipe import stage_before_whole
from ..records import CURVE, VALIDATION, Records
from .checkpointing import Checkpointer
from .evaluation import evaluate_split, metrics_before
from .run import Run


def test_before(run: Run, checkpointer: Checkpointer) -> None:
    """On rank 0, test raw pixels or vectors and the untrained network."""
    if run.rank > 0 or not run.recipe.evaluation.baselines or not run.data.labeled:
        return
    untrained = "raw vectors and the untrained head" if run.data.has_vectors else "raw pixels and the untrained network"
    run.listener.step(f"testing {untrained}")
    started = time.perf_counter()
    run.history.metrics = metrics_before(run)
    checkpointer.save_untrained()
    run.history.baseline_seconds += time.perf_counter() - started


def validate(run: Run, records: Records, checkpointer: Checkpointer) -> None:
    """Run and record the tests between epochs; save the best weights."""
    started = time.perf_counter()
    table = run.recipe.evaluation
    is_last = run.epoch == run.recipe.schedule.epochs
    measured: dict[str, dict[str, float]] = {}
    stage = stage_before_whole(run.recipe)
    if table.baselines and stage is not None and run.epoch == stage[1]:
        run.listener.step(f"testing epoch {run.epoch}, before the whole network trains")
        run.history.metrics[stage[0]] = evaluate_split(run, run.queries)
    if table.test_every and (is_last or run.epoch % table.test_every == 0):
        run.listener.step(f"testing epoch {run.epoch}")
        measured[run.queries] = evaluate_split(run, run.queries, clustering=False)
    if table.select is not None and (is_last or run.epoch % table.every == 0):
        run.listener.step(f"validating epoch {run.epoch}")
        deciding = run.queries if table.select_on == "test" else "validation"
        measured[deciding] = evaluate_split(run, deciding)
        if table.select not in measured[deciding]:
            raise TrainingError(f"evaluation.select: the metric {table.select!r} of a plugin failed; choose another")
        value = measured[deciding][table.select]
        if math.isnan(value):
            run.warn(f"evaluation.select: {table.select} of {deciding} is NaN; an epoch with NaN is not chosen")
        if value > run.history.best["value"]:
            run.history.best = {"epoch": run.epoch, "value": value}
            checkpointer.save_best()
    for split, metrics in measured.items():
        kind = VALIDATION if split == "validation" else CURVE
        records.add(run.epoch, {kind: metrics})
    records.save()
    run.history.test_seconds += time.perf_counter() - started
