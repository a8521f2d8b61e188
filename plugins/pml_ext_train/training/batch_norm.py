"""Batch norm with the statistics of the batches of all processes."""

import warnings

import torch
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce

from pml_ext.distributed import num_processes


class JoinedBatchNorm(nn.BatchNorm1d):
    """Batch norm over the joined batch of all processes, on any device."""

    def _check_input_dim(self, x: Tensor) -> None:
        if x.ndim < 2:
            raise ValueError(f"expected an input of two dimensions or more; got {x.ndim}")

    def forward(self, x: Tensor) -> Tensor:
        """Normalize ``[B, C, ...]``; statistics are at least float32."""
        if not self.training or num_processes() == 1:
            return super().forward(x)
        self._check_input_dim(x)
        precision = x.dtype
        x = x.to(torch.promote_types(precision, torch.float32))
        over = [dimension for dimension in range(x.ndim) if dimension != 1]
        shape = [1, -1] + [1] * (x.ndim - 2)
        total = all_reduce(torch.cat([x.sum(over), x.new_tensor([x.numel() / x.shape[1]])]))  # type: ignore[no-untyped-call]
        mean = total[:-1] / total[-1]
        count = total[-1].detach()
        centered = x - mean.view(shape)
        variance = all_reduce(centered.square().sum(over)) / count  # type: ignore[no-untyped-call]
        if self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None:
            self.num_batches_tracked += 1
            factor = 1 / int(self.num_batches_tracked) if self.momentum is None else self.momentum
            self.running_mean.lerp_(mean.detach(), factor)
            self.running_var.lerp_(variance.detach() * count / (count - 1).clamp(min=1), factor)
        result: Tensor = centered * (variance + self.eps).rsqrt().view(shape)
        if self.affine:
            result = result * self.weight.view(shape) + self.bias.view(shape)
        return result.to(precision)


class _JoinedBatchNormAct(JoinedBatchNorm):
    """Joined batch norm in place of timm's ``BatchNormAct2d``."""

    drop: nn.Module
    act: nn.Module

    def forward(self, x: Tensor) -> Tensor:
        """Return the activation."""
        return self.act(self.drop(super().forward(x)))  # type: ignore[no-any-return]


def synchronize_batch_norm(module: nn.Module, device: torch.device) -> nn.Module:
    """Use torch's SyncBatchNorm on GPUs, else :class:`JoinedBatchNorm`.

    Without a GPU, unknown classes of batch norm stay, with a warning.
    """
    if device.type == "cuda":
        if any(_holds_activation(part) for part in module.modules()):
            from timm.layers.norm_act import convert_sync_batchnorm  # torch's would drop the activations

            return convert_sync_batchnorm(module)  # type: ignore[no-any-return,no-untyped-call]
        return nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-any-return,no-untyped-call]
    for part in module.modules():
        if type(part) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
            part.__class__ = JoinedBatchNorm
        elif _holds_activation(part):
            part.__class__ = _JoinedBatchNormAct
        elif isinstance(part, nn.modules.batchnorm._BatchNorm) and not isinstance(part, JoinedBatchNorm):
            name = type(part).__qualname__
            warnings.warn(f"{name} has the statistics of the batches of its own process", stacklevel=2)
    return module


def _holds_activation(module: nn.Module) -> bool:
    return type(module).__name__ == "BatchNormAct2d" and type(module).__module__.startswith("timm.")
