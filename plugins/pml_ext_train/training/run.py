"""A run: a network on its data, with what trains it: stages, losses, optimizers, and a history."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import torch

from pml_ext.distributed import join
from pml_ext.distributed.devices import choose_device
from pml_ext.errors import ConfigError

from ..data import DataSplits
from ..networks.trunks import freeze
from ..recipe import Recipe, frozen_patterns, own_optimizer
from ..records.history import RunHistory
from .engine import Engine, Objective
from .inputs import Inputs
from .listener import Listener, Silence
from .optimizers import build_optimizers
from .recorded_values import RecordedValues
from .run_context import build
from .samplers import with_instances
from .stages import Stage, build_stages
from .view import View
from .warmup import WarmUp

OnNonfinite = Literal["stop", "skip"]  # reaction to a NaN or infinite loss, embedding or gradient


class Run(View):
    """A run: its data and network (:class:`View`), its stages and optimizers, and its history.

    :func:`pml_ext_train.training.loop.train_run` trains it. The methods ``prepare(run)``, ``start_epoch(run)``,
    ``after_step(run, indices, embeddings)`` and ``figures(run)`` of components are called with the run. With several
    processes (``torchrun``), each has its own synchronized run; rank 0 tests and writes. ``on_nonfinite="skip"`` leaves
    out iterations whose loss, embeddings or gradients are NaN or infinite. ``splits`` are taken in place of those of
    the recipe's data set, for example parts of them.
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
        built = build(recipe, seed, choose_device(device), root, self.listener.step, splits)
        super().__init__(built, folder, self.listener.step)
        self.optimizers, self.schedules = build_optimizers(recipe, self.trunk, self.embedder)
        labeled = self.data.training_images
        if recipe.data.labels == "instance":
            labeled = with_instances(labeled)
        self.stages = build_stages(recipe, labeled, self.device, seed)
        self.inputs = Inputs(self)
        self.history = RunHistory()
        if self.epochs and not self.data.labeled:
            raise ConfigError(
                f"{recipe.data.name} has no labels, so that there is nothing to train; wanted model.freeze = 'trunk' "
                "and an embedder 'none' or 'pca', or images of classes"
            )
        self.warn(self.data.note)
        self.warn(self.data.unreadable_text)

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
        """The number of epochs; 0 if there are no parameters to train in the trunk, the embedder and the losses."""
        trains_losses = any(stage.optimizer is not None for stage in self.stages)
        return self.recipe.schedule.epochs if self.optimizers or trains_losses else 0

    def objective(self, stage: Stage, recorded: bool, finished: int = 0) -> tuple[Objective, RecordedValues]:
        """Return the objective of a stage and its recorded values; its steps record them only if ``recorded``.

        ``finished`` is the number of the epoch's iterations that a resumed run has behind it.
        """
        optimizers = dict(self.optimizers)
        schedulers = list(self.schedules.values())
        if stage.optimizer is not None:
            optimizers["metric_loss_optimizer"] = stage.optimizer
        if stage.scheduler is not None:
            schedulers.append(stage.scheduler)
        values = RecordedValues(stage.loss, stage.miner, optimizers)
        objective = Objective(stage.trained, optimizers, stage.mining, schedulers)
        if recorded:
            objective.recorded = values.values
        if self.recipe.schedule.warmup:
            objective.warm_up = self._warm_up(stage, finished).next_iteration
        return objective, values

    def _warm_up(self, stage: Stage, finished: int) -> WarmUp:
        """Return the warm-up of an epoch, for the networks and for parameters of a loss that are scheduled."""
        warmed = list(self.optimizers.values())
        if stage.optimizer is not None and own_optimizer(self.recipe.optimizer, stage.table.loss).scheduled:
            warmed.append(stage.optimizer)
        return WarmUp(self.recipe.schedule.warmup, self.epoch, stage.iterations, finished, warmed)

    def enter_stage(self, stage: Stage) -> None:
        """Train as a stage says: its learning rates, its frozen parts, and the part of the trunk that it trains."""
        if self.epoch == stage.first:
            self._set_learning_rates(stage)
        self._freeze_parts(stage)
        self._cut_trunk(stage)
        if not self.frozen:
            self.engine.use_trunk(self.inputs.trained_trunk(stage))

    def _set_learning_rates(self, stage: Stage) -> None:
        """Multiply the learning rates by the factor of a stage, in place of the one before."""
        before = self.stages.of(self.epoch - 1).table.lr_factor if stage is not self.stages[0] else 1.0
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] *= stage.table.lr_factor / before

    def _freeze_parts(self, stage: Stage) -> None:
        """Freeze the parts of the trunk that the recipe and a stage name; with LoRA, peft has frozen it."""
        model = self.recipe.model
        if model.lora is None:
            patterns = frozen_patterns(model.freeze) + frozen_patterns(stage.table.freeze)
            self.engine.frozen = freeze(self.trunk, patterns)

    def _cut_trunk(self, stage: Stage) -> None:
        """Freeze the part of the trunk before a stage's cut, and look at validation images through the other part."""
        self.cut = self.inputs.cut_of(stage)
        if self.cut is not None:
            self.cut.stem.requires_grad_(False)
            self.engine.frozen = [*self.engine.frozen, self.cut.stem]

    def call_after_step(self, parts: Iterable[Any], indices: torch.Tensor, embeddings: torch.Tensor) -> None:
        """Call ``after_step`` of components with the indices and embeddings of a batch, of all processes.

        Of several views of an image, they get the first.
        """
        seen = {"indices": indices, "embeddings": embeddings}
        if self.processes > 1:
            seen = join({"indices": indices.cpu(), "embeddings": embeddings.cpu()})
        views = self.recipe.data.views
        if views > 1:
            seen = {name: rows[::views] for name, rows in seen.items()}
        for part in parts:
            self.call(part, "after_step", seen["indices"], seen["embeddings"])

    def call_parts(self, method: str) -> None:
        """Call a method, with the run as the argument, on every component that has the method."""
        for part in self.stages.parts():
            self.call(part, method)

    def warn(self, text: str) -> None:
        """Show a warning once (also across resumes), and keep it for ``metrics.json``; ignore an empty text."""
        if text and text not in self.history.warnings:
            self.history.warnings.append(text)
            self.listener.warn(text)
