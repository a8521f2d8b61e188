"""The stages of a training, each with its own loss, miner and sampler; samplers; the optimizers of the networks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from .. import registry
from ..data import LabeledImages
from ..distributed import DistributedLoss, DistributedMiner, num_processes
from ..errors import ConfigError, PmlExtError, shortened
from ..pml import reducers
from ..recipe import Recipe, build_loss, loss_context, own_optimizer
from ..recipe.build import build_optimizer
from ..recipe.schema import SHUFFLE, PseudoTable, SamplerTable, ScheduleTable, StageTable
from ..registry import BuildContext
from .engine import data_parallel

Labels = NDArray[np.int64]


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
        """Return all modules of the loss and the miner, and the sampler, whose hooks the run calls."""
        modules = [module for owner in (self.loss, self.miner) if owner is not None for module in owner.modules()]
        sampler = self.sampler.modules() if isinstance(self.sampler, nn.Module) else [self.sampler]
        return [*modules, *sampler]


class Stages(list[Stage]):
    """The stages of a run, in their order."""

    def of(self, epoch: int) -> Stage:
        """Return the stage of an epoch."""
        return next(stage for stage in self if stage.first <= epoch <= stage.last)

    def iterations_until(self, epoch: int) -> int:
        """Return the number of iterations up to the end of an epoch."""
        return sum(stage.iterations * max(0, min(epoch, stage.last) - stage.first + 1) for stage in self)

    def parts(self) -> list[Any]:
        """Return the parts of all stages, each once."""
        return list({id(part): part for stage in self for part in stage.parts()}.values())


def build_stages(recipe: Recipe, images: LabeledImages, device: torch.device, seed: int) -> Stages:
    """Return the stages of a recipe, the recipe's own loss in the last; ConfigError as of :func:`build_sampler`."""
    context = loss_context(recipe, np.unique(images.labels).tolist(), images.class_names)
    stages, first, joined = Stages(), 1, num_processes() > 1
    for table in recipe.all_stages():
        assert table.sampler is not None
        loss, miner = build_loss(table.loss, context)
        if recipe.data.pseudo is None:
            _check_class_weights(loss, images.labels)
        loss, miner = loss.to(device), miner.to(device) if miner is not None else None
        if recipe.data.pseudo is None:
            sampler, iterations = build_sampler(table.sampler, images, seed, context.get("relation"))
        else:
            sampler, iterations = sampler_before_clusters(table.sampler, recipe.data.pseudo, images, seed)
        own = [parameter for parameter in loss.parameters() if parameter.requires_grad]
        optimizer_table = own_optimizer(recipe.optimizer, table.loss)
        optimizer, scheduler = build_optimizer(optimizer_table, own) if own else None, None
        if optimizer is not None and optimizer_table.scheduled:
            scheduler = _scheduler(optimizer, recipe.schedule, first)
        # A batch may not reach every parameter of a loss; the buffers are equal in all processes.
        trained = DistributedLoss(loss) if joined else loss
        trained = data_parallel(trained, find_unused_parameters=True, broadcast_buffers=False)
        mining = DistributedMiner(miner) if miner is not None and joined else miner
        last, size = first + table.epochs - 1, table.sampler.batch_size
        drawn = sampler, size, iterations
        stages.append(Stage(table, first, last, loss, miner, *drawn, optimizer, scheduler, trained, mining))
        first = last + 1
    return stages


def _check_class_weights(loss: nn.Module, labels: Labels) -> None:
    """Raise ConfigError unless a reducer with weights of classes has one for each training class."""
    for module in loss.modules():
        if isinstance(module, reducers.ClassWeightedReducer) and len(module.weights) != labels.max() + 1:
            raise ConfigError(
                f"loss.reducer: weights of pml/class-weighted must be {len(np.unique(labels))} numbers, one for each "
                f"training class in the order of their labels; got {len(module.weights)}"
            )


def build_optimizers(
    recipe: Recipe, trunk: nn.Module, embedder: nn.Module
) -> tuple[dict[str, torch.optim.Optimizer], dict[str, Any]]:
    """Return the optimizers of trunk and embedder, if they have parameters to train, and their schedules, if any."""
    table = recipe.optimizer
    optimizers = {
        f"{name}_optimizer": build_optimizer(table, parameters, factor)
        for name, network, factor in (("trunk", trunk, 1.0), ("embedder", embedder, table.head_lr_factor))
        if (parameters := [parameter for parameter in network.parameters() if parameter.requires_grad])
    }
    schedules = {name: _scheduler(optimizer, recipe.schedule) for name, optimizer in optimizers.items()}
    return optimizers, {name: schedule for name, schedule in schedules.items() if schedule is not None}


