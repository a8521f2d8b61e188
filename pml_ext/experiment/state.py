"""What a run has trained and found so far, as its checkpoints hold it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from ..errors import ConfigError, DataError
from ..samplers import sampler_state, set_sampler_state
from . import checkpoint
from .checkpoint import part
from .engine import Engine, Objective
from .plain import attributes
from .records import RecordedValues
from .stages import Optimizers, Stage, Stages


@dataclass
class Account:
    """What a run has found so far.

    Args:
        metrics: by phase: ``"raw"``, ``"before"`` ...
        best: the epoch that did best on the held-out classes, None where none was tested yet, and its value.
        warnings: their texts.
        train_seconds: spent on training.
        test_seconds: spent on tests.
        collapsed: whether the embeddings lay on one point at the end of the last epoch.
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
        """What of it stands in ``metrics.json``, beside the metrics.

        Args:
            epoch: the last one.
        """
        return {
            "seconds": {"train": round(self.train_seconds, 3), "test": round(self.test_seconds, 3)},
            "best_epoch": self.best["epoch"] if self.best["epoch"] is not None else epoch,
            "skipped_iterations": self.skipped,
            "warnings": self.warnings,
        }


@dataclass(frozen=True)
class Trained:
    """What training changes, beside random generators.

    Args:
        trunk: from images to features.
        embedder: from features to embeddings.
        optimizers: of the two.
        stages: with losses, miners, samplers and their optimizers.
    """

    trunk: nn.Module
    embedder: nn.Module
    optimizers: Optimizers
    stages: Stages

    def objective(self, stage: Stage, recorded: bool) -> tuple[Objective, RecordedValues]:
        """What an epoch minimizes, and the places of what is recorded of each step.

        Args:
            stage: of the epoch.
            recorded: whether this process records.
        """
        optimizers, schedulers = dict(self.optimizers.steps), [*self.optimizers.schedules.values()]
        if stage.optimizer is not None:
            optimizers["metric_loss_optimizer"] = stage.optimizer
        if stage.scheduler is not None:
            schedulers.append(stage.scheduler)
        held = RecordedValues(stage.loss, stage.miner, optimizers)
        values = held.values if recorded else tuple
        return Objective(stage.trained, optimizers, stage.mining, schedulers, values), held

    def model(self, epoch: int) -> dict[str, Any]:
        """The weights of the networks and of the losses (a learned metric, say): the last stage's, and the others'.

        Args:
            epoch: of the weights.
        """
        *earlier, last = (stage.loss.state_dict() for stage in self.stages)
        return {
            "trunk": self.trunk.state_dict(),
            "embedder": self.embedder.state_dict(),
            "loss": last,
            "earlier_losses": earlier,
            "epoch": epoch,
        }

    def take_model(self, state: Mapping[str, Any]) -> None:
        """Takes the weights of :meth:`model`."""
        self._take_networks(state)
        losses = [*state.get("earlier_losses", ()), state["loss"]]
        with part("the number of its losses"):
            pairs = list(zip(self.stages[-len(losses) :], losses, strict=True))
        for stage, loss in pairs:
            with part(f"the {type(stage.loss).__name__}"):
                stage.loss.load_state_dict(loss)

    def _take_networks(self, state: Mapping[str, Any]) -> None:
        for name, network in (("trunk", self.trunk), ("embedder", self.embedder)):
            with part(f"the {name}"):
                network.load_state_dict(state[name])

    def everything(self, engine: Engine) -> dict[str, Any]:
        """All that is needed to go on, random generators included.

        Args:
            engine: trains the networks.
        """
        return {
            "networks": {"trunk": self.trunk.state_dict(), "embedder": self.embedder.state_dict()},
            "engine": engine.state_dict(),
            "optimizers": {key: optimizer.state_dict() for key, optimizer in self.optimizers.steps.items()},
            "schedulers": {key: scheduler.state_dict() for key, scheduler in self.optimizers.schedules.items()},
            "stages": [
                {
                    "loss": stage.loss.state_dict(),
                    "miner": stage.miner.state_dict() if stage.miner is not None else {},
                    "sampler": _sampler_state(stage.sampler),
                    "optimizer": stage.optimizer.state_dict() if stage.optimizer is not None else None,
                    "scheduler": stage.scheduler.state_dict() if stage.scheduler is not None else None,
                }
                for stage in self.stages
            ],
            "random": checkpoint.random_state(),
        }

    def take_everything(self, state: Mapping[str, Any], engine: Engine) -> None:
        """Goes back to what :meth:`everything` gave.

        Args:
            state: what it gave.
            engine: trains the networks.
        """
        self._take_networks(state["networks"])
        with part("the engine's state"):
            engine.load_state_dict(state["engine"])
        for what, taken in (("optimizers", self.optimizers.steps), ("schedulers", self.optimizers.schedules)):
            for key, each in taken.items():
                with part(f"the {key} among the {what}"):
                    each.load_state_dict(state[what][key])
        with part("the number of its stages"):
            pairs = list(zip(self.stages, state["stages"], strict=True))
        for stage, saved in pairs:
            for name, owner in (
                ("loss", stage.loss),
                ("miner", stage.miner),
                ("optimizer", stage.optimizer),
                ("scheduler", stage.scheduler),
            ):
                if owner is not None:
                    with part(f"the {name} {type(owner).__name__}"):
                        owner.load_state_dict(saved[name])
            with part(f"the sampler {type(stage.sampler).__name__}"):
                set_sampler_state(stage.sampler, saved["sampler"])
        with part("the state of the random generators"):
            checkpoint.set_random_state(state["random"])


def _sampler_state(sampler: Any) -> Any:
    """A sampler's own state, or the attributes of it that a checkpoint can hold."""
    return sampler_state(sampler) if hasattr(sampler, "state_dict") else attributes(sampler)


def state_to_resume(path: Path, of: str, device: Any, processes: int) -> tuple[dict[str, Any], str] | None:
    """The state of a run that is to go on; None where there is no checkpoint yet.

    Args:
        path: ``last.pt``.
        of: the run's :func:`checkpoint.identity`.
        device: where its tensors go.
        processes: how many there are now.

    Returns:
        The state, and what to tell of it: "" unless it is that of ``previous.pt``.

    Raises:
        ConfigError: the run began with another number of processes.
        DataError: no checkpoint can be read.
    """
    loaded = checkpoint.load_to_resume(path, device, of)
    if loaded is not None:
        _check_processes(path, loaded[0]["processes"], processes)
    return loaded


def state_within(path: Path, of: str, epoch: int, device: Any, processes: int) -> tuple[dict[str, Any] | None, str]:
    """The state inside of an epoch, where a signal ended the run, and what to tell of it.

    Args:
        path: ``within.pt``.
        of: the run's :func:`checkpoint.identity`.
        epoch: that has ended; what is inside of another one than the next is of no use.
        device: where its tensors go.
        processes: how many there are now.

    Raises:
        ConfigError: the run began with another number of processes.
    """
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
