"""Trials of tuning: runs that are tested on their validation classes alone, and write no report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..recipe import Recipe
from ..records.recorder import Records
from ..training import Listener, Run, train_run
from .launch import locked


def train_and_validate(
    recipe: Recipe,
    name: str,
    folder: Path,
    seed: int,
    device: str,
    data: Path | None,
    listener: Listener,
    report: Callable[[int, float], None],
) -> float:
    """Train a recipe, or resume its run in ``folder``; return the best value that it reached on validation classes.

    The metric is the recipe's ``evaluation.select``. After each epoch ``report`` gets the epoch and the best value
    until then; an error that it raises ends the run.
    """
    run = Run(recipe, name, folder, seed, device, data, listener)
    with locked(folder):
        result = train_run(run, resume=True, after_validation=report, finish=_best_value)
    value: float = result["value"]
    return value


def _best_value(run: Run, _: Records) -> dict[str, Any]:
    """Return the best value: all that a trial's run tests."""
    return {"value": run.history.best["value"]}
