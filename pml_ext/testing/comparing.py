"""Comparisons of values, gradients and indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def all_close(one: Sequence[Tensor], other: Sequence[Tensor], rtol: float = 1e-9, atol: float | None = None) -> bool:
    """Return whether two lists of tensors are equal within ``rtol`` and ``atol`` (default ``rtol``); NaN equals NaN."""
    atol = rtol if atol is None else atol
    return len(one) == len(other) and all(
        x.shape == y.shape and torch.allclose(x.double(), y.double(), rtol=rtol, atol=atol, equal_nan=True)
        for x, y in zip(one, other, strict=True)
    )


def equal(one: Any, other: Any) -> bool:
    """Return whether two values, or the index tuples of two miners, are exactly equal."""
    one, other = (each if isinstance(each, tuple) else (each,) for each in (one, other))
    return all_close(one, other, 0)


def close(actual: Any, expected: Any, text: str, rtol: float = 1e-6, atol: float = 1e-8) -> None:
    """Raise AssertionError if two tensors or lists of tensors differ; NaN equals NaN, as other checks report NaN."""
    outcomes = ([each] if isinstance(each, Tensor) else each for each in (actual, expected))
    for pair in zip(*outcomes, strict=True):
        if not all_close(pair[:1], pair[1:], rtol, atol):
            shown = " instead of ".join(str(tensor.detach().flatten()[:4].tolist()) for tensor in pair)
            raise AssertionError(f"{text}: {shown}")


def gradients(value: Tensor, leaves: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients of a value with respect to leaves, zeros for unused leaves; the graph is retained."""
    if not value.requires_grad or not leaves:
        return [torch.zeros_like(leaf) for leaf in leaves]
    slopes = torch.autograd.grad(value, leaves, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(leaf) if slope is None else slope for slope, leaf in zip(slopes, leaves, strict=True)]


def gradient(value: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of a value with respect to one tensor."""
    return gradients(value, [x])[0]


def weighted(value: Tensor) -> Tensor:
    """Return a scalar unchanged, or the sum of a matrix's entries with fixed random weights."""
    if value.ndim == 0:
        return value
    weights = torch.randn(value.shape, generator=torch.Generator().manual_seed(10), dtype=value.dtype)
    return (value * weights).sum()


def sorted_rows(indices: tuple[Tensor, ...]) -> Tensor:
    """Return a miner's unique, sorted pairs or triplets; pairs get a third entry, 0 if positive and 1 if negative."""
    if len(indices) == 3:
        rows = torch.stack(indices, 1)
    else:
        kinds = enumerate((indices[:2], indices[2:]))
        rows = torch.cat([torch.stack([x, y, torch.full_like(x, kind)], 1) for kind, (x, y) in kinds])
    unique: Tensor = torch.unique(rows, dim=0)
    return unique


def check_tuple(actual: Any, labels: Tensor, ref_labels: Tensor, where: str = "", twice: bool = False) -> None:
    """Raise AssertionError for an invalid index tuple; ``twice`` allows duplicates, for miners that draw at random."""
    if not isinstance(actual, tuple) or len(actual) not in (3, 4):
        raise AssertionError(f"a miner must return a tuple of three or four index tensors; got {type(actual).__name__}")
    a, p, b, n = actual if len(actual) == 4 else (actual[0], actual[1], actual[0], actual[2])
    for number, (index, of) in enumerate(zip((a, p, b, n), (labels, ref_labels) * 2, strict=True)):
        if index.dtype != torch.long or index.ndim != 1:
            raise AssertionError(f"index tensor {number} must be int64 [N]; got {index.dtype}, {index.ndim}")
        if len(index) and not 0 <= int(index.min()) <= int(index.max()) < len(of):
            raise AssertionError(f"index tensor {number} is outside of 0 to {len(of) - 1}{where}")
    if len(a) != len(p) or len(b) != len(n):
        raise AssertionError(f"paired index tensors differ in length: {[*map(len, actual)]}")
    if not (labels[a] == ref_labels[p]).all() or (labels[b] == ref_labels[n]).any():
        raise AssertionError(f"a positive is not of its anchor's class, or a negative is{where}")
    if ref_labels is labels and (a == p).any():
        raise AssertionError("an anchor is its own positive, at distance 0; leave the diagonal out, as pair_masks does")
    if len(sorted_rows(actual)) < len(a) + len(b) * (len(actual) == 4) and not twice:
        raise AssertionError(f"a pair or a triplet is listed twice{where}, and counts twice in the loss")
