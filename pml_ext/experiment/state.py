"""The state of a run: the objects that training changes, and what it has found so far."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from ..errors import ConfigError, DataError
from . import checkpoint
from .engine import Engine, Objective
from .records import RecordedValues
from .stages import Optimizers, Stage, Stages


@dataclass
class RunHistory:
    """What a run has found so far.

    Args:
        metrics: by phase: ``"raw"``, ``"before"`` ...
        best: the epoch that did best on the held-out classes, None where none was tested yet, and its value.
        warnings: their texts.
        train_seconds: spent on training.
        test_seconds: spent on tests.
        collapsed: whether the embeddings had collapsed at the end of the last epoch.
        skipped: iterations that were left out, since something was not finite.
        pseudo_labels: the cluster of every training image in the last epoch, where clusters are labels.
    """

    metrics: dict[str, Any] = field(default_factory=dict)
    best: dict[str, Any] = field(default_factory=lambda: {"epoch": None, "value": -math.inf})
    warnings: list[str] = field(default_factory=list)
    train_seconds: float = 0.0
    test_seconds: float = 0.0
    collapsed: bool = False
    skipped: int = 0
    pseudo_labels: NDArray[np.int64] | None = None

    def facts(self, epoch: int) -> dict[str, Any]:
        """Return what stands in ``metrics.json`` beside the metrics, after this last epoch."""
        return {
            "seconds": {"train": round(self.train_seconds, 3), "test": round(self.test_seconds, 3)},
            "best_epoch": self.best["epoch"] if self.best["epoch"] is not None else epoch,
            "skipped_iterations": self.skipped,
            "warnings": self.warnings,
        }


@dataclass(frozen=True)
class TrainingState:
    """The objects that training changes: networks, optimizers, and stages with losses, miners and samplers."""

    trunk: nn.Module
    embedder: nn.Module
    optimizers: Optimizers
    stages: Stages

    def objective(self, stage: Stage, recorded: bool) -> tuple[Objective, RecordedValues]:
        """Return what an epoch of a stage minimizes, and the values that each step records if this process does."""
        optimizers, schedulers = dict(self.optimizers.steps), [*self.optimizers.schedules.values()]
        if stage.optimizer is not None:
            optimizers["metric_loss_optimizer"] = stage.optimizer
        if stage.scheduler is not None:
            schedulers.append(stage.scheduler)
        held = RecordedValues(stage.loss, stage.miner, optimizers)
        values = held.values if recorded else tuple
        return Objective(stage.trained, optimizers, stage.mining, schedulers, values), held

    def model(self, epoch: int) -> dict[str, Any]:
        """Return the weights of the networks and of the losses (a learned metric, say), the last stage's first."""
        *earlier, last = (stage.loss.state_dict() for stage in self.stages)
        networks = {"trunk": self.trunk.state_dict(), "embedder": self.embedder.state_dict()}
        return {**networks, "loss": last, "earlier_losses": earlier, "epoch": epoch}

    def load_model(self, state: Mapping[str, Any]) -> None:
        """Take the weights of :meth:`model`."""
        self._load_networks(state)
        losses = [*state.get("earlier_losses", ()), state["loss"]]
        pairs = list(zip(self.stages[-len(losses) :], losses, strict=True))
        for stage, loss in pairs:
            stage.loss.load_state_dict(loss)

    def _load_networks(self, state: Mapping[str, Any]) -> None:
        for name in ("trunk", "embedder"):
            getattr(self, name).load_state_dict(state[name])

    def everything(self, engine: Engine) -> dict[str, Any]:
        """Return all that is needed to go on, random generators included."""
        return {
            "networks": {"trunk": self.trunk.state_dict(), "embedder": self.embedder.state_dict()},
            "engine": engine.state_dict(),
            "optimizers": {key: each.state_dict() for key, each in self.optimizers.steps.items()},
            "schedulers": {key: each.state_dict() for key, each in self.optimizers.schedules.items()},
            "stages": [
                {"sampler": checkpoint.state_of_sampler(stage.sampler), "optimizer": None, "scheduler": None}
                | {name: each.state_dict() for name, each in _parts(stage)}
                for stage in self.stages
            ],
            "random": checkpoint.random_state(),
        }

    def load_everything(self, state: Mapping[str, Any], engine: Engine) -> None:
        """Go back to what :meth:`everything` returned."""
        self._load_networks(state["networks"])
        engine.load_state_dict(state["engine"])
        for group, each in (("optimizers", self.optimizers.steps), ("schedulers", self.optimizers.schedules)):
            for key, owner in each.items():
                owner.load_state_dict(state[group][key])
        pairs = list(zip(self.stages, state["stages"], strict=True))
        for stage, saved in pairs:
            for name, owner in _parts(stage):
                owner.load_state_dict(saved[name])
            checkpoint.set_state_of_sampler(stage.sampler, saved["sampler"])
        checkpoint.set_random_state(state["random"])


def _parts(stage: Stage) -> Iterator[tuple[str, Any]]:
    """Yield name and object of the parts of a stage that have a state, without its sampler."""
    for name in ("loss", "miner", "optimizer", "scheduler"):
        if (part := getattr(stage, name)) is not None:
            yield name, part


def state_to_resume(path: Path, of: str, device: Any, processes: int) -> tuple[dict[str, Any], str] | None:
    """Return the state of a run that goes on, and a warning or ""; None where there is no checkpoint yet.

    Raises:
        ConfigError: the run began with another number of processes.
        DataError: no checkpoint can be read.
    """
    loaded = checkpoint.load_to_resume(path, device, of)
    if loaded is not None:
        _check_processes(path, loaded[0]["processes"], processes)
    return loaded


def state_within(path: Path, of: str, epoch: int, device: Any, processes: int) -> tuple[dict[str, Any] | None, str]:
    """Return the state inside of the epoch after ``epoch``, and a warning or ""."""
    if not path.exists():
        return None, ""
    try:
        state = checkpoint.load(path, device, of)
    except DataError as error:
        return None, str(error)
    if state["epoch"] != epoch + 1:
        return None, ""
    _check_processes(path, state["processes"], processes)
    return state, ""


def _check_processes(path: Path, before: int, now: int) -> None:
    if before != now:
        raise ConfigError(
            f"{path.parent.parent} holds a run of {before} process{'es' * (before > 1)}, not {now}; resume it "
            f"with {f'torchrun --nproc-per-node {before} -m pml_ext' if before > 1 else 'pml-ext'} train ..."
        )
