"""A run: a network on its data, with stages, losses, optimizers, and a history."""

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from pml_ext.distributed import join
from pml_ext.distributed.devices import choose_device
from pml_ext.errors import ConfigError

from ..data import DataSplits, left_out_text
from ..networks.trunks import freeze
from ..recipe import Recipe, frozen_patterns, own_optimizer
from .engine import Engine, Objective
from .inputs import Inputs
from .listener import Listener, Silence
from .optimizers import WarmUp, build_optimizers
from .recorded_values import RecordedValues
from .samplers import with_instances
from .stages import Stage, build_stages
from .view import View

OnNonfinite = Literal["stop", "skip"]  # reaction to a NaN or infinite loss, embedding or gradient


@dataclass
class RunHistory:
    """Metrics, warnings and timings of a run so far."""

    metrics: dict[str, Any] = field(default_factory=dict)  # by phase: "raw", "before" ...
    best: dict[str, Any] = field(default_factory=lambda: {"epoch": None, "value": -math.inf})  # on held-out classes
    warnings: list[str] = field(default_factory=list)
    train_seconds: float = 0.0
    test_seconds: float = 0.0
    baseline_seconds: float = 0.0  # of tests before training
    collapsed: bool = False  # at the end of the last epoch
    has_loss: bool = False  # whether the loss of an iteration was not 0 yet
    skipped: int = 0  # iterations left out because a loss, embedding or gradient was not finite
    pseudo_labels: NDArray[np.int64] | None = None  # clusters of the training images, if used as labels


class Run(View):
    """A run, trained by :func:`pml_ext_train.training.loop.train_run`.

    It calls the methods ``prepare(run)``, ``start_epoch(run)``, ``after_step(run, indices, embeddings)`` and
    ``figures(run)`` of components. Under ``torchrun`` each process has its own synchronized run; rank 0 tests and
    writes.
    ``on_nonfinite="skip"`` skips non-finite iterations. ``splits`` replace the splits of the recipe's data set.
    """

    def __init__(
        self,
        recipe: Recipe,
        name: str,
        folder: Path,
        seed: int = 0,
        device: str = "cpu",
        root: Path | None = None,
        listener: Listener | None = None,
        on_nonfinite: OnNonfinite = "stop",
        splits: DataSplits | None = None,
    ) -> None:
        self.name = name
        self.listener: Listener = listener or Silence()
        self._on_nonfinite = on_nonfinite
        super().__init__(recipe, folder, seed, choose_device(device), root, self.listener.step, splits)
        self.optimizers, self.schedules = build_optimizers(recipe, self.trunk, self.embedder)
        labeled = self.data.training_images
        if recipe.data.labels == "instance":
            labeled = with_instances(labeled)
        self.stages = build_stages(recipe, labeled, self.device, seed)
        self.inputs = Inputs(self)
        self.history = RunHistory()
        if self.epochs and not self.data.labeled:
            raise ConfigError(
                f"{recipe.data.name} has no labels, so there is nothing to train; set model.freeze = "
                "'trunk' and model.embedder = 'none' or 'pca', or use labeled images"
            )
        self.warn(self.data.note)
        self.warn(left_out_text(self.data.unreadable))

    @functools.cached_property  # a report needs no engine
    def engine(self) -> Engine:
        """The engine that trains the networks."""
        return Engine(
            self.inputs.trained_trunk(self.stages[0]),
            self.embedder,
            self.device,
            self.recipe.engine,
            self.recipe.model.freeze_batch_norm,
            skip_nonfinite=self._on_nonfinite == "skip",
        )

    @functools.cached_property
    def epochs(self) -> int:
        """The number of epochs; 0 without parameters to train."""
        trains_losses = any(stage.optimizer is not None for stage in self.stages)
        return self.recipe.schedule.epochs if self.optimizers or trains_losses else 0

    def objective(self, stage: Stage, recorded: bool, finished: int = 0) -> tuple[Objective, RecordedValues]:
        """Return a stage's objective and its values, which steps record if ``recorded``.

        ``finished`` counts the iterations of the epoch before a run was resumed.
        """
        optimizers = dict(self.optimizers)
        warmed = [*self.optimizers.values()]
        if stage.optimizer is not None:
            optimizers["metric_loss_optimizer"] = stage.optimizer
            if own_optimizer(self.recipe.optimizer, stage.table.loss).scheduled:
                warmed.append(stage.optimizer)
        schedulers = [*self.schedules.values()]
        if stage.scheduler is not None:
            schedulers.append(stage.scheduler)
        values = RecordedValues(stage.loss, stage.miner, optimizers)
        objective = Objective(stage.trained, optimizers, stage.mining, schedulers)
        if recorded:
            objective.recorded = values.values
        if self.recipe.schedule.warmup:
            warm_up = WarmUp(self.recipe.schedule.warmup, self.epoch, stage.iterations, finished, warmed)
            objective.warm_up = warm_up.next_iteration
        return objective, values

    def enter_stage(self, stage: Stage) -> None:
        """Set a stage's learning rates and the frozen and trained parts of the trunk."""
        if self.epoch == stage.first:
            before = self.stages.of(self.epoch - 1).table.lr_factor if stage is not self.stages[0] else 1.0
            for optimizer in self.optimizers.values():
                for group in optimizer.param_groups:
                    group["lr"] *= stage.table.lr_factor / before
        model = self.recipe.model
        if model.lora is None:  # otherwise peft has frozen the trunk
            patterns = frozen_patterns(model.freeze) + frozen_patterns(stage.table.freeze)
            self.engine.frozen = freeze(self.trunk, patterns)
        self.cut = self.inputs.cut_of(stage)
        if self.cut is not None:
            self.cut.stem.requires_grad_(False)
            self.engine.frozen = [*self.engine.frozen, self.cut.stem]
        if not self.frozen:
            self.engine.use_trunk(self.inputs.trained_trunk(stage))

    def call_after_step(self, parts: Iterable[Any], indices: torch.Tensor, embeddings: torch.Tensor) -> None:
        """Pass the indices and embeddings of the batch over all processes, one view per image."""
        seen = {"indices": indices, "embeddings": embeddings}
        if self.processes > 1:
            seen = join({"indices": indices.cpu(), "embeddings": embeddings.cpu()})
        views = self.recipe.data.views
        for part in parts:
            self.call(part, "after_step", seen["indices"][::views], seen["embeddings"][::views])

    def call_parts(self, method: str) -> None:
        """Call a method of all components that have it."""
        for part in self.stages.parts():
            self.call(part, method)

    def warn(self, text: str) -> None:
        """Show a warning once, even across resumes, and keep it for ``metrics.json``."""
        if text and text not in self.history.warnings:
            self.history.warnings.append(text)
            self.listener.warn(text)
