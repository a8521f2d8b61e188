"""The stages of a training, each with its own loss, miner and sampler."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from pml_ext.distributed import DistributedLoss, DistributedMiner, num_processes

from ..data import LabeledImages
from ..recipe import (
    Recipe,
    StageTable,
    build_loss,
    check_class_weights,
    check_conflicts,
    check_listed,
    check_listed_loss,
    loss_context,
)
from .engine import data_parallel
from .optimizers import build_loss_optimizer
from .samplers import build_sampler, fitting, sampler_before_clusters


@dataclass
class Stage:
    """A part of the training with its own loss, miner and sampler."""

    table: StageTable
    first: int  # epoch, from 1
    last: int
    loss: nn.Module
    miner: nn.Module | None
    sampler: Any
    batch_size: int  # over all processes
    iterations: int  # per epoch
    optimizer: torch.optim.Optimizer | None  # of the loss's own parameters
    scheduler: Any  # of that optimizer's learning rate
    trained: nn.Module  # the loss over all processes
    mining: nn.Module | None  # the miner over all processes

    def parts(self) -> list[Any]:
        """Modules of the loss and the miner, and the sampler, whose hooks the run calls."""
        parts: list[Any] = []
        for part in (self.loss, self.miner, self.sampler):
            if isinstance(part, nn.Module):
                parts += part.modules()
            elif part is not None:
                parts.append(part)
        return parts


class Stages(list[Stage]):
    """The stages of a run, in their order."""

    def of(self, epoch: int) -> Stage:
        """The stage of an epoch."""
        return next(stage for stage in self if stage.first <= epoch <= stage.last)

    def iterations_until(self, epoch: int) -> int:
        """Number of iterations up to the end of an epoch."""
        return sum(stage.iterations * max(0, min(epoch, stage.last) - stage.first + 1) for stage in self)

    def parts(self) -> list[Any]:
        """Return the parts of all stages, each once."""
        parts: dict[int, Any] = {}
        for stage in self:
            parts |= {id(part): part for part in stage.parts()}
        return list(parts.values())


def build_stages(recipe: Recipe, images: LabeledImages, device: torch.device, seed: int) -> Stages:
    """The stages of a recipe; the last has the recipe's own loss."""
    if images.tuples is not None:
        check_listed(recipe, images.tuples.kind)
    context = loss_context(recipe, np.unique(images.labels).tolist(), images.class_names)
    pseudo = recipe.data.pseudo
    joins_processes = num_processes() > 1
    stages = Stages()
    first = 1
    for prefix, table in recipe.stages_by_prefix():
        drawn = table.sampler
        assert drawn is not None
        loss, miner = build_loss(table.loss, context, f"{prefix}loss")
        if images.tuples is not None:
            check_listed_loss(f"{prefix}loss", table.loss.name, loss, recipe, images.tuples.kind)
            check_conflicts(f"{prefix}loss", table.loss.name, loss, recipe, images.tuples)
        loss = loss.to(device)
        if miner is not None:
            miner = miner.to(device)
        if pseudo is None:
            classes = len(np.unique(images.labels))
            check_class_weights(loss, [classes, int(images.labels.max()) + 1], classes)
            drawn = fitting(drawn, images)
            sampler, iterations = build_sampler(drawn, images, seed, context.get("relation"))
        else:
            sampler, iterations = sampler_before_clusters(drawn, pseudo, images, seed)

        optimizer, scheduler = build_loss_optimizer(recipe, prefix, table.loss, loss, first)
        joined = DistributedLoss(loss) if joins_processes else loss
        stages.append(
            Stage(
                table=table.model_copy(update={"sampler": drawn}),
                first=first,
                last=first + table.epochs - 1,
                loss=loss,
                miner=miner,
                sampler=sampler,
                batch_size=drawn.batch_size,
                iterations=iterations,
                optimizer=optimizer,
                scheduler=scheduler,
                # A batch may not reach every parameter of a loss; the buffers are equal in all processes.
                trained=data_parallel(joined, find_unused_parameters=True, broadcast_buffers=False),
                mining=DistributedMiner(miner) if miner is not None and joins_processes else miner,
            )
        )
        first += table.epochs
    return stages
