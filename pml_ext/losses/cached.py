"""Gradient caching: the loss of a whole batch that is too large for the network, which runs in micro-batches."""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..errors import TrainingWarning
from ..pairwise.batch import describe
from ..settings import check_count
from .calling import WrapperCapabilities, call_loss, check_module


class CachedGradients(nn.Module):
    r"""The loss of a whole batch, gradients included, while the network runs in micro-batches.

    The network embeds one micro-batch after the other and saves only its inputs. The loss sees the embeddings of the
    whole batch. The backward pass recomputes each micro-batch and backpropagates its part of the gradient (gradient
    caching). Unlike in gradient accumulation, pairs, hard negatives and memories come from the whole batch.

    Dropout and training-mode batch norm act on each micro-batch; batch norm causes a warning.

    *Cost:* two forward passes and one backward pass of the network; memory of one micro-batch and of the embeddings.

    Args:
        network: maps inputs ``[B, ...]`` to embeddings ``[B, D]``.
        loss: any loss of PML or of ours, or a wrapper around one.
        micro_batch: how many inputs the network gets at a time, at least 1.
        miner: finds the ``indices_tuple``, or None.

    Raises:
        TypeError: inputs or outputs of the network that are not one tensor, such as a dictionary.

    Example:
        >>> from pytorch_metric_learning.losses import ContrastiveLoss
        >>> step = CachedGradients(torch.nn.Linear(3, 2), ContrastiveLoss(), micro_batch=4)
        >>> step(torch.randn(16, 3), torch.arange(16) // 4).backward()

    *Source:* Gao et al., Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup, 2021,
    https://arxiv.org/abs/2101.06983.
    """

    capabilities = WrapperCapabilities(set(), lambda self: set())  # it takes inputs, not embeddings

    def __init__(self, network: nn.Module, loss: nn.Module, micro_batch: int, miner: nn.Module | None = None) -> None:
        check_module(self, "network", network, "resnet50()")
        check_module(self, "loss", loss, "ContrastiveLoss()")
        super().__init__()
        self.network = MicroBatched(network, micro_batch)
        self.loss = loss
        self.miner = miner

    if TYPE_CHECKING:

        def __call__(self, inputs: Tensor, labels: Tensor | None = None, **others: Any) -> Tensor:
            """Return the loss of the whole batch: see :meth:`forward`."""

    def forward(self, inputs: Tensor, labels: Tensor | None = None, **others: Any) -> Any:
        """Return the loss of the whole batch of inputs ``[B, ...]``; further arguments are those of the loss."""
        embeddings = self.network(inputs)
        if self.miner is not None and others.get("indices_tuple") is None:
            others["indices_tuple"] = self.miner(embeddings, labels)
        return call_loss(self.loss, embeddings, labels, **others)


class MicroBatched(nn.Module):
    """A network that runs in micro-batches and saves only their inputs; see :class:`CachedGradients`."""

    def __init__(self, network: nn.Module, micro_batch: int) -> None:
        check_count("CachedGradients", "micro_batch", micro_batch)
        super().__init__()
        self.network = network
        self.micro_batch = micro_batch
        self._warned = False

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs of the whole batch of inputs ``[B, ...]``; TypeError unless both are tensors."""
        if not isinstance(inputs, Tensor) or inputs.ndim == 0:
            raise TypeError(
                "micro-batches are split from one tensor of inputs of shape (batch size, ...); got "
                f"{_kind(inputs)}; join or convert the inputs, for example by torch.as_tensor(...)"
            )
        if len(inputs) <= self.micro_batch:
            return self._outputs(inputs)
        if not self._warned and any(module.training for module in _batch_norms(self.network)):
            self._warned = True
            warnings.warn(
                f"the network has batch norm, whose statistics come from micro-batches of {self.micro_batch}; freeze "
                "it (module.eval(), freeze_batch_norm in a recipe), or take layer or group norm, for the gradients of "
                "the whole batch",
                TrainingWarning,
                stacklevel=2,
            )
        contexts = contextlib.nullcontext(), _StatisticsKept(self.network)  # for the forward pass and its recomputation
        outputs = []
        for part in torch.split(inputs, self.micro_batch):
            outputs.append(checkpoint(self._outputs, part, use_reentrant=False, context_fn=lambda: contexts))
        return torch.cat(outputs)

    def _outputs(self, inputs: Tensor) -> Tensor:
        outputs = self.network(inputs)
        if not isinstance(outputs, Tensor):
            raise TypeError(
                "a network in micro-batches must return one tensor of embeddings; got "
                f"{_kind(outputs)} from {type(self.network).__name__}; wrap it in a module that returns these"
            )
        return outputs


def _kind(value: Any) -> str:
    """Describe a value in one line; the text of a dictionary of tensors has many."""
    if isinstance(value, (Tensor, list, tuple)):
        return describe(value)
    return f"a {type(value).__name__}"


def _batch_norms(network: nn.Module) -> list[Any]:
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
    return [module for module in network.modules() if isinstance(module, kinds)]


class _StatisticsKept:
    """Context that restores batch norm statistics on exit: the first forward pass has already updated them."""

    def __init__(self, network: nn.Module) -> None:
        self._network = network

    def __enter__(self) -> None:
        self._kept: list[tuple[Tensor, Tensor]] = []
        for module in _batch_norms(self._network):
            if module.training:
                self._kept += [(buffer, buffer.clone()) for buffer in module.buffers()]

    def __exit__(self, *_: object) -> None:
        for buffer, before in self._kept:
            buffer.data.copy_(before)
