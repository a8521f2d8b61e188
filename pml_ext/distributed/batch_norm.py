"""Batch norm with the statistics of the batches of all processes."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .processes import num_processes


class JoinedBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch norm with the statistics of all processes' batches, as one process has on the joined batch.

    torch's ``SyncBatchNorm`` does that on GPUs alone; :func:`synchronize_batch_norm` takes the one that fits.
    """

    def _check_input_dim(self, x: Tensor) -> None:
        if x.ndim < 2:
            raise ValueError(f"expected an input of two dimensions or more; got {x.ndim}")

    def forward(self, x: Tensor) -> Tensor:
        """The normalized input, ``[B, C, ...]``."""
        self._check_input_dim(x)
        if not self.training or num_processes() == 1:
            return super().forward(x)
        over = [dimension for dimension in range(x.ndim) if dimension != 1]
        shape = [1, -1] + [1] * (x.ndim - 2)
        count = x.numel() / x.shape[1]
        total = _sum_over_processes(torch.cat([x.sum(over), x.new_tensor([count])]))
        mean, joined = total[:-1] / total[-1], total[-1].detach()
        centered = x - mean.view(shape)
        variance = _sum_over_processes(centered.square().sum(over)) / joined
        self._keep(mean.detach(), variance.detach() * joined / (joined - 1).clamp(min=1))
        result = centered * (variance + self.eps).rsqrt().view(shape)
        return result * self.weight.view(shape) + self.bias.view(shape) if self.affine else result

    @torch.no_grad()
    def _keep(self, mean: Tensor, variance: Tensor) -> None:
        if not self.track_running_stats or self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        factor = self.momentum if self.momentum is not None else 1 / int(self.num_batches_tracked)
        self.running_mean.lerp_(mean, factor)
        self.running_var.lerp_(variance, factor)


class _SumOverProcesses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        total = x.contiguous().clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        total = grad.contiguous().clone()
        dist.all_reduce(total)
        return total


def _sum_over_processes(x: Tensor) -> Tensor:
    total: Tensor = _SumOverProcesses.apply(x)  # type: ignore[no-untyped-call]
    return total


def synchronize_batch_norm(module: nn.Module, device: torch.device) -> nn.Module:
    """A network whose batch norms have the statistics of the joined batch: torch's SyncBatchNorm on GPUs, ours else.

    Args:
        module: the network; parameters and buffers stay the same objects.
        device: where it runs.
    """
    if device.type == "cuda":
        return nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-any-return,no-untyped-call]
    if type(module) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
        module.__class__ = JoinedBatchNorm
    for child in module.children():
        synchronize_batch_norm(child, device)
    return module
