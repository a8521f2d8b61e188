"""A memory of past batches for any loss that accepts references."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from ..pairwise import autocast_off, check_indices_tuple, normalizes, run_eagerly, to_full_precision
from ..pml import (
    BaseCrossBatchMemory,
    ModuleSettings,
    convert_to_pairs,
    convert_to_triplets,
    get_all_pairs_indices,
)
from ..registry.components import capabilities
from ..relations import related_pairs
from ..settings import check_count, check_flag
from .calling import (
    WrapperCapabilities,
    WrapsLoss,
    call_loss,
    check_call,
    check_module,
    counts_repeats,
    shift_indices,
    takes_all_pairs,
)
from .mining import mine, without_copies
from .pairs import AllPairsExceptSelf
from .wrappers import MultipleLosses

_NEEDED = frozenset({"labels", "indices_tuple", "references"})
_STATE = ("embedding_memory", "label_memory", "cursor", "filled")


class CrossBatchMemory(WrapsLoss, BaseCrossBatchMemory):  # type: ignore[misc]
    """A loss that also compares a batch with embeddings of past batches (XBM).

    A queue holds the last ``memory_size`` embeddings. A batch first enters the queue, and is then compared with all
    rows except its own. Only the batch's rows have a gradient; a memory as large as the batch gives the plain loss.

    The loss needs the capabilities ``"labels"``, ``"indices_tuple"`` and ``"references"``. A regularizer sees only the
    batch. In ``eval()`` or without gradients, a batch is compared with the queue but does not enter it.

    The ``state_dict`` contains the queue. With ``DistributedLoss(CrossBatchMemory(...))`` all processes have the same
    queue; with PML's ``DistributedLossWrapper``, only if ``memory_size`` is a multiple of the joined batch.

    *Cost:* the loss of ``B`` embeddings and ``memory_size`` references: a million fit in tiles. PML's losses get a list
    of all ``B * memory_size`` pairs, or of the mined ones.

    Args:
        loss: the loss.
        embedding_size: D, the length of an embedding.
        memory_size: length of the queue, at least the batch size.
        miner: finds pairs or triplets between batch and queue, without an embedding's own row; all pairs by default.
            PML's ``BatchHardMiner``, ``BatchEasyHardMiner`` and ``MultiSimilarityMiner`` are called once per embedding;
            so are third-party miners, with a warning that they must treat anchors independently.
        detach_batch: whether the batch's own rows have no gradient either, as in PML's memory.
        first_epoch: the first epoch of a run in which the memory is active.

    Attributes:
        active: if False, a call gives the plain loss, mined within the batch, and leaves the queue unchanged.
        embedding_memory, label_memory: the queue, ``[memory_size, D]`` and ``[memory_size]``, or ``[memory_size, C]``
            for label sets.
        queue_idx: the row at which the next batch begins.
        curr_batch_idx: the rows of the last batch.

    Example:
        >>> from pytorch_metric_learning.losses import ContrastiveLoss
        >>> memory = CrossBatchMemory(ContrastiveLoss(), embedding_size=8, memory_size=1024)
        >>> memory(torch.randn(16, 8), torch.arange(16) // 4).shape, memory.filled
        (torch.Size([]), 16)

    *Source:* Wang et al., Cross-Batch Memory for Embedding Learning, 2020, https://arxiv.org/abs/1912.06798.
    """

    # The queue serves as the loss's references; without a miner, pairs that a loss counts once are all there.
    capabilities = WrapperCapabilities({"labels", "indices_tuple", "state"}, lambda self: self._capabilities())
    expected_failed_checks: ClassVar[dict[str, str]] = {
        "check_tensors_are_registered": "the queue is each process's own, and in the state dict without being a buffer"
    }
    embedding_memory: Tensor
    label_memory: Tensor
    curr_batch_idx: Tensor
    has_been_filled: bool

    def __init__(
        self,
        loss: torch.nn.Module,
        embedding_size: int,
        memory_size: int = 1024,
        miner: torch.nn.Module | None = None,
        detach_batch: bool = False,
        first_epoch: int = 1,
        **kwargs: Unpack[ModuleSettings],
    ) -> None:
        check_module(self, "loss", loss, "ContrastiveLoss()")
        if any(getattr(module, "joins_processes", False) for module in loss.modules()):
            raise TypeError("DistributedLoss goes around the memory: DistributedLoss(CrossBatchMemory(loss, ...))")
        missing = _NEEDED - capabilities(loss)
        if missing:
            name = type(loss).__name__
            if isinstance(loss, MultipleLosses):
                name = next(type(part).__name__ for _, part in loss.items() if missing - capabilities(part))
            text = (
                f"CrossBatchMemory needs a loss that takes labels, indices_tuple and references; {name} does not take "
                f"{' and '.join(sorted(missing))}"
            )
            if name == "MultipleLosses":
                text += "; type: from pml_ext import MultipleLosses, which passes references on"
            raise TypeError(text)
        if miner is not None and any(getattr(module, "miners", None) for module in loss.modules()):
            raise ValueError("CrossBatchMemory has a miner, and so has the MultipleLosses inside; leave out one")
        check_count(self, "embedding_size", embedding_size)
        check_count(self, "memory_size", memory_size)
        check_count(self, "first_epoch", first_epoch)
        check_flag(self, "detach_batch", detach_batch)
        super().__init__(loss, embedding_size, memory_size, miner, **kwargs)  # empties the queue
        self.detach_batch = detach_batch
        self.first_epoch = first_epoch
        self.active = True
        self.add_to_recordable_attributes(name="filled", is_stat=False)

    def start_epoch(self, run: Any) -> None:
        """Activate the memory from ``first_epoch`` on."""
        self.active = run.epoch >= self.first_epoch

    @torch.inference_mode(False)
    def reset_queue(self) -> None:
        """Empty the queue."""
        self.embedding_memory = torch.zeros(self.memory_size, self.embedding_size)
        self.label_memory = torch.zeros(self.memory_size, dtype=torch.long)
        self.curr_batch_idx = torch.zeros(0, dtype=torch.long)
        self._cursor = torch.tensor(0, device="cpu")
        self.has_been_filled = False

    # The cursor is a tensor, since torch.compile recompiles for every new value of an integer attribute. It is on the
    # CPU, so that reading it does not wait for a device.
    @property
    def queue_idx(self) -> int:
        """The row at which the next batch begins."""
        return int(self._cursor)

    @property
    def filled(self) -> int:
        """The number of filled rows."""
        if self.has_been_filled:
            return int(self.memory_size)
        return self.queue_idx

    def _capabilities(self) -> frozenset[str]:
        if self.takes_more_pairs:
            return frozenset({"labels", "indices_tuple", "state"})
        return frozenset({"labels", "state"})

    @property
    def takes_more_pairs(self) -> bool:
        """Whether pairs of an ``indices_tuple`` add to those between batch and queue."""
        return self.miner is not None or counts_repeats(self.loss)

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None = None,
        enqueue_mask: Tensor | None = None,
    ) -> Tensor:
        """The loss of embeddings ``[B, D]`` with labels ``[B]`` against the queue.

        An ``indices_tuple`` adds pairs or triplets of the batch; a repeated pair counts once more. In training without
        ``miner``, a loss that counts each pair once rejects it.

        Rows where ``enqueue_mask``, ``[B]``, is True, such as the keys of a momentum encoder, only enter the queue,
        without gradient. The other rows are only anchors.
        """
        labels, _ = check_call(self.relation, embeddings, labels, indices_tuple, None, None)
        if labels is None:
            raise ValueError("labels must be given: a CrossBatchMemory keeps them with the embeddings")
        indices_tuple = check_indices_tuple(indices_tuple)
        self._check(embeddings, indices_tuple, enqueue_mask)
        self.reset_stats()
        with autocast_off(embeddings.device):
            embeddings = to_full_precision(embeddings, normalizes(self.loss))
            labels = labels.to(embeddings.device)
            if not self.active:
                if enqueue_mask is not None:
                    anchors = ~enqueue_mask.to(embeddings.device)
                    embeddings = embeddings[anchors]
                    labels = labels[anchors]
                if len(embeddings) == 0:
                    return 0 * embeddings.sum()
                if indices_tuple is None and self.miner is not None:
                    indices_tuple = self.miner(embeddings, labels)
                return call_loss(self.loss, embeddings, labels, indices_tuple)  # type: ignore[no-any-return]
            writes = self.training and torch.is_grad_enabled()
            in_queue = writes and enqueue_mask is None
            if in_queue and indices_tuple is not None and not self.takes_more_pairs:
                raise ValueError(
                    "an indices_tuple changes nothing: without a miner, all pairs of batch and queue are there, and "
                    "the loss counts each once; leave it out, or type CrossBatchMemory(..., miner=...)"
                )
            embeddings, labels = self._anchors(embeddings, labels, enqueue_mask, writes)
            queue, queue_labels = run_eagerly(self._queue, embeddings, in_queue)
            if len(embeddings) == 0 or (len(queue) == 0 and indices_tuple is None):
                return 0 * embeddings.sum()
            if indices_tuple is None:
                pairs = self._pairs(embeddings, labels, queue, queue_labels, in_queue)
            else:
                pairs, queue, queue_labels = self._pairs_and_tuple(
                    embeddings, labels, queue, queue_labels, in_queue, indices_tuple
                )
            return call_loss(self.loss, embeddings, labels, pairs, queue, queue_labels)  # type: ignore[no-any-return]

    def _anchors(
        self, embeddings: Tensor, labels: Tensor, enqueue_mask: Tensor | None, writes: bool
    ) -> tuple[Tensor, Tensor]:
        if enqueue_mask is None:
            if writes:
                run_eagerly(self.add_to_memory, embeddings, labels)
            return embeddings, labels
        entering = enqueue_mask.to(embeddings.device)
        if writes:
            run_eagerly(self.add_to_memory, embeddings[entering], labels[entering])
        return embeddings[~entering], labels[~entering]

    def _pairs(self, embeddings: Tensor, labels: Tensor, queue: Tensor, queue_labels: Tensor, in_queue: bool) -> Any:
        """Pairs of batch and queue: the miner's, or all (None if no row is a copy)."""
        self_column = self.curr_batch_idx if in_queue else None
        if self.miner is not None or not takes_all_pairs(self.loss):
            return self._mined(embeddings, labels, queue, queue_labels, self_column)
        if self_column is None:
            return None
        return AllPairsExceptSelf(self_column)

    def _pairs_and_tuple(
        self,
        embeddings: Tensor,
        labels: Tensor,
        queue: Tensor,
        queue_labels: Tensor,
        in_queue: bool,
        indices_tuple: tuple[Tensor, ...],
    ) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
        """Pairs of batch and queue with those of a tuple, and the queue.

        A batch outside the queue is appended to it, for the tuple only.
        """
        if in_queue:
            rows = self.curr_batch_idx
            pairs = self._mined(embeddings, labels, queue, queue_labels, rows)
        else:
            rows = len(queue) + torch.arange(len(embeddings), device=embeddings.device)
            pairs = self._mined(embeddings, labels, queue, queue_labels, None)
            queue = torch.cat([queue, embeddings])
            queue_labels = torch.cat([queue_labels, labels])
        return _joined(pairs, shift_indices(indices_tuple, rows)), queue, queue_labels

    def _check(self, embeddings: Tensor, indices_tuple: Any, enqueue_mask: Tensor | None) -> None:
        if embeddings.shape[1] != self.embedding_size:
            raise ValueError(
                f"CrossBatchMemory was made with embedding_size={self.embedding_size}, but the embeddings "
                f"have {embeddings.shape[1]} columns"
            )
        if enqueue_mask is not None:
            if indices_tuple is not None:
                raise ValueError(
                    "indices_tuple and enqueue_mask exclude each other: a tuple's rows are anchors that "
                    "enter the memory, a mask says which rows do not"
                )
            rows = len(embeddings)
            if enqueue_mask.dtype != torch.bool or enqueue_mask.shape != (rows,):
                raise ValueError(f"enqueue_mask must be a tensor of bool of shape ({rows},); got {enqueue_mask!r}")

    @torch.inference_mode(False)  # a tensor that is made in inference mode cannot train later
    @torch.no_grad()
    def add_to_memory(self, embeddings: Tensor, labels: Tensor, batch_size: int | None = None) -> None:
        """Overwrite the oldest rows of the queue, in any mode; ``batch_size`` is unused."""
        labels, _ = check_call(self.relation, embeddings, labels, None, None, None)
        count = len(embeddings)
        if count > self.memory_size:
            raise ValueError(
                f"{count} embeddings do not fit into a memory of memory_size={self.memory_size}; make it at least as "
                "large as the batch (several batches are usual)"
            )
        embeddings = to_full_precision(embeddings)
        self.embedding_memory = self.embedding_memory.to(embeddings.device, embeddings.dtype)
        self.label_memory = self.label_memory.to(embeddings.device)
        if self.filled == 0 and (labels.ndim > 1 or labels.is_floating_point()):
            shape = self.memory_size, *labels.shape[1:]
            self.label_memory = torch.zeros(shape, dtype=labels.dtype, device=embeddings.device)
        if labels.shape[1:] != self.label_memory.shape[1:]:
            kept = list(self.label_memory.shape[1:])
            given = list(labels.shape[1:])
            raise ValueError(f"the memory keeps labels of shape {kept}, and the batch has labels of shape {given}")
        if labels.is_floating_point():
            self.label_memory = self.label_memory.to(torch.promote_types(self.label_memory.dtype, labels.dtype))
        self.curr_batch_idx = (self._cursor + torch.arange(count, device=embeddings.device)) % self.memory_size
        self.embedding_memory[self.curr_batch_idx] = embeddings
        self.label_memory[self.curr_batch_idx] = labels.to(self.label_memory)
        if not self.has_been_filled:
            self.has_been_filled = self.queue_idx + count >= self.memory_size
        self._cursor = (self._cursor + count) % self.memory_size

    def snapshot(self, count: int) -> Callable[[], None]:
        """A function that undoes a call that enters ``count`` embeddings."""
        rows = (self._cursor + torch.arange(min(count, self.memory_size))) % self.memory_size
        rows = rows.to(self.embedding_memory.device)
        held = self.embedding_memory[rows]
        labels = self.label_memory[rows]
        cursor = self._cursor
        was_filled = self.has_been_filled
        rows_of_batch = self.curr_batch_idx

        def undo() -> None:
            self.embedding_memory[rows.to(self.embedding_memory.device)] = held.to(self.embedding_memory)
            self.label_memory[rows.to(self.label_memory.device)] = labels.to(self.label_memory)
            self._cursor = cursor
            self.has_been_filled = was_filled
            self.curr_batch_idx = rows_of_batch

        return undo

    def _queue(self, embeddings: Tensor, in_queue: bool) -> tuple[Tensor, Tensor]:
        held = self.embedding_memory.to(embeddings)
        labels = self.label_memory.to(embeddings.device)
        if not self.has_been_filled:
            held = held[: self.filled]
            labels = labels[: self.filled]
        if in_queue and not self.detach_batch:
            return held.index_put((self.curr_batch_idx,), embeddings), labels.clone()
        return held.clone(), labels.clone()

    def _mined(
        self, embeddings: Tensor, labels: Tensor, queue: Tensor, queue_labels: Tensor, self_column: Tensor | None
    ) -> tuple[Tensor, ...]:
        if self.miner is not None and len(queue):
            return mine(self.miner, embeddings, labels, queue, queue_labels, self_column)
        if self.relation is not None:
            pairs = related_pairs(self.relation, labels, queue_labels, itself=False)
        else:
            pairs = get_all_pairs_indices(labels, queue_labels)
        if self_column is None:
            return pairs
        return without_copies(pairs, self_column)

    # The queue is moved, saved and loaded as buffers are.

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> CrossBatchMemory:
        super()._apply(fn, recurse)
        self.embedding_memory = fn(self.embedding_memory)
        self.label_memory = fn(self.label_memory)
        return self

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        counts = torch.tensor(self.queue_idx), torch.tensor(self.filled)
        for name, value in zip(_STATE, (self.embedding_memory, self.label_memory, *counts), strict=True):
            destination[f"{prefix}{name}"] = value

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, metadata: Any, strict: bool, missing: Any, unexpected: Any, errors: Any
    ) -> None:
        rest = dict(state_dict)
        saved = {name: rest.pop(f"{prefix}{name}", None) for name in _STATE}
        super()._load_from_state_dict(rest, prefix, metadata, strict, missing, unexpected, errors)
        embeddings, labels, cursor, filled = (saved[name] for name in _STATE)
        absent = [f"{prefix}{name}" for name, value in saved.items() if value is None]
        if absent:
            if strict:
                missing.extend(absent)
        elif embeddings.shape != self.embedding_memory.shape:
            errors.append(
                f"size mismatch for {prefix}embedding_memory: it has shape {tuple(embeddings.shape)} in the state, "
                f"{tuple(self.embedding_memory.shape)} in a memory of these sizes"
            )
        else:  # keep the dtypes of the state
            self.embedding_memory = embeddings.detach().to(self.embedding_memory.device, copy=True)
            self.label_memory = labels.detach().to(self.label_memory.device, copy=True)
            self._cursor = torch.tensor(int(cursor), device="cpu")
            self.has_been_filled = int(filled) == self.memory_size

    def extra_repr(self) -> str:
        """The sizes."""
        return f"embedding_size={self.embedding_size}, memory_size={self.memory_size}, filled={self.filled}"


def _joined(mined: tuple[Tensor, ...], added: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    if len(mined) == 4 and len(added) == 3:
        added = convert_to_pairs(added)
    elif len(mined) == 3 and len(added) == 4:
        added = convert_to_triplets(added)
    return tuple(torch.cat(both) for both in zip(mined, added, strict=True))
