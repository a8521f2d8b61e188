"""Gradient caching: the loss of a whole batch, while the network runs in micro-batches."""

import contextlib
import inspect
import itertools
import math
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..errors import TrainingWarning
from ..pairwise import check_references
from ..registry.components import capabilities
from ..settings import check_count
from .calling import WrapperCapabilities, call_loss, check_module, unwrapped
from .mining import mine
from .splitting import kind_of, number_of_rows, rows_of


class CachedGradients(nn.Module):
    """The loss of a whole batch, gradients included, while the network runs in micro-batches.

    The backward pass embeds each micro-batch again. Unlike in gradient accumulation, pairs, hard negatives and memories
    come from the whole batch.

    Inputs are a tensor or array ``[B, ...]``, a list with one item per row, or a tuple or dictionary of these. Inside a
    tuple or dictionary, numbers, texts, None and tensors without dimensions go to every micro-batch.

    Dropout and training-mode batch norm act on each micro-batch; batch norm causes a warning. With several processes,
    wrap the step and not the network: ``DistributedDataParallel(CachedGradients(network, DistributedLoss(loss), 32))``.

    *Cost:* two forward passes and one backward pass of the network; memory for one micro-batch and all embeddings.

    Args:
        network: maps inputs to embeddings ``[B, D]``, or to a dictionary, tuple or ``ModelOutput`` with embeddings.
        loss: any PML or ``pml_ext`` loss or wrapper.
        micro_batch: the most rows that the network gets at a time, at least 1.
        miner: finds the ``indices_tuple``; optional.
        reference_network: embeds ``reference_inputs``; ``network`` by default.
        output: key, attribute or position of the embeddings in the outputs; by default the only two-dimensional
            floating point tensor.
        unpack: whether dictionaries become keyword arguments, and tuples positional ones; by default, if ``forward``
            has such parameters.

    Raises:
        TypeError: inputs that cannot be split, outputs without a single tensor of embeddings, or a network inside
            DistributedDataParallel.
        ValueError: inputs, labels or outputs with different numbers of rows.

    Example:
        >>> from pytorch_metric_learning.losses import ContrastiveLoss
        >>> step = CachedGradients(torch.nn.Linear(3, 2), ContrastiveLoss(), micro_batch=4)
        >>> step(torch.randn(16, 3), torch.arange(16) // 4).backward()

    *Source:* Gao et al., Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup, 2021,
    https://arxiv.org/abs/2101.06983.
    """

    capabilities = WrapperCapabilities(set(), lambda self: set())  # it takes inputs, not embeddings

    def __init__(
        self,
        network: nn.Module,
        loss: nn.Module,
        micro_batch: int,
        miner: nn.Module | None = None,
        *,
        reference_network: nn.Module | None = None,
        output: str | int | None = None,
        unpack: bool | None = None,
    ) -> None:
        check_module(self, "network", network, "resnet50()")
        check_module(self, "loss", loss, "ContrastiveLoss()")
        super().__init__()
        self.network = MicroBatched(network, micro_batch, output, unpack)
        self.reference_network = self.network
        if reference_network is not None:
            check_module(self, "reference_network", reference_network, "resnet50()")
            self.reference_network = MicroBatched(reference_network, micro_batch, output, unpack)
        self.loss = loss
        self.miner = miner

    if TYPE_CHECKING:

        def __call__(
            self,
            inputs: Any,
            labels: Any = None,
            reference_inputs: Any = None,
            ref_labels: Any = None,
            **others: Any,
        ) -> Tensor:
            """See :meth:`forward`."""

    def forward(
        self, inputs: Any, labels: Any = None, reference_inputs: Any = None, ref_labels: Any = None, **others: Any
    ) -> Any:
        """The loss of the whole batch.

        Args:
            inputs: inputs of the network, B rows.
            labels: labels of the rows.
            reference_inputs: inputs of R references.
            ref_labels: labels of the references.
            others: the loss's ``indices_tuple``, ``ref_emb`` (embeddings) or ``enqueue_mask``.
        """
        embeddings = self.network(inputs, _number_of(labels))
        if reference_inputs is None:
            others["ref_labels"] = ref_labels
        else:
            others |= self._references(embeddings, labels, reference_inputs, ref_labels, others)
        if self.miner is not None and others.get("indices_tuple") is None:
            others["indices_tuple"] = self._mined(embeddings, labels, others.get("ref_emb"), others["ref_labels"])
        return call_loss(self.loss, embeddings, labels, **others)

    def _references(
        self, embeddings: Tensor, labels: Any, reference_inputs: Any, ref_labels: Any, others: dict[str, Any]
    ) -> dict[str, Any]:
        if "references" not in capabilities(unwrapped(self.loss)):
            raise TypeError(
                f"{type(self.loss).__name__} takes no references; leave out reference_inputs, or take a loss such as "
                "NTXentLoss()"
            )
        if others.get("ref_emb") is not None:
            raise ValueError(
                "reference_inputs and ref_emb are both given; reference_inputs are embedded, so leave out one"
            )
        if ref_labels is None and labels is not None:
            raise ValueError(
                "reference_inputs need ref_labels; where reference i belongs to row i of the inputs, type "
                "ref_labels=labels"
            )
        references = self.reference_network(reference_inputs, _number_of(ref_labels))
        check_references(embeddings, references, None)
        if ref_labels is labels and isinstance(labels, Tensor):
            ref_labels = labels.clone()  # PML takes the same object for the batch itself and leaves out pairs (i, i)
        return {"ref_emb": references, "ref_labels": ref_labels}

    def _mined(self, embeddings: Tensor, labels: Any, references: Tensor | None, ref_labels: Any) -> Any:
        assert self.miner is not None
        if references is None:
            return self.miner(embeddings, labels)
        return mine(self.miner, embeddings, labels, references, ref_labels)


