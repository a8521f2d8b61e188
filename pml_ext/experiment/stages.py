"""The stages of a training, each with its own loss, miner and sampler, and the optimizers of the networks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from .. import registry
from ..building import BuildContext
from ..data import LabelledImages
from ..distributed import DistributedLoss, DistributedMiner, num_processes
from ..errors import ConfigError, PmlExtError, shortened
from .engine import over_processes
from .recipe import (
    SHUFFLE,
    Recipe,
    SamplerTable,
    ScheduleTable,
    build_loss,
    build_optimizer,
    loss_context,
    own_optimizer,
)


@dataclass
class Stage:
    """A part of the training with its own loss and sampler.

    Args:
        first: its first epoch, from 1.
        last: its last epoch.
        loss: what is minimized.
        miner: what chooses pairs or triplets for it.
        sampler: what composes batches.
        batch_size: images per batch, over all processes.
        iterations: batches per epoch.
        optimizer: of the loss's own parameters, where it has some.
        scheduler: of that optimizer's learning rate, where the recipe wants one.
        trained: the loss as a step calls it: over all processes.
        mining: the miner likewise.
    """

    first: int
    last: int
    loss: nn.Module
    miner: nn.Module | None
    sampler: Any
    batch_size: int
    iterations: int
    optimizer: torch.optim.Optimizer | None
    scheduler: Any
    trained: nn.Module
    mining: nn.Module | None


class Stages(list[Stage]):
    """The stages of a run, in their order."""

    def of(self, epoch: int) -> Stage:
        """The stage that has an epoch."""
        return next(stage for stage in self if stage.first <= epoch <= stage.last)

    def iterations_before(self, epoch: int) -> int:
        """How many iterations all epochs before one have together."""
        return sum(stage.iterations * max(0, min(epoch - 1, stage.last) - stage.first + 1) for stage in self)

    def parts(self) -> list[Any]:
        """All modules and samplers of the stages, each once: any of them may take part in the run."""
        parts: list[Any] = []
        for stage in self:
            for owner in (stage.loss, stage.miner, stage.sampler):
                for part in owner.modules() if isinstance(owner, nn.Module) else [owner]:
                    if part is not None and not any(part is other for other in parts):
                        parts.append(part)
        return parts


def classes_of(images: LabelledImages) -> list[int]:
    """The labels that occur, in rising order."""
    return sorted({int(label) for label in images.labels})


def build_stages(recipe: Recipe, images: LabelledImages, device: torch.device, seed: int) -> Stages:
    """The stages of a recipe, the recipe's own loss in the last.

    Args:
        recipe: what to train.
        images: to train with.
        device: where losses and miners are.
        seed: of samplers that draw.

    Raises:
        ConfigError: a sampler that cannot compose its batches from these images.
    """
    context = loss_context(recipe, classes_of(images))
    stages, first = Stages(), 1
    for table in recipe.all_stages():
        assert table.sampler is not None
        loss, miner = build_loss(table.loss, context)
        loss, miner = loss.to(device), miner.to(device) if miner is not None else None
        sampler, iterations = _build_sampler(table.sampler, images, seed)
        own = [parameter for parameter in loss.parameters() if parameter.requires_grad]
        optimizer_table = own_optimizer(recipe.optimizer, table.loss)
        optimizer, scheduler = build_optimizer(optimizer_table, own) if own else None, None
        if optimizer is not None and optimizer_table.scheduled:
            scheduler = _scheduler(optimizer, recipe.schedule, first)
        joined = num_processes() > 1
        stages.append(Stage(
            first, first + table.epochs - 1, loss, miner, sampler, table.sampler.batch_size, iterations,
            optimizer, scheduler,
            # A batch need not reach every parameter of a loss, and its buffers are alike in all processes.
            over_processes(DistributedLoss(loss) if joined else loss, find_unused_parameters=True,
                           broadcast_buffers=False),
            DistributedMiner(miner) if miner is not None and joined else miner,
        ))  # fmt: skip
        first += table.epochs
    return stages


def _build_sampler(table: SamplerTable, images: LabelledImages, seed: int) -> tuple[Any, int]:
    """A sampler, and how many batches an epoch has."""
    if table.name == SHUFFLE:
        iterations = table.iterations or len(images) // table.batch_size
        if iterations * table.batch_size > len(images) or iterations == 0:
            raise ConfigError(
                f"sampler: {max(iterations, 1)} batches of {table.batch_size} need more than the {len(images)} "
                "training images; make batch_size or iterations smaller"
            )
        return torch.utils.data.RandomSampler(range(len(images))), iterations
    iterations = table.iterations or max(1, len(images) // table.batch_size)
    context: BuildContext = {
        "labels": np.asarray(images.labels), "batch_size": table.batch_size,
        "length_before_new_iter": iterations * table.batch_size, "seed": seed,
    }  # fmt: skip
    try:
        sampler = registry.build(table.name, "sampler", context, **table.settings)
    except PmlExtError:
        raise
    except Exception as error:  # what constructors raise is not limited
        raise ConfigError(shortened(
            f"sampler: {table.name} refuses batches of {table.batch_size} from {len(images)} images of "
            f"{len(classes_of(images))} classes: {error}"
        )) from None  # fmt: skip
    passes = len(sampler) // (1 if isinstance(sampler, torch.utils.data.BatchSampler) else table.batch_size)
    if passes == 0:
        raise ConfigError(
            f"sampler: one pass of {table.name} gives {len(sampler)} images, fewer than {table.batch_size}"
        )
    if table.iterations and passes < table.iterations:
        raise ConfigError(
            f"sampler: iterations = {table.iterations}, but a pass of {table.name} gives {passes} batches of "
            f"{table.batch_size}; make iterations smaller, or leave it out"
        )
    return sampler, table.iterations or passes


@dataclass
class Optimizers:
    """What trains the networks.

    Args:
        steps: ``"trunk_optimizer"`` and ``"embedder_optimizer"``, of the networks that have parameters to train.
        schedules: of their learning rates, by the same names, where the recipe has a schedule.
    """

    steps: dict[str, torch.optim.Optimizer]
    schedules: dict[str, Any]


def build_optimizers(recipe: Recipe, trunk: nn.Module, embedder: nn.Module) -> Optimizers:
    """The optimizers of a recipe.

    Args:
        recipe: what to train.
        trunk: from images to features, on its device.
        embedder: from features to embeddings, likewise; its learning rate is ``head_lr_factor`` times the trunk's.
    """
    table = recipe.optimizer
    steps = {
        f"{key}_optimizer": build_optimizer(table, parameters, factor)
        for key, network, factor in (("trunk", trunk, 1.0), ("embedder", embedder, table.head_lr_factor))
        if (parameters := [parameter for parameter in network.parameters() if parameter.requires_grad])
    }
    made = {key: _scheduler(optimizer, recipe.schedule) for key, optimizer in steps.items()}
    return Optimizers(steps, {key: scheduler for key, scheduler in made.items() if scheduler is not None})


def _scheduler(optimizer: torch.optim.Optimizer, schedule: ScheduleTable, first: int = 1) -> Any:
    """How a learning rate falls that is stepped from an epoch of the run on; None where it does not."""
    before = first - 1
    if schedule.name == "multi-step":
        milestones = [epoch - before for epoch in schedule.milestones if epoch > before]
        return torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, schedule.gamma)
    if schedule.name == "cosine":
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, schedule.epochs - before)
    return None
