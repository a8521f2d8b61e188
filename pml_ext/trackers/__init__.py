"""Trackers: where the numbers of a run go while it trains, by ``[track]`` of a recipe or ``--track``."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from ..files import read_json, write_text

_IDENTITIES = "trackers.json"


class Tracker(Protocol):
    """The interface of a tracker, which rank 0 alone has; it may also have ``flush()``.

    Names are ``"TABLE/COLUMN"``, such as ``"loss_histories/total_loss"``. A step is the iteration, counted from 1 over
    the whole run; of tables whose name begins with ``accuracies`` it is the epoch.
    """

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Take numbers of a step, which may be NaN; called for several steps at a time, after each epoch or 30 s."""

    def finish(self, status: str, metrics: Mapping[str, Any], report: Path) -> None:
        """End the run, which is ``"finished"``, ``"stopped"`` by a signal or ``"failed"``.

        The contents of ``metrics.json`` and the report are there if it is finished.
        """


def of_epochs(name: str) -> bool:
    """Return whether a value, or a table, is of an epoch and not of an iteration."""
    return name.startswith("accuracies")


def final_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of ``metrics.json`` by phase and metric, ``"after/recall_at_1"``."""
    phases = {
        phase: values for phase, values in metrics.items() if isinstance(values, dict) and "recall_at_1" in values
    }
    return {f"{phase}/{name}": value for phase, values in phases.items() for name, value in values.items()}


def kept_id(folder: Path, tracker: str, new: Callable[[], str]) -> str:
    """Return what a tracker calls the run in a folder, so that a resumed run goes on there; ``new`` makes the first."""
    path = folder / _IDENTITIES
    known = read_json(path) if path.exists() else {}
    if tracker not in known:
        known[tracker] = new()
        write_text(path, json.dumps(known, indent=2) + "\n")
    return str(known[tracker])


def import_tracker(name: str) -> None:
    """Import what one of the core's trackers needs; MissingExtraError if it is not installed."""
    if name in builtin_trackers():
        importlib.import_module(f".{name}", __package__)


def builtin_trackers() -> dict[str, Callable[..., Tracker]]:
    """Return the factories of the core's trackers; see :func:`pml_ext.hookspecs.pml_ext_trackers`."""
    return {"tensorboard": _tensorboard, "wandb": _wandb, "mlflow": _mlflow, "trackio": _trackio}


def _tensorboard(folder: Path, recipe: Mapping[str, Any], iteration: int, epoch: int) -> Tracker:
    """TensorBoard's events, in ``tensorboard/`` of the run's folder."""
    from .tensorboard import TensorBoard

    return TensorBoard(folder, iteration, epoch)


def _wandb(
    folder: Path,
    recipe: Mapping[str, Any],
    project: str = "pml-ext",
    entity: str | None = None,
    group: str | None = None,
) -> Tracker:
    """Weights & Biases; its environment variables, such as ``WANDB_MODE=offline``, hold."""
    from .wandb import WeightsAndBiases

    return WeightsAndBiases(folder, recipe, project, entity, group)


def _mlflow(folder: Path, recipe: Mapping[str, Any], experiment: str = "pml-ext") -> Tracker:
    """MLflow, in the store of ``MLFLOW_TRACKING_URI``."""
    from .mlflow import MLflow

    return MLflow(folder, recipe, experiment)


def _trackio(folder: Path, recipe: Mapping[str, Any], project: str = "pml-ext", space_id: str | None = None) -> Tracker:
    """Trackio, in its local store or a Space."""
    from .trackio import Trackio

    return Trackio(folder, recipe, project, space_id)
