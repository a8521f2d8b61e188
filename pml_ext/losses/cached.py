"""Gradient caching: a batch larger than the network's memory, in micro-batches, with the loss of the whole batch."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from ..devices import generator_states, set_generator_states
from ..errors import TrainingWarning
from ..settings import check_count
from .calling import WrapperCapabilities, call_loss


class CachedGradients(nn.Module):
    r"""The loss of a batch whose network runs in micro-batches, with the gradients of the whole batch.

    The network embeds one micro-batch after the other and keeps nothing but its inputs; the loss sees the embeddings
    of the whole batch; in the backward pass each micro-batch is computed again and takes its share of the gradient
    (gradient caching). Pairs, hard negatives and memories are of the whole batch, unlike in gradient accumulation.

    Random numbers are drawn as for the whole batch, as far as random tensors have a row per image: dropout gives what
    it gives without micro-batches. Batch norm in training mode takes the statistics of each micro-batch, and a warning
    says so.

    *Cost:* the network twice forward and once backward; memory of one micro-batch and of the embeddings.

    Args:
        network: from inputs ``[B, ...]`` to embeddings ``[B, D]``.
        loss: any loss of PML or of ours, or a wrapper around one.
        micro_batch: how many inputs the network gets at a time.
        miner: finds the ``indices_tuple``, or None.

    Raises:
        TypeError: network or loss is no module.
        ValueError: a ``micro_batch`` below 1.
        TrainingWarning: the network has batch norm in training mode.

    Example:
        >>> from pytorch_metric_learning.losses import ContrastiveLoss
        >>> step = CachedGradients(torch.nn.Linear(3, 2), ContrastiveLoss(), micro_batch=4)
        >>> step(torch.randn(16, 3), torch.arange(16) // 4).backward()

    *Source:* Gao et al., Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup, 2021,
    https://arxiv.org/abs/2101.06983.
    """

    capabilities = WrapperCapabilities(set(), lambda self: set())  # it takes inputs, not embeddings

    def __init__(self, network: nn.Module, loss: nn.Module, micro_batch: int, miner: nn.Module | None = None) -> None:
        for name, module in (("network", network), ("loss", loss)):
            if not isinstance(module, nn.Module):
                raise TypeError(f"{name} of CachedGradients must be a module; got {module!r}")
        super().__init__()
        self.network = MicroBatched(network, micro_batch)
        self.loss, self.miner = loss, miner

    if TYPE_CHECKING:

        def __call__(self, inputs: Tensor, labels: Tensor | None = None, **others: Any) -> Tensor:
            """The loss of the whole batch: see :meth:`forward`."""

    def forward(self, inputs: Tensor, labels: Tensor | None = None, **others: Any) -> Any:
        """Return the loss of the whole batch of inputs ``[B, ...]``; further arguments as of the loss."""
        embeddings = self.network(inputs)
        if self.miner is not None and others.get("indices_tuple") is None:
            others["indices_tuple"] = self.miner(embeddings, labels)
        return call_loss(self.loss, embeddings, labels, **others)


class MicroBatched(nn.Module):
    """A network that runs in micro-batches and keeps their inputs alone; see :class:`CachedGradients`."""

    def __init__(self, network: nn.Module, micro_batch: int) -> None:
        check_count("CachedGradients", "micro_batch", micro_batch)
        super().__init__()
        self.network, self.micro_batch = network, micro_batch
        self._warned = False

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs of the whole batch of inputs ``[B, ...]``."""
        if len(inputs) <= self.micro_batch:
            return self.network(inputs)  # type: ignore[no-any-return]
        self._warn_of_batch_norm()
        states = generator_states(inputs.device)
        outputs = []
        for start in range(0, len(inputs), self.micro_batch):
            set_generator_states(inputs.device, states)  # each draws what the whole batch does, and takes its rows
            part = _Part(self.network, slice(start, start + self.micro_batch), len(inputs))
            outputs.append(checkpoint(part, inputs[start : start + self.micro_batch], use_reentrant=False))
        return torch.cat(outputs)

    def _warn_of_batch_norm(self) -> None:
        if self._warned or not any(module.training for module in _batch_norms(self.network)):
            return
        self._warned = True
        warnings.warn(
            f"the network has batch norm, whose statistics come from micro-batches of {self.micro_batch}; freeze it "
            "(module.eval(), freeze_batch_norm in a recipe), or take layer or group norm, for the gradients of the "
            "whole batch",
            TrainingWarning,
            stacklevel=3,
        )


class _Part:
    """The network on some rows of a batch; called once forward, and once more in the backward pass."""

    def __init__(self, network: nn.Module, rows: slice, count: int) -> None:
        self._network, self._rows, self._count = network, rows, count
        self._again = False

    def __call__(self, inputs: Tensor) -> Any:
        keep = _statistics_kept(self._network) if self._again else contextlib.nullcontext()
        self._again = True
        if not self._network.training:
            return self._network(inputs)
        with keep, _RowsOfTheBatch(self._rows.start, len(inputs), self._count):
            return self._network(inputs)


def _batch_norms(network: nn.Module) -> list[Any]:
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
    return [module for module in network.modules() if isinstance(module, kinds)]


@contextlib.contextmanager
def _statistics_kept(network: nn.Module) -> Iterator[None]:
    """Keep the statistics of batch norms, which have counted the batch already."""
    buffers = [buffer for module in _batch_norms(network) if module.training for buffer in module.buffers()]
    kept = [buffer.clone() for buffer in buffers]
    try:
        yield
    finally:
        for buffer, before in zip(buffers, kept, strict=True):
            buffer.data.copy_(before)


_aten = torch.ops.aten
_FILLS = {_aten.bernoulli_.float, _aten.uniform_.default, _aten.normal_.default, _aten.exponential_.default}
_LIKE = {_aten.rand_like.default, _aten.randn_like.default, _aten.bernoulli.p}
_SIZES = {_aten.rand.default, _aten.randn.default}


class _RowsOfTheBatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Random tensors with a row per input are drawn for the whole batch, of which the part's rows are taken."""

    def __init__(self, start: int, size: int, count: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._rows, self._size, self._count = slice(start, start + size), size, count

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _SIZES and args[0] and args[0][0] == self._size:
            return func([self._count, *args[0][1:]], *args[1:], **kwargs)[self._rows]
        tensor = args[0] if args and isinstance(args[0], Tensor) else None
        if tensor is not None and tensor.ndim and len(tensor) == self._size:
            if func in _FILLS:
                return tensor.copy_(func(self._whole(tensor), *args[1:], **kwargs)[self._rows])
            if func in _LIKE:
                return func(self._whole(tensor), *args[1:], **kwargs)[self._rows]
            if func is _aten.native_dropout.default and args[2]:  # of a GPU: its mask is drawn with ones in place
                _, mask = func(torch.ones_like(self._whole(tensor)), *args[1:])
                mask = mask[self._rows]
                return tensor * mask * (1 / (1 - args[1]) if args[1] < 1 else 0.0), mask
        return func(*args, **kwargs)

    def _whole(self, tensor: Tensor) -> Tensor:
        """Return memory for the whole batch, laid out as the tensor is."""
        whole = tensor.new_empty((self._count, *tensor.shape[1:]))
        if tensor.ndim == 4 and not tensor.is_contiguous():
            whole = whole.contiguous(memory_format=torch.channels_last)
        return whole
