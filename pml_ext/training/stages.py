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
from ..pairwise import ListedTuples
from ..recipe import Recipe, build_loss, loss_context, own_optimizer
from ..recipe.listed import check_conflicts, check_listed, check_listed_loss
from ..recipe.losses import build_optimizer, check_class_weights
from ..recipe.schema import SHUFFLE, LossTable, PseudoTable, SamplerTable, ScheduleTable, StageTable
from ..registry import BuildContext
from ..samplers import TupleSampler
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
        parts: list[Any] = list(self.loss.modules())
        if self.miner is not None:
            parts.extend(self.miner.modules())
        if isinstance(self.sampler, nn.Module):
            parts.extend(self.sampler.modules())
        else:
            parts.append(self.sampler)
        return parts


class Stages(list[Stage]):
    """The stages of a run, in their order."""

    def of(self, epoch: int) -> Stage:
        """Return the stage of an epoch."""
        return next(stage for stage in self if stage.first <= epoch <= stage.last)

    def iterations_until(self, epoch: int) -> int:
        """Return the number of iterations up to the end of an epoch."""
        total = 0
        for stage in self:
            epochs = max(0, min(epoch, stage.last) - stage.first + 1)
            total += stage.iterations * epochs
        return total

    def parts(self) -> list[Any]:
        """Return the parts of all stages, each once."""
        parts: dict[int, Any] = {}
        for stage in self:
            for part in stage.parts():
                parts[id(part)] = part
        return list(parts.values())


def build_stages(recipe: Recipe, images: LabeledImages, device: torch.device, seed: int) -> Stages:
    """Return the stages of a recipe, the recipe's own loss in the last; ConfigError as of :func:`build_sampler`."""
    if images.tuples is not None:
        check_listed(recipe, images.tuples.kind)
    context = loss_context(recipe, np.unique(images.labels).tolist(), images.class_names)
    stages = Stages()
    first = 1
    for prefix, table in recipe.stages_by_prefix():
        stages.append(_build_stage(recipe, prefix, table, context, images, device, seed, first))
        first += table.epochs
    return stages


def _build_stage(
    recipe: Recipe,
    prefix: str,
    table: StageTable,
    context: BuildContext,
    images: LabeledImages,
    device: torch.device,
    seed: int,
    first: int,
) -> Stage:
    """Return a stage that begins with the epoch ``first``; ``prefix`` is that of its keys, for errors."""
    assert table.sampler is not None
    loss, miner = build_loss(table.loss, context, f"{prefix}loss")
    if images.tuples is not None:
        check_listed_loss(f"{prefix}loss", table.loss.name, loss, recipe, images.tuples.kind)
        check_conflicts(f"{prefix}loss", table.loss.name, loss, recipe, images.tuples)
    pseudo = recipe.data.pseudo
    if pseudo is None:
        classes = len(np.unique(images.labels))
        check_class_weights(loss, [classes, int(images.labels.max()) + 1], classes)
    loss = loss.to(device)
    if miner is not None:
        miner = miner.to(device)
    if pseudo is None:
        sampler, iterations = build_sampler(table.sampler, images, seed, context.get("relation"))
    else:
        sampler, iterations = sampler_before_clusters(table.sampler, pseudo, images, seed)

    optimizer, scheduler = _loss_optimizer(recipe, prefix, table.loss, loss, first)
    joins_processes = num_processes() > 1
    trained = DistributedLoss(loss) if joins_processes else loss
    # A batch may not reach every parameter of a loss; the buffers are equal in all processes.
    trained = data_parallel(trained, find_unused_parameters=True, broadcast_buffers=False)
    mining = miner
    if miner is not None and joins_processes:
        mining = DistributedMiner(miner)
    return Stage(
        table=table,
        first=first,
        last=first + table.epochs - 1,
        loss=loss,
        miner=miner,
        sampler=sampler,
        batch_size=table.sampler.batch_size,
        iterations=iterations,
        optimizer=optimizer,
        scheduler=scheduler,
        trained=trained,
        mining=mining,
    )


def _loss_optimizer(
    recipe: Recipe, prefix: str, table: LossTable, loss: nn.Module, first: int
) -> tuple[torch.optim.Optimizer | None, Any]:
    """Return the optimizer of a loss's own parameters and its schedule; None for what the loss does not need."""
    parameters = [parameter for parameter in loss.parameters() if parameter.requires_grad]
    optimizer_table = own_optimizer(recipe.optimizer, table)
    if not parameters:
        return None, None
    optimizer = build_optimizer(optimizer_table, parameters, key=f"{prefix}loss.optimizer")
    if not optimizer_table.scheduled:
        return optimizer, None
    return optimizer, _scheduler(optimizer, recipe.schedule, first)


def build_optimizers(
    recipe: Recipe, trunk: nn.Module, embedder: nn.Module
) -> tuple[dict[str, torch.optim.Optimizer], dict[str, Any]]:
    """Return the optimizers of trunk and embedder, if they have parameters to train, and their schedules, if any."""
    table = recipe.optimizer
    lr_factors = {"trunk": 1.0, "embedder": table.head_lr_factor}
    optimizers: dict[str, torch.optim.Optimizer] = {}
    schedules: dict[str, Any] = {}
    for part, network in (("trunk", trunk), ("embedder", embedder)):
        parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
        if not parameters:
            continue
        name = f"{part}_optimizer"
        optimizers[name] = build_optimizer(table, parameters, lr_factors[part])
        schedule = _scheduler(optimizers[name], recipe.schedule)
        if schedule is not None:
            schedules[name] = schedule
    return optimizers, schedules


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
    """Let a cosine schedule end after another number of epochs, and set its present learning rate accordingly.

    ``factor`` is that of the stage's learning rates.
    """
    schedule.T_max = epochs
    share = (1 + math.cos(math.pi * schedule.last_epoch / epochs)) / 2
    for group, base in zip(schedule.optimizer.param_groups, schedule.base_lrs, strict=True):
        group["lr"] = base * share * factor


