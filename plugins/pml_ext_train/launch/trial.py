"""Trials of tuning: runs tested only on validation classes."""

from collections.abc import Callable
from pathlib import Path

from ..recipe import Recipe
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
    """Train or resume a recipe; return its best ``evaluation.select`` on validation classes.

    ``report`` receives the epoch and the best value after each epoch; its errors end the run.
    """
    run = Run(recipe, name, folder, seed, device, data, listener)
    with locked(folder):
        result = train_run(
            run, resume=True, after_validation=report, finish=lambda run, _: {"value": run.history.best["value"]}
        )
    value: float = result["value"]
    return value
