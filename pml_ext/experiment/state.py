"""What a run has trained and found so far, as its checkpoints hold it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from ..distributed import from_rank_0
from ..errors import ConfigError
from ..samplers import sampler_state, set_sampler_state
from . import checkpoint
from .engine import Engine
from .stages import Optimizers, Stages


@dataclass
class Account:
    """What a run has found so far.

    Args:
        metrics: by phase: ``"raw"``, ``"before"`` ...
        best: the epoch that did best on the held-out classes, None where none was tested yet, and its value.
        warnings: their texts.
        train_seconds: spent on training.
        test_seconds: spent on tests.
    """

    metrics: dict[str, Any] = field(default_factory=dict)
    best: dict[str, Any] = field(default_factory=lambda: {"epoch": None, "value": -math.inf})
    warnings: list[str] = field(default_factory=list)
    train_seconds: float = 0.0
    test_seconds: float = 0.0


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

    def model(self, epoch: int) -> dict[str, Any]:
        """The weights of the networks and of the losses (a learned metric, say): the last stage's, and the others'.

        Args:
            epoch: of the weights.
        """
        *earlier, last = (stage.loss.state_dict() for stage in self.stages)
        return {"trunk": self.trunk.state_dict(), "embedder": self.embedder.state_dict(), "loss": last,
                "earlier_losses": earlier, "epoch": epoch}  # fmt: skip

    def take_model(self, state: Mapping[str, Any]) -> None:
        """Takes the weights of :meth:`model`."""
        self.trunk.load_state_dict(state["trunk"])
        self.embedder.load_state_dict(state["embedder"])
        losses = [*state.get("earlier_losses", ()), state["loss"]]
        for stage, loss in zip(self.stages[-len(losses) :], losses, strict=True):
            stage.loss.load_state_dict(loss)

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
                    "sampler": sampler_state(stage.sampler),
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
        self.trunk.load_state_dict(state["networks"]["trunk"])
        self.embedder.load_state_dict(state["networks"]["embedder"])
        engine.load_state_dict(state["engine"])
        for key, optimizer in self.optimizers.steps.items():
            optimizer.load_state_dict(state["optimizers"][key])
        for key, scheduler in self.optimizers.schedules.items():
            scheduler.load_state_dict(state["schedulers"][key])
        for stage, saved in zip(self.stages, state["stages"], strict=True):
            stage.loss.load_state_dict(saved["loss"])
            if stage.miner is not None:
                stage.miner.load_state_dict(saved["miner"])
            set_sampler_state(stage.sampler, saved["sampler"])
            if stage.optimizer is not None:
                stage.optimizer.load_state_dict(saved["optimizer"])
            if stage.scheduler is not None:
                stage.scheduler.load_state_dict(saved["scheduler"])
        checkpoint.set_random_state(state["random"])


def state_to_resume(path: Path, device: Any, processes: int) -> dict[str, Any] | None:
    """The state of a run that is to go on; None where there is no checkpoint yet.

    Args:
        path: ``last.pt``.
        device: where its tensors go.
        processes: how many there are now.

    Raises:
        ConfigError: the run began with another number of processes.
        DataError: the checkpoint is damaged.
    """
    if not from_rank_0(path.exists()):
        return None
    state = checkpoint.load(path, device, trusted=True)
    if state["processes"] != processes:
        before = state["processes"]
        raise ConfigError(
            f"{path.parent.parent} holds a run of {before} process{'es' * (before > 1)}, not {processes}; resume it "
            f"with {f'torchrun --nproc-per-node {before} -m pml_ext' if before > 1 else 'pml-ext'} train ..."
        )
    return state