def build_sampler(table: SamplerTable, images: LabeledImages, seed: int, relation: Any = None) -> tuple[Any, int]:
    """Return a sampler and the number of batches per epoch; ConfigError if the images are too few for them.

    Listed pairs or triplets are drawn whole, and ``batch_size`` is the number of them.
    """
    if images.tuples is not None:
        return _sampler_of_tuples(table, images.tuples, seed)
    iterations = table.iterations or max(1, len(images) // table.batch_size)
    if table.name == SHUFFLE:
        return _shuffled(table, images, iterations), iterations
    if table.name == "pml/hierarchical":
        raise ConfigError(
            "sampler: pml/hierarchical wants labels of two levels, and a run's images have one class each; type "
            '--set sampler.name=tree, with [data] relation = "hierarchy"'
        )
    classes = len(np.unique(images.labels))
    _check_batch_of_classes(table, classes)
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

    batches = len(sampler)
    if not isinstance(sampler, torch.utils.data.BatchSampler):
        batches //= table.batch_size
    if batches < (table.iterations or 1):
        text = f"a pass of {table.name} gives {batches} batches of {table.batch_size}; make iterations smaller"
        raise ConfigError(f"sampler: iterations = {table.iterations or 1}, but {text}, or batch_size")
    return sampler, table.iterations or batches


def _shuffled(table: SamplerTable, images: LabeledImages, iterations: int) -> Any:
    """Return a sampler of all images in random order; ConfigError if they are too few."""
    if iterations * table.batch_size > len(images):
        text = f"{iterations} batches of {table.batch_size} need more than the {len(images)} training images"
        raise ConfigError(f"sampler: {text}; make batch_size or iterations smaller")
    return torch.utils.data.RandomSampler(range(len(images)))


def _sampler_of_tuples(table: SamplerTable, tuples: ListedTuples, seed: int) -> tuple[TupleSampler, int]:
    """Return a sampler of listed pairs or triplets; ConfigError if they are too few."""
    iterations = table.iterations or max(1, len(tuples) // table.batch_size)
    if iterations * table.batch_size > len(tuples):
        text = f"{iterations} batches of {table.batch_size} need more than the {len(tuples)} training {tuples.kind}"
        raise ConfigError(f"sampler: {text}; make batch_size or iterations smaller")
    return TupleSampler(tuples, table.batch_size, seed), iterations


def _check_batch_of_classes(table: SamplerTable, classes: int) -> None:
    """Refuse a batch that PML's sampler of m images per class would make smaller."""
    m = table.settings.get("m")
    if table.name != "pml/m-per-class" or not isinstance(m, int) or m <= 0:
        return
    available = min(table.batch_size, classes * m)
    most = max(m, available // m * m)
    if most != table.batch_size:
        limit = f"{classes} classes x m = {m} gives at most {classes * m} images a batch, in multiples of {m}"
        remedy = f"--set sampler.batch_size={most}"
        raise ConfigError(f"sampler: found batch_size = {table.batch_size}; {limit}: {remedy}")


def with_clusters(images: LabeledImages, table: PseudoTable, labels: Labels) -> LabeledImages:
    """Return images with clusters as labels."""
    return images.replace(labels=labels, class_names=[f"cluster {number}" for number in range(table.clusters)])


def with_instances(images: LabeledImages) -> LabeledImages:
    """Return images each of which is a class of its own."""
    names = [f"image {number}" for number in range(len(images))]
    return images.replace(labels=np.arange(len(images)), class_names=names)


def sampler_before_clusters(
    table: SamplerTable, pseudo: PseudoTable, images: LabeledImages, seed: int
) -> tuple[Any, int]:
    """Return :func:`build_sampler` for clusters of equal size, before training has computed any.

    Of several batch sizes, every one is tried, so that one that does not fit is an error at once; the last is returned.
    """
    if pseudo.clusters > len(images):
        raise ConfigError(f"data.pseudo.clusters: found {pseudo.clusters}, and there are {len(images)} training images")
    equal_clusters = with_clusters(images, pseudo, np.arange(len(images)) % pseudo.clusters)
    if pseudo.batch_size is None:
        return build_sampler(table, equal_clusters, seed)
    iterations = table.iterations or max(1, 2 * len(images) // sum(pseudo.batch_size))
    samplers = []
    for size in pseudo.batch_size:
        samplers.append(build_sampler(sized(table, size, iterations), equal_clusters, seed))
    return samplers[-1]


def sized(table: SamplerTable, size: int, iterations: int) -> SamplerTable:
    """Return ``[sampler]`` with another batch size, a multiple of the images per class where that is a setting."""
    per_class = table.settings.get("m", 1)
    if isinstance(per_class, int) and per_class > 0:
        classes = max(1, size // per_class)
        size = classes * per_class
    return table.model_copy(update={"batch_size": size, "iterations": iterations})
