"""Losses and miners over several processes: value and gradients of one process on the joined batch."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from ..components import capabilities
from ..devices import generator_states, using_generator_states
from ..losses import WrapperCapabilities, WrapsLoss, call_loss, check_call, check_module, relation_of, unwrapped
from ..pairwise import Relation
from ..pml import BaseLossWrapper, BaseMiner, ModuleWithRecords
from .gather import join, tiles_shared
from .processes import from_rank_0, num_processes, rank


class DistributedLoss(WrapsLoss, BaseLossWrapper, ModuleWithRecords):  # type: ignore[misc]
    r"""A loss over the batches of all processes, joined in the order of their ranks.

    Every process gets the value that one process gets on the joined batch. After DistributedDataParallel's mean over
    the processes, the network has the gradients of that one process, and so have the loss's parameters, whether
    DistributedDataParallel is around the loss or not. The gradient of this process's embeddings is therefore ``W``
    times that of the joined loss (with ``W`` processes), since the mean divides by ``W``.

    Batches may differ in size. Random parts are alike: all use the state of torch's generators of rank 0. A loss with a
    memory goes inside, ``DistributedLoss(CrossBatchMemory(loss, ...))``: every process then has the same memory. At the
    first call the loss's parameters and buffers are copied from rank 0. With one process it is the loss itself.

    *Cost:* a loss that works in tiles (every pair and triplet loss of ours) is divided: each process computes a part of
    the anchors against the joined batch, and the gradients of the joined embeddings are added up. Small batches and
    other losses are computed on the joined batch in every process.

    Args:
        loss: a loss of PML or of ours, a wrapper around one, or one inside DistributedDataParallel.
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
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
        enqueue_mask: Tensor | None = None,
    ) -> Any:
        """Return the loss of the joined batch.

        Arguments are this process's part, of any number of rows, 0 included; but an ``indices_tuple``, of a
        :class:`DistributedMiner`, has rows of the joined batch and is alike in all processes. ``enqueue_mask`` is for
        a :class:`pml_ext.CrossBatchMemory`. Wrong ones raise TypeError or ValueError.
        """
        if num_processes() == 1:
            return call_loss(self.loss, embeddings, labels, indices_tuple, ref_emb, ref_labels, enqueue_mask)
        labels, ref_labels = check_call(self.relation, embeddings, labels, indices_tuple, ref_emb, ref_labels)
        if not self._alike:
            _take_state_of_rank_0(self.loss)
            self._alike = True
        batch = {"embeddings": embeddings, "labels": labels, "ref_emb": ref_emb, "ref_labels": ref_labels}
        joined = join(batch | {"enqueue_mask": enqueue_mask}, indices_tuple)
        with _random_as_rank_0(embeddings.device), tiles_shared(joined["embeddings"], joined["ref_emb"]):
            return call_loss(self.loss, indices_tuple=indices_tuple, **joined)


class DistributedMiner(BaseMiner):  # type: ignore[misc]
    """A miner over the batches of all processes, for :class:`DistributedLoss`.

    The miner runs in rank 0 on the joined batch; every process gets what it found, as rows of the joined batch. With
    one process it is the miner itself.

    Args:
        miner: a miner of PML or of ours.
    """

    def __init__(self, miner: nn.Module) -> None:
        check_module(self, "miner", miner, "MultiSimilarityMiner()")
        super().__init__()
        self.miner = miner

    @property
    def capabilities(self) -> frozenset[str]:
        """The miner's, without the relation that a call may have."""
        return capabilities(self.miner) - {"relation"}

    @property
    def relation(self) -> Relation | None:
        """The relation of the miner."""
        return relation_of(self.miner)

    @torch.no_grad()
    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Any:
        """Return indices of pairs or triplets of the joined batch, of this process's part of each argument."""
        self.reset_stats()
        given: Any = embeddings, labels, ref_emb, ref_labels
        if num_processes() > 1:
            labels, ref_labels = check_call(self.relation, embeddings, labels, None, ref_emb, ref_labels)
            batch = {"embeddings": embeddings, "labels": labels, "ref_emb": ref_emb, "ref_labels": ref_labels}
            given = tuple(join(batch).values())
        mined = self.miner(*given[: 2 if ref_emb is None else 4]) if rank() == 0 else ()
        if num_processes() > 1:
            mined = tuple(index.to(embeddings.device) for index in from_rank_0([index.cpu() for index in mined]))
        if len(mined) in (3, 4):
            self.output_assertion(mined)  # which counts them
        return mined


@torch.no_grad()
def _take_state_of_rank_0(module: nn.Module) -> None:
    """Load parameters and buffers of rank 0, as DistributedDataParallel does when it is made."""
    own = {name: x.cpu() if isinstance(x, Tensor) else x for name, x in module.state_dict().items()}
    state = from_rank_0(own if rank() == 0 else None)
    if rank() != 0:
        module.load_state_dict(state)


def _random_as_rank_0(device: torch.device) -> AbstractContextManager[None]:
    """Return a block that draws what rank 0 draws; afterwards other processes go on with their own generators."""
    states = from_rank_0([state.cpu() for state in generator_states(device)])
    return contextlib.nullcontext() if rank() == 0 else using_generator_states(device, states)
