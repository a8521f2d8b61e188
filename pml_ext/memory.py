"""A memory of past batches for any loss that takes references."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pytorch_metric_learning.losses import BaseLossWrapper
from pytorch_metric_learning.utils import loss_and_miner_utils
from pytorch_metric_learning.utils.module_with_records import ModuleWithRecords
from torch import Tensor

from . import registry
from .losses import call_loss
from .pairwise import autocast_off, check_batch, to_full_precision
from .settings import check_count

_NEEDED = frozenset({"labels", "indices_tuple", "references"})


class _Capabilities:
    """A memory's own references take the place of the loss's; labels it always needs."""

    def __get__(self, instance: CrossBatchMemory | None, owner: type) -> frozenset[str]:
        return frozenset({"labels", "indices_tuple", "state"})


class CrossBatchMemory(BaseLossWrapper, ModuleWithRecords):  # type: ignore[misc]
    r"""Compares a batch with the embeddings of past batches too (cross-batch memory, XBM).

    The last ``memory_size`` embeddings stand in a ring. A batch first enters the ring, then each of its embeddings is
    an anchor whose partners are all the ring holds, itself left out by index. Past embeddings have no gradient; the
    batch's own do, so that a memory exactly as large as the batch gives the plain loss, gradients included.

    It takes any loss that says it has ``"labels"``, ``"indices_tuple"`` and ``"references"`` (see
    :func:`pml_ext.registry.capabilities`): PML's, registered ones, and wrappers such as
    :class:`pml_ext.RegularizedLoss`, whose regularizer sees the batch alone. Ring, cursor and fill level are in the
    ``state_dict``: a memory saved and loaded gives the next loss to the last digit.

    An ``indices_tuple`` holds rows of the batch; its pairs or triplets are added to those over the memory, as in PML's
    memory (here at the places that the rows have in the ring, there at their numbers).

    *Cost:* that of the loss on ``B`` embeddings and ``memory_size`` references, and a list of all ``B * memory_size``
    pairs where there is no miner.

    Args:
        loss: the loss.
        embedding_size: D, the length of an embedding.
        memory_size: how many embeddings the ring holds; at least the batch size.
        miner: finds pairs or triplets between the batch and the ring; None for all pairs.
        detach_batch: whether the batch's own rows in the ring are without gradient as well, as in PML's memory.

    Attributes:
        active: set it to False to use the plain loss (and the miner on the batch alone) and leave the ring as it is,
            say during the first epochs, while embeddings still move fast.

    Raises:
        TypeError: the loss is no module, or lacks a capability; the text says which.
        ValueError: a size below 1.

    Example:
        >>> from pytorch_metric_learning.losses import ContrastiveLoss
        >>> memory = CrossBatchMemory(ContrastiveLoss(), embedding_size=8, memory_size=1024)
        >>> memory(torch.randn(16, 8), torch.arange(16) // 4).shape, memory.filled
        (torch.Size([]), 16)

    *Source:* Wang et al., Cross-Batch Memory for Embedding Learning, 2020, https://arxiv.org/abs/1912.06798.
    """

    capabilities = _Capabilities()
    embedding_memory: Tensor
    label_memory: Tensor

    def __init__(
        self,
        loss: torch.nn.Module,
        embedding_size: int,
        memory_size: int = 1024,
        miner: torch.nn.Module | None = None,
        detach_batch: bool = False,
        **kwargs: Any,
    ) -> None:
        if not isinstance(loss, torch.nn.Module):
            raise TypeError(f"loss of CrossBatchMemory must be an object such as ContrastiveLoss(); got {loss!r}")
        missing = _NEEDED - registry.capabilities(loss)
        if missing or getattr(loss, "joins_processes", False):
            raise TypeError(_refusal(loss, missing))
        for name, size in (("embedding_size", embedding_size), ("memory_size", memory_size)):
            check_count(self, name, size)
        super().__init__(loss=loss, **kwargs)
        self.loss = loss
        self.miner = miner
        self.embedding_size, self.memory_size = embedding_size, memory_size
        self.detach_batch = detach_batch
        self.active = True
        self.reset_queue()
        self.add_to_recordable_attributes(list_of_names=["embedding_size", "memory_size"], is_stat=False)
        self.add_to_recordable_attributes(name="filled", is_stat=False)

    @classmethod
    def check_loss_support(cls, loss_name: str) -> None:
        """Nothing: what is asked of a loss are capabilities, not its name."""

    def reset_queue(self) -> None:
        """Empties the ring."""
        self.register_buffer("embedding_memory", torch.zeros(self.memory_size, self.embedding_size))
        self.register_buffer("label_memory", torch.zeros(self.memory_size, dtype=torch.long))
        self.cursor = self.filled = 0

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None = None,
        enqueue_mask: Tensor | None = None,
    ) -> Tensor:
        """The loss of the batch against the ring, after the batch has entered it.

        Args:
            embeddings: ``[B, D]``, any floating point dtype.
            labels: ``[B]``, integers.
            indices_tuple: pairs or triplets of rows of the batch, in addition; not with an ``enqueue_mask``.
            enqueue_mask: ``[B]``, boolean: rows that are True enter the ring, without gradient, and are no anchors
                (the keys of a momentum encoder, say); the others are anchors and do not enter it.

        Raises:
            TypeError: an argument is no tensor, or of a wrong kind.
            ValueError: a wrong shape, more embeddings than the ring holds, or both of the last two arguments.
        """
        check_batch(embeddings, labels)
        self._check(embeddings, indices_tuple, enqueue_mask)
        self.reset_stats()
        with autocast_off(embeddings.device):
            embeddings, labels = to_full_precision(embeddings), labels.to(embeddings.device)
            if not self.active:
                return self._plain(embeddings, labels, indices_tuple)
            if enqueue_mask is None:
                places = self._enqueue(embeddings, labels)
                ring, ring_labels = self._ring(places, embeddings)
                found = self._pairs(embeddings, labels, ring, ring_labels, places)
                if indices_tuple is not None:
                    found = _joined(found, _moved(indices_tuple, places))
            else:
                entering = enqueue_mask.to(embeddings.device)
                self._enqueue(embeddings[entering], labels[entering])
                embeddings, labels = embeddings[~entering], labels[~entering]
                ring, ring_labels = self._ring()
                found = self._pairs(embeddings, labels, ring, ring_labels)
            if len(embeddings) == 0 or len(ring) == 0:
                return 0 * embeddings.sum()
            return call_loss(self.loss, embeddings, labels, found, ring, ring_labels)  # type: ignore[no-any-return]

    def _check(self, embeddings: Tensor, indices_tuple: Any, enqueue_mask: Any) -> None:
        if embeddings.shape[1] != self.embedding_size:
            raise ValueError(f"CrossBatchMemory was made with embedding_size={self.embedding_size}, but the embeddings "
                             f"have {embeddings.shape[1]} columns")  # fmt: skip
        entering = len(embeddings)
        if enqueue_mask is not None:
            if indices_tuple is not None:
                raise ValueError("indices_tuple and enqueue_mask exclude each other: a tuple's rows are anchors that "
                                 "enter the memory, a mask says which rows do not")  # fmt: skip
            if not isinstance(enqueue_mask, Tensor) or enqueue_mask.dtype != torch.bool:
                raise TypeError(f"enqueue_mask must be a tensor of bool of shape ({entering},); got {enqueue_mask!r}")
            if enqueue_mask.shape != (entering,):
                raise ValueError(f"enqueue_mask must have shape ({entering},), one for each embedding; "
                                 f"got shape {tuple(enqueue_mask.shape)}")  # fmt: skip
            entering = int(enqueue_mask.sum()) if entering > self.memory_size else entering
        if self.active and entering > self.memory_size:
            raise ValueError(f"{entering} embeddings do not fit into a memory of memory_size={self.memory_size}; make "
                             "it at least as large as the batch (several batches are usual)")  # fmt: skip

    def _plain(self, embeddings: Tensor, labels: Tensor, indices_tuple: tuple[Tensor, ...] | None) -> Tensor:
        if indices_tuple is None and self.miner is not None:
            indices_tuple = self.miner(embeddings, labels)
        return call_loss(self.loss, embeddings, labels, indices_tuple)  # type: ignore[no-any-return]

    @torch.no_grad()
    def _enqueue(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Writes rows at the cursor; their places in the ring."""
        self.embedding_memory = self.embedding_memory.to(embeddings.device, embeddings.dtype)
        self.label_memory = self.label_memory.to(labels.device)
        count = len(embeddings)
        places = (self.cursor + torch.arange(count, device=embeddings.device)) % self.memory_size
        self.embedding_memory[places] = embeddings
        self.label_memory[places] = labels.to(self.label_memory.dtype)
        self.cursor = (self.cursor + count) % self.memory_size
        self.filled = min(self.memory_size, self.filled + count)
        return places

    def _ring(self, places: Tensor | None = None, embeddings: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """What the ring holds, as a copy (the next batch overwrites it), the batch's own rows with their gradient."""
        held = self.embedding_memory[: self.filled]
        if places is None or embeddings is None or self.detach_batch:
            held = held.clone()
        else:
            held = held.index_put((places,), embeddings)
        return held, self.label_memory[: self.filled].clone()

    def _pairs(
        self, embeddings: Tensor, labels: Tensor, ring: Tensor, ring_labels: Tensor, places: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """What the miner finds, or all pairs; without an embedding and its own place."""
        if self.miner is None:
            found = loss_and_miner_utils.get_all_pairs_indices(labels, ring_labels)
        else:
            found = self.miner(embeddings, labels, ring, ring_labels)
        if places is None:
            return found  # type: ignore[no-any-return]
        anchors, positives = found[:2]
        kept = positives != places[anchors]
        if len(found) == 3:
            return tuple(index[kept] for index in found)
        return (anchors[kept], positives[kept], *found[2:])

    # State: the cursor and the fill level are numbers here, so that nothing waits for the device, and tensors there.

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}cursor"] = torch.tensor(self.cursor)
        destination[f"{prefix}filled"] = torch.tensor(self.filled)

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, metadata: Any, strict: bool, missing: list[str], *lists: Any
    ) -> None:
        saved = state_dict.get(f"{prefix}embedding_memory")
        if saved is not None and saved.dtype != self.embedding_memory.dtype:  # copied into float32, digits would go
            self.embedding_memory = self.embedding_memory.to(saved.dtype)
        rest = dict(state_dict)
        for name in ("cursor", "filled"):
            value = rest.pop(f"{prefix}{name}", None)
            if value is not None:
                setattr(self, name, int(value))
            elif strict:
                missing.append(f"{prefix}{name}")
        super()._load_from_state_dict(rest, prefix, metadata, strict, missing, *lists)

    def extra_repr(self) -> str:
        """The sizes."""
        return f"embedding_size={self.embedding_size}, memory_size={self.memory_size}, filled={self.filled}"


def _refusal(loss: torch.nn.Module, missing: frozenset[str]) -> str:
    name = type(loss).__name__
    if getattr(loss, "joins_processes", False):
        return "DistributedLoss goes around the memory: DistributedLoss(CrossBatchMemory(loss, ...))"
    text = (f"CrossBatchMemory needs a loss that takes labels, indices_tuple and references; {name} does not take "
            f"{' and '.join(sorted(missing))}")  # fmt: skip
    if name == "MultipleLosses":
        text += "; type: from pml_ext import MultipleLosses, which passes references on"
    return text


def _moved(indices_tuple: tuple[Tensor, ...], places: Tensor) -> tuple[Tensor, ...]:
    """A tuple of rows of the batch with its partners at their places in the ring."""
    if len(indices_tuple) not in (3, 4):
        raise ValueError(f"indices_tuple must hold three or four index tensors, not {len(indices_tuple)}")
    anchors = {0} if len(indices_tuple) == 3 else {0, 2}
    indices = [index.to(places.device) for index in indices_tuple]
    return tuple(index if number in anchors else places[index] for number, index in enumerate(indices))


def _joined(found: tuple[Tensor, ...], added: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Both tuples in one, in the form of the first."""
    if len(found) == 4 and len(added) == 3:
        added = loss_and_miner_utils.convert_to_pairs(added, None)
    elif len(found) == 3 and len(added) == 4:
        added = loss_and_miner_utils.convert_to_triplets(added, None)
    return tuple(torch.cat(both) for both in zip(found, added, strict=True))
