"""The records of a run: record-keeper's tables and the recipe's trackers."""

from __future__ import annotations

import functools

from pml_ext import registry

from ..recipe import flat
from ..records import Records, build_tracker
from .run import Run


def open_records(run: Run, finished_iterations: int = 0) -> Records | None:
    """Return the records and trackers of a run, continued after the last checkpoint; None unless rank 0.

    ``finished_iterations`` counts the completed iterations of an unfinished epoch.
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
    """Return a tracker's name, with its plugin unless this distribution ships it."""
    plugin, _ = registry.find("tracker", name)
    record = registry.record_of(plugin)
    if record is None or record.shipped:
        return name
    return f"{name} of the plugin {plugin!r}"