def _scheduler(optimizer: torch.optim.Optimizer, schedule: ScheduleTable, first: int = 1) -> Any:
    """Return the schedule of a learning rate from an epoch of the run on; None for a constant one."""
    before = first - 1
    if schedule.name == "multi-step":
        milestones = [epoch - before for epoch in schedule.milestones if epoch > before]
        return torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, schedule.gamma)
    if schedule.name == "cosine":
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, schedule.epochs - before)
    return None


def extend_schedule(schedule: torch.optim.lr_scheduler.CosineAnnealingLR, epochs: int, factor: float) -> None:
    """Let a cosine schedule end after more epochs, with their learning rate from now on; ``factor`` is the stage's."""
    schedule.T_max = epochs
    share = (1 + math.cos(math.pi * schedule.last_epoch / epochs)) / 2
    for group, base in zip(schedule.optimizer.param_groups, schedule.base_lrs, strict=True):
        group["lr"] = base * share * factor


def build_sampler(table: SamplerTable, images: LabeledImages, seed: int, relation: Any = None) -> tuple[Any, int]:
    """Return a sampler and the number of batches per epoch; ConfigError if the images are too few for them."""
    iterations = table.iterations or max(1, len(images) // table.batch_size)
    if table.name == SHUFFLE:
        if iterations * table.batch_size > len(images):
            text = f"{iterations} batches of {table.batch_size} need more than the {len(images)} training images"
            raise ConfigError(f"sampler: {text}; make batch_size or iterations smaller")
        return torch.utils.data.RandomSampler(range(len(images))), iterations
    if table.name == "pml/hierarchical":
        raise ConfigError(
            "sampler: pml/hierarchical wants labels of two levels, and a run's images have one class each; type "
            '--set sampler.name=tree, with [data] relation = "hierarchy"'
        )
    classes, m = len(np.unique(images.labels)), table.settings.get("m")
    if table.name == "pml/m-per-class" and isinstance(m, int) and m > 0:
        most = max(m, min(table.batch_size, classes * m) // m * m)
        if most != table.batch_size:
            limit = f"{classes} classes x m = {m} gives at most {classes * m} images a batch, in multiples of {m}"
            remedy = f"--set sampler.batch_size={most}"
            raise ConfigError(f"sampler: found batch_size = {table.batch_size}; {limit}: {remedy}")
    context: BuildContext = {
        "labels": np.asarray(images.labels),
        "batch_size": table.batch_size,
        "length_before_new_iter": iterations * table.batch_size,
        "seed": seed,
    }
    if relation is not None:
        context["relation"] = relation
    try:
        sampler = registry.build(table.name, "sampler", context, **table.settings)
    except PmlExtError:
        raise
    except Exception as error:  # constructors may raise anything
        text = f"refuses batches of {table.batch_size} from {len(images)} images of {classes} classes"
        raise ConfigError(shortened(f"sampler: {table.name} {text}: {error}")) from None
    passes = len(sampler) // (1 if isinstance(sampler, torch.utils.data.BatchSampler) else table.batch_size)
    if passes < (table.iterations or 1):
        text = f"a pass of {table.name} gives {passes} batches of {table.batch_size}; make iterations smaller"
        raise ConfigError(f"sampler: iterations = {table.iterations or 1}, but {text}, or batch_size")
    return sampler, table.iterations or passes


def with_clusters(images: LabeledImages, table: PseudoTable, labels: Labels) -> LabeledImages:
    """Return images with clusters as labels."""
    return images.replace(labels=labels, class_names=[f"cluster {number}" for number in range(table.clusters)])


def sampler_before_clusters(
    table: SamplerTable, pseudo: PseudoTable, images: LabeledImages, seed: int
) -> tuple[Any, int]:
    """Return :func:`build_sampler` for clusters of equal size, before training has computed any."""
    if pseudo.clusters > len(images):
        raise ConfigError(f"data.pseudo.clusters: found {pseudo.clusters}, and there are {len(images)} training images")
    alike, tables = with_clusters(images, pseudo, np.arange(len(images)) % pseudo.clusters), [table]
    if pseudo.batch_size is not None:
        iterations = table.iterations or max(1, 2 * len(images) // sum(pseudo.batch_size))
        tables = [sized(table, size, iterations) for size in pseudo.batch_size]
    return [build_sampler(each, alike, seed) for each in tables][-1]


def sized(table: SamplerTable, size: int, iterations: int) -> SamplerTable:
    """Return ``[sampler]`` with another batch size, a multiple of the images per class where that is a setting."""
    per_class = table.settings.get("m", 1)
    whole = max(1, size // per_class) * per_class if isinstance(per_class, int) and per_class > 0 else size
    return table.model_copy(update={"batch_size": whole, "iterations": iterations})
