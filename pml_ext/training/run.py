"""What a run has built and what training changes: networks, losses, optimizers, history; its state in checkpoints."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from ..distributed import join
from ..distributed.devices import choose_device
from ..errors import ConfigError, counted, shortened
from ..networks.network import Preprocessing
from ..networks.trunks import freeze
from ..recipe import Recipe, own_optimizer
from ..recipe.schema import cut_of, frozen_patterns
from . import checkpoint
from .activations import TrunkCut, check_size, cut_trunk
from .batches import BatchReader
from .closed_form import fit_embedder
from .engine import Engine, Objective, Step
from .feature_reader import FeatureReader
from .folder import RECIPE
from .listener import Listener, Silence
from .optimizers import build_optimizers, extend_schedule
from .recorded_values import RecordedValues
from .samplers import with_instances
from .stages import Stage, build_stages
from .view import View
from .warmup import WarmUp

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
    """A run: its data and network (:class:`View`), its stages and optimizers, and its history.

    :func:`pml_ext.training.loop.train_run` trains it. The methods ``prepare(run)``, ``start_epoch(run)``,
    ``after_step(run, indices, embeddings)`` and ``figures(run)`` of components are called with the run. With several
    processes (``torchrun``), each has its own synchronized run; rank 0 tests and writes. ``on_nonfinite="skip"`` leaves
    out iterations whose loss, embeddings or gradients are NaN or infinite.
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
    ) -> None:
        self.name = name
        self.listener: Listener = listener or Silence()
        self._on_nonfinite = on_nonfinite
        super().__init__(recipe, folder, seed, choose_device(device), root, self.listener.step)
        self.optimizers, self.schedules = build_optimizers(recipe, self.trunk, self.embedder)
        labeled = self.data.training_images
        if recipe.data.labels == "instance":
            labeled = with_instances(labeled)
        self.stages = build_stages(recipe, labeled, self.device, seed)
        self._cuts: dict[tuple[str, str], TrunkCut] = {}  # by block and precision
        self._readers: dict[TrunkCut | None, BatchReader | FeatureReader] = {}  # by cut
        self.history = RunHistory()
        self.warn(self.data.note)
        for split, paths in self.data.unreadable.items():
            images = counted(len(paths), "image")
            self.warn(f"left out {images} of {split} that cannot be read; the first: {min(paths.values())}")

    @functools.cached_property  # a report needs no engine
    def engine(self) -> Engine:
        """The engine that trains the networks."""
        return Engine(
            self.trained_trunk(self.stages[0]),
            self.embedder,
            self.device,
            self.recipe.engine,
            self.recipe.model.freeze_batch_norm,
            skip_nonfinite=self._on_nonfinite == "skip",
        )

    def trained_trunk(self, stage: Stage) -> torch.nn.Module:
        """Return the module that a stage trains from what its reader gives: images, features or activations."""
        if self.frozen:
            return torch.nn.Identity()
        cut = self.trunk_cut(stage)
        return self.trunk if cut is None else cut.rest

    def trunk_cut(self, stage: Stage) -> TrunkCut | None:
        """Return the cut of the trunk in a stage, if it has one."""
        table = cut_of(self.recipe.model.freeze) or cut_of(stage.table.freeze)
        if table is None:
            return None
        key = (table.until, table.precision)
        if key not in self._cuts:
            assert isinstance(self.data.preprocessing, Preprocessing)  # vectors have no trunk to cut
            self._cuts[key] = cut_trunk(self.trunk, table, self.data.preprocessing, self.device)
        return self._cuts[key]

    @functools.cached_property
    def epochs(self) -> int:
        """The number of epochs; 0 if there are no parameters to train in the trunk, the embedder and the losses."""
        trains_losses = any(stage.optimizer is not None for stage in self.stages)
        if self.optimizers or trains_losses:
            return self.recipe.schedule.epochs
        return 0

    def reader_of(self, stage: Stage) -> BatchReader | FeatureReader:
        """Return the reader of a stage's batches: of images, of features, or of activations before a cut."""
        cut = self.trunk_cut(stage)
        if cut not in self._readers:
            self._readers[cut] = self._new_reader(cut)
        return self._readers[cut]

    def _new_reader(self, cut: TrunkCut | None) -> BatchReader | FeatureReader:
        if cut is not None:
            kept = [self.activations(cut, "train", view) for view in self._views()]
        elif self.frozen:
            kept = [self.features("train", view) for view in self._views()]
        else:
            return BatchReader(self.data.training_images, self.recipe.data.workers, self.device, self.memory_format)
        return FeatureReader(kept, self.data.training_images.labels, self.device)

    def _views(self) -> range:
        """Return the numbers of the views of training images that are kept; 0 is the image without augmentation."""
        count = self.recipe.model.views
        return range(1, count + 1) if count > 1 else range(1)

    def close_readers(self) -> None:
        """Terminate the workers that read images."""
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()

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
        """Set the learning rates of an epoch that begins a stage, and freeze the parts of the trunk that are named.

        With LoRA, peft has frozen the trunk.
        """
        if self.epoch == stage.first:
            before = 1.0
            if stage is not self.stages[0]:
                before = self.stages.of(self.epoch - 1).table.lr_factor
            for optimizer in self.optimizers.values():
                for group in optimizer.param_groups:
                    group["lr"] *= stage.table.lr_factor / before
        model = self.recipe.model
        if model.lora is None:
            patterns = frozen_patterns(model.freeze) + frozen_patterns(stage.table.freeze)
            self.engine.frozen = freeze(self.trunk, patterns)
        self.cut = self.trunk_cut(stage)
        if self.cut is not None:
            self.cut.stem.requires_grad_(False)
            self.engine.frozen = [*self.engine.frozen, self.cut.stem]
        if not self.frozen:
            self.engine.use_trunk(self.trained_trunk(stage))

    def call_after_step(self, stage: Stage, indices: torch.Tensor, step: Step) -> None:
        """Call ``after_step`` of the stage's components with indices and embeddings of all processes.

        Of several views of an image, they get the first.
        """
        watching = []
        for part in stage.parts():
            if callable(getattr(part, "after_step", None)):
                watching.append(part)
        if not watching or step.skipped:
            return
        seen = {"indices": indices, "embeddings": step.embeddings}
        if self.processes > 1:
            seen = join({"indices": indices.cpu(), "embeddings": step.embeddings.cpu()})
        views = self.recipe.data.views
        if views > 1:
            seen = {name: rows[::views] for name, rows in seen.items()}
        for part in watching:
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

    def compute_frozen_features(self) -> None:
        """Compute the features of a frozen trunk, or the activations before cuts; each process computes a part.

        A single process leaves the features of tested images to the tests.
        """
        if self.frozen:
            for split in self.splits:
                if self.processes > 1 or split in ("train", "validation"):
                    self.features(split)
        for cut in dict.fromkeys(self.trunk_cut(stage) for stage in self.stages):
            if cut is not None:
                self._compute_activations(cut)

    def compute_views(self) -> None:
        """Compute the features of all views of the training images, of a frozen trunk."""
        if self.frozen:
            for view in self._views():
                self.features("train", view)

    def _compute_activations(self, cut: TrunkCut) -> None:
        """Compute all activations before a cut that the run needs; ConfigError if they take too much space."""
        validated = len(self.images("validation")) if "validation" in self.splits else 0
        tell = self._tell if self.rank == 0 else _no_line
        check_size(cut, len(self.data.training_images), len(self._views()), validated, tell)
        for view in self._views():
            self.activations(cut, "train", view)
        if validated:
            self.activations(cut, "validation")

    def initialize_weights(self) -> None:
        """Load the weights of another run, and fit an embedder in closed form, where the recipe says so."""
        model = self.recipe.model
        if model.init is not None:
            self.start_from(Path(model.init))
        fit_embedder(self)

    def start_from(self, folder: Path) -> None:
        """Load the weights of another run: the trunk's, and the embedder's if its shapes match."""
        path = folder / "checkpoints" / "model.pt"
        if not path.is_file():
            raise ConfigError(f"model.init: {folder} is no finished run (no {path}); wanted the folder of one")
        state = checkpoint.load(path, self.device)
        try:
            self.trunk.load_state_dict(state["trunk"])
        except RuntimeError as error:
            text = f"model.init: the trunk of {folder} is another one ({shortened(error, 160)})"
            raise ConfigError(f"{text}; take that run's [model] trunk and image size, in {folder / RECIPE}") from None
        if _shapes(state["embedder"]) == _shapes(self.embedder.state_dict()):
            self.embedder.load_state_dict(state["embedder"])
        else:
            self.warn(f"model.init: the embedder of {folder} has other sizes; it begins from random")
        self.changed()

    # The state in checkpoints

    def model_state(self, trunk: bool = True) -> dict[str, Any]:
        """Return the weights of the networks and of all stages' losses (for example a learned metric)."""
        losses = [stage.loss.state_dict() for stage in self.stages]
        state: dict[str, Any] = {}
        if trunk:
            state["trunk"] = self.trunk.state_dict()
        state["embedder"] = self.embedder.state_dict()
        state["loss"] = losses[-1]
        state["earlier_losses"] = losses[:-1]
        state["epoch"] = self.epoch
        return state | self._origin()

    def load_model(self, name: str) -> dict[str, Any]:
        """Load the weights of a checkpoint written from :meth:`model_state`, and return the checkpoint."""
        path = self.checkpoint(name)
        state = checkpoint.load(path, self.device, self.identity)
        self.data.check_listing(self.folder, state["listing"])
        with checkpoint.errors_with_path(path, state):
            if "trunk" in state:
                self.trunk.load_state_dict(state["trunk"])
            self.embedder.load_state_dict(state["embedder"])
            losses = [*state["earlier_losses"], state["loss"]]
            for stage, loss in zip(self.stages, losses, strict=True):
                stage.loss.load_state_dict(loss)
        self.changed()
        return state

    def state(self) -> dict[str, Any]:
        """Return all that training has changed, for a checkpoint."""
        parts = {}
        for name, part in self._parts().items():
            parts[name] = part.state_dict()
        return {
            "epoch": self.epoch,
            "processes": self.processes,
            **self._origin(),
            **vars(self.history),
            "parts": parts,
            "samplers": [checkpoint.sampler_state(stage.sampler) for stage in self.stages],
            "random": checkpoint.random_state(),
        }

    def restore(self, path: Path, state: Mapping[str, Any]) -> None:
        """Load a :meth:`state`; ``path`` is the checkpoint's, for errors."""
        before = state["processes"]
        if before != self.processes:
            text = f"{self.folder} holds a run of {before} processes, not {self.processes}"
            raise ConfigError(f"{text}; resume it with torchrun --nproc-per-node {before} -m pml_ext train ...")
        with checkpoint.errors_with_path(path, state):
            for name, part in self._parts().items():
                self._restore_part(name, part, state)
            for stage, sampler in zip(self.stages, state["samplers"], strict=True):
                checkpoint.set_sampler_state(stage.sampler, sampler)
            if "ranks" in state:
                random = state["ranks"][self.rank]
            else:
                random = state["random"]
            checkpoint.set_random_state(random)
            kept = {name: state[name] for name in vars(self.history) if name in state}
            self.history = RunHistory(**kept)
        self.epoch = state["epoch"]
        self.changed()

    def _restore_part(self, name: str, part: Any, state: Mapping[str, Any]) -> None:
        """Load the state of one object; a cosine schedule keeps the number of epochs that it has now."""
        epochs = getattr(part, "T_max", None)
        part.load_state_dict(state["parts"][name])
        if epochs is None or epochs == part.T_max:
            return
        factor = 1.0
        if name in ("trunk_optimizer schedule", "embedder_optimizer schedule"):
            factor = self.stages.of(max(1, state["epoch"])).table.lr_factor
        extend_schedule(part, epochs, factor)

    def _parts(self) -> dict[str, Any]:
        """Return all objects whose state training changes, by name; samplers are saved separately."""
        parts: dict[str, Any]
        if self.frozen:
            parts = {}
        else:
            parts = {"trunk": self.trunk}
        parts["embedder"] = self.embedder
        parts["engine"] = self.engine
        parts |= self.optimizers
        for name, schedule in self.schedules.items():
            parts[f"{name} schedule"] = schedule
        for number, stage in enumerate(self.stages, start=1):
            for name in ("loss", "miner", "optimizer", "scheduler"):
                part = getattr(stage, name)
                if part is not None:
                    parts[f"stage {number} {name}"] = part
        return parts

    def _origin(self) -> dict[str, Any]:
        """Return what a checkpoint of this run must have in common with the run that reads it."""
        return {"of": self.identity, "listing": self.data.listing}


def _no_line(text: str) -> None: ...


def _shapes(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in state.items()}
