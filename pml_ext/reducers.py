"""Reducers that PML lacks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .pml import BaseReducer, MultipleReducers, reducers


class SumOverDivisorReducer(BaseReducer):  # type: ignore[misc]
    """The sum of a loss's values over its ``divisor``, 0 where that is 0; PML's, without waiting for the device.

    A loss sets the divisor where its values stand for more, or fewer, elements than they are: sums over the triplets of
    a pair, say.
    """

    def unpack_loss_info(self, loss_info: dict[str, Any]) -> tuple[Any, Any, str, dict[str, Any]]:
        """The values, their indices, their kind, and the divisor."""
        losses, indices, reduction_type, kwargs = super().unpack_loss_info(loss_info)
        return losses, indices, reduction_type, {**kwargs, "divisor": loss_info.get("divisor", 1)}

    def element_reduction(
        self, losses: Tensor, loss_indices: Any, embeddings: Tensor, labels: Tensor | None, divisor: Tensor | float = 1
    ) -> Tensor:
        """The sum over the divisor, or 0 times the sum, which has gradient 0; NaN of embeddings are not hidden."""
        total = losses.sum() if len(losses) else losses.sum() + (embeddings * 0).sum()
        if isinstance(divisor, Tensor):
            there = divisor != 0
            return total / torch.where(there, divisor, 1) * there
        return total / divisor if divisor else total * 0

    def already_reduced_reduction(
        self, losses: Tensor, loss_indices: Any, embeddings: Tensor, labels: Tensor | None, divisor: Tensor | float = 1
    ) -> Tensor:
        """The value itself."""
        return super().already_reduced_reduction(losses, loss_indices, embeddings, labels)  # type: ignore[no-any-return]

    pos_pair_reduction = neg_pair_reduction = triplet_reduction = element_reduction


def weighs_alike(reducer: BaseReducer, device: torch.device) -> bool:
    """Whether a reducer is known to give every value the same weight, in a form that can be seen without waiting.

    Args:
        reducer: one of PML's, or of ours.
        device: where the values are.
    """
    kinds: list[type] = [SumOverDivisorReducer, reducers.SumReducer, reducers.DivisorReducer]
    if device.type == "cpu":  # of a mean, weights are a tensor, to be looked at
        kinds.append(reducers.MeanReducer)
    return type(reducer) in kinds


class SumOfReducedReducer(MultipleReducers):  # type: ignore[misc]
    """The sum of sub-losses that are all reduced already; PML's, which it replaces, writes them into a tensor first."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__({}, **kwargs)

    def forward(self, loss_dict: dict[str, dict[str, Any]], embeddings: Tensor, labels: Tensor | None) -> Any:
        """The sum."""
        self.reset_stats()
        return sum(info["losses"] for info in loss_dict.values())
