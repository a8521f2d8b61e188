"""Losses and miners over several processes, on the joined batch."""

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from ..losses import WrapperCapabilities, WrapsLoss, call_loss, check_call, check_module, relation_of, unwrapped
from ..pairwise import check_indices_tuple, check_references
from ..pairwise.generators import generator_states, using_generator_states
from ..pml import BaseLossWrapper, BaseMiner, ModuleWithRecords
from ..registry.components import capabilities
from ..relations import Relation
from .gather import join, tiles_shared
from .processes import from_rank_0, num_processes, rank


class DistributedLoss(WrapsLoss, BaseLossWrapper, ModuleWithRecords):  # type: ignore[misc]
    """A loss over the batches of all processes, joined in the order of their ranks.

    Every process gets the loss of the joined batch. After DistributedDataParallel has averaged gradients over the W
    processes, the network and the loss's parameters have the gradients of one process on the joined batch, whether or
    not DistributedDataParallel wraps the loss. For this, the gradient of this process's embeddings is W times that of
    the joined loss.

    Batches may differ in size. All processes draw the random numbers of rank 0. Put a loss with a memory inside,
    ``DistributedLoss(CrossBatchMemory(loss, ...))``: every process then has the same memory. The first call copies the
    loss's parameters and buffers from rank 0. A single process calls the loss directly.

    *Cost:* processes share the tiles of a loss in tiles (every pair and triplet loss of ``pml_ext``), and sum the
    gradients of the joined embeddings. Other losses are computed in every process.

    Args:
        loss: any loss or wrapper, or one inside DistributedDataParallel.
    """

    capabilities = WrapperCapabilities(
        {"labels", "indices_tuple", "references"}, lambda self: capabilities(unwrapped(self.loss))
    )
    joins_processes = True

    def __init__(self, loss: nn.Module) -> None:
        check_module(self, "loss", loss, "ContrastiveLoss()")
        super().__init__(loss=loss)
        self.loss = loss
        self._alike = False

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: tuple[Tensor, ...] | None = None,
        ref_emb: Tensor | Sequence[Tensor] | None = None,
        ref_labels: Tensor | None = None,
        enqueue_mask: Tensor | None = None,
    ) -> Any:
        """The loss of the joined batch.

        Arguments are this process's rows, possibly 0. An ``indices_tuple`` from a :class:`DistributedMiner` refers to
        rows of the joined batch. ``enqueue_mask`` is for :class:`pml_ext.CrossBatchMemory`, a list of views as
        ``ref_emb`` for :class:`pml_ext.SelfSupervisedLoss`. Invalid arguments raise TypeError or ValueError.
        """
        if isinstance(ref_emb, (list, tuple)):
            return self._loss_of_views(embeddings, ref_emb)
        if num_processes() == 1:
            return call_loss(self.loss, embeddings, labels, indices_tuple, ref_emb, ref_labels, enqueue_mask)
        labels, ref_labels = check_call(self.relation, embeddings, labels, indices_tuple, ref_emb, ref_labels)
        indices_tuple = check_indices_tuple(indices_tuple)
        self._copy_from_rank_0()
        batch: dict[str, Any] = {
            "embeddings": embeddings,
            "labels": labels,
            "ref_emb": ref_emb,
            "ref_labels": ref_labels,
        }
        joined = join(batch | {"enqueue_mask": enqueue_mask}, indices_tuple)
        with _random_as_rank_0(embeddings.device), tiles_shared(joined["embeddings"], joined["ref_emb"]):
            return call_loss(self.loss, indices_tuple=indices_tuple, **joined)

    def _loss_of_views(self, embeddings: Tensor, views: Sequence[Tensor]) -> Any:
        """The loss of joined views, for a :class:`pml_ext.SelfSupervisedLoss` of more than two."""
        if "labels" in capabilities(unwrapped(self.loss)):
            name = type(unwrapped(self.loss)).__name__
            raise TypeError(f"ref_emb of {name} must be one tensor; several views are for SelfSupervisedLoss(loss)")
        if num_processes() == 1:
            return self.loss(embeddings, views)
        batch: dict[str, Tensor | None] = {"embeddings": embeddings}
        for number, view in enumerate(views):
            check_references(embeddings, view, None)
            batch[f"ref_emb[{number}]"] = view
        self._copy_from_rank_0()
        first, *others = join(batch).values()
        with _random_as_rank_0(embeddings.device), tiles_shared(first, *others):
            return self.loss(first, others)

    def _copy_from_rank_0(self) -> None:
        if self._alike:
            return
        state = None
        if rank() == 0:
            state = {name: _on_cpu(value) for name, value in self.loss.state_dict().items()}
        state = from_rank_0(state)
        if rank() != 0:
            with torch.no_grad():
                self.loss.load_state_dict(state)
        self._alike = True


class DistributedMiner(BaseMiner):  # type: ignore[misc]
    """A miner over the batches of all processes, for :class:`DistributedLoss`.

    The miner runs in rank 0. Every process gets its indices, which are rows of the joined batch.

    Args:
        miner: any miner.
    """

    joins_batches = True

    def __init__(self, miner: nn.Module) -> None:
        check_module(self, "miner", miner, "MultiSimilarityMiner()")
        super().__init__()
        self.miner = miner

    @property
    def capabilities(self) -> frozenset[str]:
        """The miner's capabilities without ``relation``."""
        return capabilities(self.miner) - {"relation"}

    @property
    def relation(self) -> Relation | None:
        """The relation of the miner."""
        return relation_of(self.miner)

    @torch.no_grad()
    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Any:
        """The pairs or triplets mined in the joined batch; arguments are this process's rows."""
        self.reset_stats()
        given: Any = embeddings, labels, ref_emb, ref_labels
        if num_processes() > 1:
            labels, ref_labels = check_call(self.relation, embeddings, labels, None, ref_emb, ref_labels)
            batch = {"embeddings": embeddings, "labels": labels, "ref_emb": ref_emb, "ref_labels": ref_labels}
            given = tuple(join(batch).values())
        if ref_emb is None:
            given = given[:2]
        mined = self.miner(*given) if rank() == 0 else ()
        if num_processes() > 1:
            mined_by_rank_0 = from_rank_0([index.cpu() for index in mined])
            mined = tuple(index.to(embeddings.device) for index in mined_by_rank_0)
        if len(mined) in (3, 4):
            self.output_assertion(mined)  # also records how many were mined
        return mined


def _on_cpu(value: Any) -> Any:
    return value.cpu() if isinstance(value, Tensor) else value


def _random_as_rank_0(device: torch.device) -> AbstractContextManager[None]:
    states = from_rank_0([state.cpu() for state in generator_states(device)])
    if rank() == 0:
        return contextlib.nullcontext()
    return using_generator_states(device, states)
