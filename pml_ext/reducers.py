"""Reducers that PML lacks."""

from typing import Any

import torch
from torch import Tensor

from .pml import BaseReducer, MultipleReducers, per_anchor_mean, reducers


class SumOverDivisorReducer(BaseReducer):  # type: ignore[misc]
    """Reducer to the sum of a loss's values over its ``divisor``; 0 for divisor 0.

    A loss sets the divisor if each value aggregates several elements, such as the triplets of a pair.
    """

    def unpack_loss_info(self, loss_info: dict[str, Any]) -> tuple[Any, Any, str, dict[str, Any]]:
        """The values, their indices, their kind, and the divisor."""
        losses, indices, kind, kwargs = super().unpack_loss_info(loss_info)
        if kind != "already_reduced":
            kwargs = {"divisor": loss_info.get("divisor", 1)}
        return losses, indices, kind, kwargs

    def element_reduction(
        self, losses: Tensor, loss_indices: Any, embeddings: Tensor, labels: Tensor | None, divisor: Tensor | float = 1
    ) -> Tensor:
        """Sum / divisor; 0 with gradient 0 for divisor 0, except that NaN is propagated."""
        total = losses.sum()
        if not len(losses):
            total = total + (embeddings * 0).sum()
        if isinstance(divisor, Tensor):
            return _divide_or_zero(total, divisor)
        if divisor:
            return total / divisor
        return total * 0

    pos_pair_reduction = neg_pair_reduction = triplet_reduction = element_reduction


class SumOfReducers(MultipleReducers):  # type: ignore[misc]
    """PML's ``MultipleReducers`` without copying the values into one tensor."""

    def forward(self, loss_dict: dict[str, Any], embeddings: Tensor, labels: Tensor | None) -> Tensor:
        """The sum of the values."""
        self.reset_stats()
        first, *others = [reducer_of(self, name)({name: info}, embeddings, labels) for name, info in loss_dict.items()]
        return sum(others, first)  # type: ignore[no-any-return]


# PML's reducers that can be computed from row sums of a matrix of elements.
_OF_SUMS = (reducers.MeanReducer, reducers.SumReducer, reducers.AvgNonZeroReducer, reducers.ThresholdReducer)

# PML's reducers that average, weight or choose single values.
_OF_SINGLE_VALUES = (
    reducers.MeanReducer,
    reducers.ThresholdReducer,  # and its subclass AvgNonZeroReducer
    reducers.PerAnchorReducer,
    reducers.ClassWeightedReducer,
)


def reducer_of(reducer: BaseReducer, name: str) -> BaseReducer:
    """The reducer of a sub-loss: the reducer itself, or its part of ``MultipleReducers``."""
    if not isinstance(reducer, MultipleReducers):
        return reducer
    if name in reducer.reducers:
        return reducer.reducers[name]
    return reducer.default_reducer


def takes_row_sums(reducer: BaseReducer, pairs: bool) -> bool:
    """Whether :func:`row_sums` supports a reducer, for pairs or for triplets."""
    if type(reducer) is reducers.PerAnchorReducer:
        return pairs and reducer.aggregation_func is per_anchor_mean and takes_row_sums(reducer.reducer, pairs)
    return type(reducer) in (SumOverDivisorReducer, *_OF_SUMS)


def require_sums(owner: object, reducer: BaseReducer) -> None:
    """ValueError if a reducer would mistake sums over a pair's triplets for single values."""
    stated = reducer_of(reducer, "loss")
    if isinstance(stated, _OF_SINGLE_VALUES) and not isinstance(stated, reducers.SumReducer):  # a MeanReducer in PML
        name = type(owner).__name__
        raise ValueError(
            f"{name} lists no triplets but sums over each pair's, which a {type(stated).__name__} would take for "
            "single values; leave out reducer, use a SumReducer, or pass triplets as indices_tuple"
        )


def row_sums(reducer: BaseReducer, values: Tensor, mask: Tensor, times: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Each row's sum of the elements that a reducer counts, and their number.

    For PerAnchorReducer the mean replaces the sum. ``values``, ``[T, R]``, are at least 0; ``mask`` marks the valid
    ones. ``times``, ``[T, R]``: how often each element is listed.
    """
    kept = mask
    if isinstance(reducer, (SumOverDivisorReducer, reducers.ThresholdReducer)):
        low = getattr(reducer, "low", 0)
        high = getattr(reducer, "high", None)
        if low is not None:
            kept = kept & (values > low)
        if high is not None:
            kept = kept & (values < high)
    if times is not None and not isinstance(reducer, reducers.PerAnchorReducer):
        kept = kept * times
    sums = (values * kept).sum(1)
    counts = kept.sum(1)
    if isinstance(reducer, reducers.PerAnchorReducer):
        return sums / counts.clamp(min=1), counts
    return sums, counts


def reduced_rows(reducer: BaseReducer, term: dict[str, Any], embeddings: Tensor, labels: Tensor | None) -> Tensor:
    """A reducer's value of a term with the sums of :func:`row_sums` and their total count."""
    if isinstance(reducer, reducers.PerAnchorReducer):
        reducer = reducer.reducer
    elif not isinstance(reducer, reducers.SumReducer):
        reducer = SumOverDivisorReducer()
    value: Tensor = reducer({"loss": term}, embeddings, labels)
    return value


def has_uniform_weights(reducer: BaseReducer, gradient_device: torch.device | None = None) -> bool:
    """Whether a reducer weights all values equally.

    ``gradient_device`` is where the backward pass must recognize the equal weights, if it must.
    """
    kinds: list[type] = [SumOverDivisorReducer, reducers.SumReducer, reducers.DivisorReducer]
    if gradient_device is None or gradient_device.type == "cpu":
        kinds.append(reducers.MeanReducer)
    return type(reducer) in kinds


def reduce_uniformly(reducer: BaseReducer, losses: Tensor, count: Tensor, divisor: Tensor | float) -> Tensor:
    """The value of a reducer with uniform weights for ``count`` losses, padded with zeros."""
    total: Tensor = losses.sum()
    if isinstance(reducer, reducers.SumReducer):
        return total
    if isinstance(reducer, reducers.MeanReducer):
        divisor = count
    return _divide_or_zero(total, torch.as_tensor(divisor, device=total.device))


def _divide_or_zero(total: Tensor, divisor: Tensor) -> Tensor:
    """Total / divisor; 0 for divisor 0, but NaN if either is NaN."""
    return total / torch.threshold(divisor.to(total.dtype), 0, torch.inf)
