"""A weighted sum of losses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import pml
from ..components import capabilities
from ..pairwise import Relation, to_full_precision
from .calling import WrapperCapabilities, call_loss, checked, relation_of, takes_all_pairs


class MultipleLosses(pml.MultipleLosses):  # type: ignore[misc]
    r"""PML's weighted sum of losses, with references, and never summed in half precision.

    .. math:: \mathcal{L} = \sum_i w_i \, \mathcal{L}_i

    It nests, and goes into :class:`pml_ext.CrossBatchMemory`, :class:`pml_ext.DistributedLoss` and
    :class:`pml_ext.RegularizedLoss`. Take a dictionary where PML's HookContainer records it.

    Args:
        losses: a list or a dictionary of losses, PML's or registered ones; at least one.
        miners: a miner, or None, for each loss of a list; for some of the keys of a dictionary.
        weights: a number for each loss; 1 by default, 0 is allowed.
    """

    capabilities = WrapperCapabilities(
        {"labels", "indices_tuple", "references"},
        lambda self: frozenset.intersection(*(capabilities(loss) for _, loss in self.items())) | {"labels"},
    )

    def __init__(
        self,
        losses: Sequence[torch.nn.Module] | Mapping[str, torch.nn.Module],
        miners: Sequence[Any] | Mapping[str, Any] | None = None,
        weights: Sequence[float] | Mapping[str, float] | None = None,
    ) -> None:
        if not losses:
            raise ValueError("MultipleLosses needs at least one loss; got none")
        kind: Any = dict if isinstance(losses, Mapping) else list
        try:
            super().__init__(*(each if each is None else kind(each) for each in (losses, miners, weights)))
        except (AssertionError, TypeError, ValueError) as error:
            wanted = f"the keys {sorted(losses)}" if isinstance(losses, Mapping) else f"the length {len(losses)}"
            text = f"miners and weights of MultipleLosses must have {wanted} of the losses: {error}"
            raise ValueError(text) from None

    @property
    def takes_all_pairs(self) -> bool:
        """Whether all of the losses do, and none has a miner; see :func:`takes_all_pairs`."""
        return not self.miners and all(takes_all_pairs(loss) for _, loss in self.items())

    @property
    def relation(self) -> Relation | None:
        """The relation of the first loss that has one."""
        return next((found for _, loss in self.items() if (found := relation_of(loss)) is not None), None)

    def items(self) -> Iterator[tuple[Any, torch.nn.Module]]:
        """Iterate over the losses by name or number."""
        yield from self.losses.items() if self.is_dict else enumerate(self.losses)

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: tuple[Tensor, ...] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        """Return the weighted sum; arguments as of PML's losses."""
        labels, ref_labels = checked(self.relation, embeddings, labels, indices_tuple, ref_emb, ref_labels)
        if self.miners and indices_tuple is not None:
            raise ValueError("MultipleLosses has miners of its own; leave out either them or the indices_tuple")
        total = torch.zeros((), device=embeddings.device)
        for key, loss in self.items():
            miner = self.miners[key] if self.miners and (not self.is_dict or key in self.miners) else None
            mined = indices_tuple if miner is None else miner(embeddings, labels, ref_emb, ref_labels)
            value = call_loss(loss, embeddings, labels, mined, ref_emb, ref_labels)
            total = total + self.weights[key] * to_full_precision(value)
        return total
