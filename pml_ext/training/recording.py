"""What a run records, and where: record-keeper's tables and the recipe's trackers."""

from __future__ import annotations

import functools

from ..recipe import flat
from .records import Records
from .run import Run
from .trackers import build_tracker


def open_records(run: Run, finished_iterations: int = 0) -> Records | None:
    """Return the records of a run and its trackers, which go on after the last checkpoint; None but on rank 0.

    ``finished_iterations`` are those of an unfinished epoch.
    """
    if run.rank > 0:
        return None
    iteration = run.stages.iterations_until(run.epoch) + finished_iterations
    settings = flat(run.recipe.as_dict())
    trackers = []
    for table in run.recipe.track:
        factory = functools.partial(build_tracker, table, run.folder, settings, iteration, run.epoch)
        trackers.append((table.name, factory))
    return Records(run.folder, iteration, run.epoch, run.warn, trackers)