class MicroBatched(nn.Module):
    """A network that runs in micro-batches and saves only their inputs."""

    def __init__(
        self, network: nn.Module, micro_batch: int, output: str | int | None = None, unpack: bool | None = None
    ) -> None:
        check_count("CachedGradients", "micro_batch", micro_batch)
        super().__init__()
        self.network = network
        self.micro_batch = micro_batch
        self.output = output
        self.unpack = unpack
        self._warned = False

    def forward(self, inputs: Any, wanted: int | None = None) -> Tensor:
        """Embeddings ``[B, D]``; ``wanted`` is the expected B."""
        if isinstance(self.network, nn.parallel.DistributedDataParallel):
            raise TypeError(
                "micro-batches of a network inside DistributedDataParallel would exchange gradients too early; type "
                "DistributedDataParallel(CachedGradients(network.module, DistributedLoss(loss), ...))"
            )
        rows = number_of_rows(inputs, wanted)
        if rows <= self.micro_batch:
            return self._embeddings(inputs, rows)
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
        devices = {parameter.device for parameter in self.network.parameters()}
        # checkpoint saves the random generators of the devices of its arguments, and texts have none
        on_devices = [torch.empty(0, device=device) for device in devices]

        def embed(part: Any, count: int, *_: Tensor) -> Tensor:
            return self._embeddings(part, count)

        parts = math.ceil(rows / self.micro_batch)
        bounds = [rows * part // parts for part in range(parts + 1)]  # evenly, since batch norm fails on a last row
        embeddings = []
        for first, last in itertools.pairwise(bounds):
            part = rows_of(inputs, first, last)
            embeddings.append(
                checkpoint(embed, part, last - first, *on_devices, use_reentrant=False, context_fn=lambda: contexts)
            )
        return torch.cat(embeddings)

    def _embeddings(self, inputs: Any, rows: int) -> Tensor:
        outputs = call_network(self.network, inputs, self.unpack)
        embeddings = embeddings_in(outputs, self.output, type(self.network).__name__)
        if embeddings.ndim == 0 or len(embeddings) != rows:
            raise ValueError(
                f"{type(self.network).__name__} must return one embedding for each row of its inputs, {rows}; got "
                f"{kind_of(embeddings)}"
            )
        return embeddings


def call_network(network: nn.Module, inputs: Any, unpack: bool | None = None) -> Any:
    """Call a network; ``unpack`` as in :class:`CachedGradients`."""
    if isinstance(inputs, Mapping):
        if unpack is None:
            unpack = not set(_parameters_of(network)).isdisjoint(inputs)
        if unpack:
            return network(**inputs)
    elif isinstance(inputs, tuple):
        if unpack is None:
            kinds = [kind for kind in _parameters_of(network).values() if kind in _POSITIONAL]
            unpack = len(kinds) >= len(inputs) > 1 or inspect.Parameter.VAR_POSITIONAL in kinds
        if unpack:
            return network(*inputs)
    return network(inputs)


_POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
)


def _parameters_of(network: nn.Module) -> dict[str, Any]:
    network = getattr(network, "_orig_mod", network)
    parameters = inspect.signature(network.forward).parameters
    return {name: parameter.kind for name, parameter in parameters.items()}


def embeddings_in(outputs: Any, output: str | int | None, name: str) -> Tensor:
    """The embeddings in a network's outputs; ``output`` as in :class:`CachedGradients`."""
    if isinstance(outputs, Tensor):
        return outputs
    if isinstance(outputs, Mapping):
        found = dict(outputs)
    elif isinstance(outputs, (tuple, list)):
        found = dict(enumerate(outputs))
    else:
        found = dict(getattr(outputs, "__dict__", {}))
    if output is not None:
        if not isinstance(found.get(output), Tensor):
            returned = _described(found) or kind_of(outputs)
            raise TypeError(f"output={output!r} is no tensor in what {name} returns: {returned}")
        named: Tensor = found[output]
        return named
    flat: list[Tensor] = [value for value in found.values() if _may_be_embeddings(value)]
    if len(flat) != 1:
        raise TypeError(
            "a network in micro-batches must return one tensor of embeddings, or one floating point tensor of two "
            f"dimensions among others; got {kind_of(outputs)} from {name} with {_described(found) or 'no tensor'}; "
            "name one by output=..."
        )
    return flat[0]


def _may_be_embeddings(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.ndim == 2


def _described(found: Mapping[Any, Any]) -> str:
    tensors = [f"{name!r} {list(value.shape)}" for name, value in found.items() if isinstance(value, Tensor)]
    return ", ".join(tensors)


def _number_of(labels: Any) -> int | None:
    if isinstance(labels, Tensor) and labels.ndim == 0:
        return None
    return len(labels) if hasattr(labels, "__len__") else None


def _batch_norms(network: nn.Module) -> list[Any]:
    return [module for module in network.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]


class _StatisticsKept:
    """Restores batch norm statistics, which the first forward pass has already updated."""

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
