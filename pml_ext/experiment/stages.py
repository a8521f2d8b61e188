"""The stages of a training, each with its own loss, miner and sampler, the networks' optimizers, and pseudo labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..data import LabeledImages
from ..distributed import DistributedLoss, DistributedMiner, from_rank_0, join, num_processes
from ..evaluation import kmeans, nmi
from .engine import over_processes
from .recipe import (
    PseudoTable,
    Recipe,
    SamplerTable,
    ScheduleTable,
    build_loss,
    build_optimizer,
    loss_context,
    own_optimizer,
)
from .sampling import build_sampler, classes_of, sampler_before_clusters, sampler_of_clusters
from .view import View


@dataclass
class Stage:
    """A part of the training with its own loss and sampler.

    Args:
        first: its first epoch, from 1.
        last: its last epoch.
        loss: that is minimized.
        miner: that chooses pairs or triplets for it.
        sampler: that composes batches.
        table: ``[sampler]``.
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
    table: SamplerTable
    batch_size: int
    iterations: int
    optimizer: torch.optim.Optimizer | None
    scheduler: Any
    trained: nn.Module
    mining: nn.Module | None


class Stages(list[Stage]):
    """The stages of a run, in their order."""

    def of(self, epoch: int) -> Stage:
        """Return the stage of an epoch."""
        return next(stage for stage in self if stage.first <= epoch <= stage.last)

    def iterations_before(self, epoch: int) -> int:
        """Return how many iterations all epochs before one have together."""
        return sum(stage.iterations * max(0, min(epoch - 1, stage.last) - stage.first + 1) for stage in self)

    def parts(self) -> list[Any]:
        """Return all modules and samplers of the stages, each once: any of them may take part in the run."""
        parts: list[Any] = []
        for stage in self:
            for owner in (stage.loss, stage.miner, stage.sampler):
                for part in owner.modules() if isinstance(owner, nn.Module) else [owner]:
                    if part is not None and not any(part is other for other in parts):
                        parts.append(part)
        return parts


def after_step(view: View, stage: Stage, indices: Tensor, embeddings: Tensor) -> None:
    """Call the components of a stage that have ``after_step(run, indices, embeddings)``."""
    parts = [part for part in Stages([stage]).parts() if callable(getattr(part, "after_step", None))]
    if parts and view.processes > 1:
        joined = join({"indices": indices, "embeddings": embeddings.cpu()})
        indices, embeddings = joined["indices"], joined["embeddings"]
    for part in parts:
        view.call(part, "after_step", indices, embeddings)


def build_stages(recipe: Recipe, images: LabeledImages, device: torch.device, seed: int) -> Stages:
    """Return the stages of a recipe, the recipe's own loss in the last.

    Raises:
        ConfigError: a sampler that cannot compose its batches from these images.
    """
    context = loss_context(recipe, classes_of(images))
    stages, first = Stages(), 1
    for table in recipe.all_stages():
        assert table.sampler is not None
        loss, miner = build_loss(table.loss, context)
        loss, miner = loss.to(device), miner.to(device) if miner is not None else None
        if recipe.data.pseudo is None:
            sampler, iterations = build_sampler(table.sampler, images, seed)
        else:
            sampler, iterations = sampler_before_clusters(table.sampler, recipe.data.pseudo, images, seed)
        own = [parameter for parameter in loss.parameters() if parameter.requires_grad]
        optimizer_table = own_optimizer(recipe.optimizer, table.loss)
        optimizer, scheduler = build_optimizer(optimizer_table, own) if own else None, None
        if optimizer is not None and optimizer_table.scheduled:
            scheduler = _scheduler(optimizer, recipe.schedule, first)
        joined = num_processes() > 1
        stages.append(
            Stage(
                first,
                first + table.epochs - 1,
                loss,
                miner,
                sampler,
                table.sampler,
                table.sampler.batch_size,
                iterations,
                optimizer,
                scheduler,
                # A batch need not reach every parameter of a loss, and its buffers are alike in all processes.
                over_processes(
                    DistributedLoss(loss) if joined else loss, find_unused_parameters=True, broadcast_buffers=False
                ),
                DistributedMiner(miner) if miner is not None and joined else miner,
            )
        )
        first += table.epochs
    return stages


