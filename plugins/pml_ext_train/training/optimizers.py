"""Optimizers of networks and losses, learning rate schedules, and warm-up."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..recipe import LossTable, Recipe, ScheduleTable, build_optimizer, own_optimizer


def build_loss_optimizer(
    recipe: Recipe, prefix: str, table: LossTable, loss: nn.Module, first: int
) -> tuple[torch.optim.Optimizer | None, Any]:
    """The optimizer of a loss's own parameters and its schedule, if any."""
    parameters = _trained(loss)
    if not parameters:
        return None, None
    own = own_optimizer(recipe.optimizer, table)
    optimizer = build_optimizer(own, parameters, key=f"{prefix}loss.optimizer")
    return optimizer, _scheduler(optimizer, recipe.schedule, first) if own.scheduled else None


def build_optimizers(
    recipe: Recipe, trunk: nn.Module, embedder: nn.Module
) -> tuple[dict[str, torch.optim.Optimizer], dict[str, Any]]:
    """The optimizers of trunk and embedder, if trained, and their schedules."""
    table = recipe.optimizer
    optimizers: dict[str, torch.optim.Optimizer] = {}
    for part, network, lr_factor in (("trunk", trunk, 1.0), ("embedder", embedder, table.head_lr_factor)):
        parameters = _trained(network)
        if parameters:
            optimizers[f"{part}_optimizer"] = build_optimizer(table, parameters, lr_factor)
    schedules = {name: _scheduler(optimizer, recipe.schedule) for name, optimizer in optimizers.items()}
    return optimizers, {name: schedule for name, schedule in schedules.items() if schedule is not None}


def _trained(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def _scheduler(optimizer: torch.optim.Optimizer, schedule: ScheduleTable, first: int = 1) -> Any:
    """Schedule of a learning rate from epoch ``first`` on; None if constant."""
    before = first - 1
    if schedule.name == "multi-step":
        milestones = [epoch - before for epoch in schedule.milestones if epoch > before]
        return torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, schedule.gamma)
    if schedule.name == "cosine":
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, schedule.epochs - before)
    return None


def extend_schedule(schedule: torch.optim.lr_scheduler.CosineAnnealingLR, epochs: int, factor: float) -> None:
    """Let a cosine schedule end after other ``epochs``; ``factor`` is its stage's ``lr_factor``."""
    schedule.T_max = epochs
    share = (1 + math.cos(math.pi * schedule.last_epoch / epochs)) / 2
    for group, base in zip(schedule.optimizer.param_groups, schedule.base_lrs, strict=True):
        group["lr"] = base * share * factor


@dataclass
class WarmUp:
    """Learning rate factors ``min(1, (e - 1 + i / I) / W)`` for iteration i of I in epoch e.

    e and i begin with 1. W is ``epochs``, which may be a fraction. Factors apply only within an iteration, so
    schedules, stages and checkpoints do not depend on them. ``finished`` counts the iterations that a resumed run has
    completed.
    """

    epochs: float
    epoch: int
    iterations: int
    finished: int
    optimizers: Sequence[torch.optim.Optimizer]

    @contextmanager
    def next_iteration(self) -> Iterator[None]:
        """Multiply the learning rates of the next iteration inside the block."""
        self.finished += 1
        factor = min(1.0, (self.epoch - 1 + self.finished / self.iterations) / self.epochs)
        groups: list[dict[str, Any]] = []  # looked up in each iteration, since loading a checkpoint replaces them
        for optimizer in self.optimizers:
            groups += optimizer.param_groups
        scheduled = [group["lr"] for group in groups]
        try:
            for group in groups:
                group["lr"] *= factor
            yield
        finally:
            for group, rate in zip(groups, scheduled, strict=True):
                group["lr"] = rate
