"""Optimizers of networks and losses, and their learning rate schedules."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from ..recipe import LossTable, Recipe, ScheduleTable, build_optimizer, own_optimizer


def build_loss_optimizer(
    recipe: Recipe, prefix: str, table: LossTable, loss: nn.Module, first: int
) -> tuple[torch.optim.Optimizer | None, Any]:
    """Return the optimizer of a loss's own parameters and its schedule, or None for each."""
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
    """Return the optimizers of trunk and embedder, if trained, and their schedules."""
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
    """Return the schedule of a learning rate from epoch ``first`` on; None if constant."""
    before = first - 1
    if schedule.name == "multi-step":
        milestones = [epoch - before for epoch in schedule.milestones if epoch > before]
        return torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, schedule.gamma)
    if schedule.name == "cosine":
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, schedule.epochs - before)
    return None


def extend_schedule(schedule: torch.optim.lr_scheduler.CosineAnnealingLR, epochs: int, factor: float) -> None:
    """Let a cosine schedule end after other ``epochs``, and update its learning rate.

    ``factor`` is the stage's learning rate factor.
    """
    schedule.T_max = epochs
    share = (1 + math.cos(math.pi * schedule.last_epoch / epochs)) / 2
    for group, base in zip(schedule.optimizer.param_groups, schedule.base_lrs, strict=True):
        group["lr"] = base * share * factor