@dataclass
class Optimizers:
    """The optimizers of the networks that have parameters to train, and the schedules of their learning rates.

    Args:
        steps: ``"trunk_optimizer"`` and ``"embedder_optimizer"``.
        schedules: by the same names, where the recipe has a schedule.
    """

    steps: dict[str, torch.optim.Optimizer]
    schedules: dict[str, Any]


def build_optimizers(recipe: Recipe, trunk: nn.Module, embedder: nn.Module) -> Optimizers:
    """Return the optimizers of a recipe; the embedder's learning rate is ``head_lr_factor`` times the trunk's."""
    table = recipe.optimizer
    steps = {
        f"{key}_optimizer": build_optimizer(table, parameters, factor)
        for key, network, factor in (("trunk", trunk, 1.0), ("embedder", embedder, table.head_lr_factor))
        if (parameters := [parameter for parameter in network.parameters() if parameter.requires_grad])
    }
    made = {key: _scheduler(optimizer, recipe.schedule) for key, optimizer in steps.items()}
    return Optimizers(steps, {key: scheduler for key, scheduler in made.items() if scheduler is not None})


def _scheduler(optimizer: torch.optim.Optimizer, schedule: ScheduleTable, first: int = 1) -> Any:
    """Return the schedule of a learning rate from an epoch of the run on; None for a constant one."""
    before = first - 1
    if schedule.name == "multi-step":
        milestones = [epoch - before for epoch in schedule.milestones if epoch > before]
        return torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, schedule.gamma)
    if schedule.name == "cosine":
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, schedule.epochs - before)
    return None


# Training without labels: clusters of the training images are the labels of an epoch (Kan et al., 2022, Sec. 4.6)

Labels = NDArray[np.int64]


def clusters_of(view: View, table: PseudoTable) -> Labels:
    """Return the cluster of every training image by the network as it is, ``[N]``, the same in every process."""
    labels = None
    if view.rank == 0:
        points = nn.functional.normalize(view.embeddings("train", table.features))
        labels = kmeans(points, table.clusters).cpu().numpy().astype(np.int64)
    return from_rank_0(labels)  # type: ignore[no-any-return]


def renew_clusters(
    view: View, stage: Stage, before: Labels | None, kept: Labels | None, tell: Callable[[str], None]
) -> tuple[Labels | None, dict[str, Any]]:
    """Make clusters the labels of an epoch: of its batches, of its sampler, and in what components see.

    Args:
        view: of the run, at the epoch. Epoch 0 is before components prepare themselves; epoch 1 has its clusters.
        stage: of the epoch.
        before: the clusters of the epoch before; None where there is none.
        kept: this epoch's, where a run goes on inside of it.
        tell: called with a line before images are clustered.

    Returns:
        The cluster of every training image, and facts about the clusters: how many have an image, the share of the
        images that the largest has, and the NMI to the epoch before. Nothing where labels are given.
    """
    if (table := view.recipe.data.pseudo) is None:
        return None, {}
    labels = kept if kept is not None else before if view.epoch == 1 else None
    if labels is None:
        tell(f"clustering the training images before epoch {max(1, view.epoch)}")
        labels = clusters_of(view, table)
    view.pseudo_labels = labels
    names = [f"cluster {number}" for number in range(table.clusters)]
    images = view.training_images.replace(labels=labels, class_names=names)
    stage.sampler, stage.batch_size = sampler_of_clusters(
        stage.table, table, images, stage.iterations, view.seed, max(1, view.epoch)
    )
    sizes = np.bincount(labels)
    about: dict[str, Any] = {"clusters": int((sizes > 0).sum()), "largest": float(sizes.max() / len(labels))}
    if view.epoch > 1 and before is not None:
        about["nmi_to_epoch_before"] = nmi(before, labels)
    return labels, about
