"""Comparisons of values, gradients and indices."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import pml
from .subject import require


def all_close(one: Sequence[Tensor], other: Sequence[Tensor], rtol: float = 1e-9, atol: float | None = None) -> bool:
    """Whether two lists of tensors are equal within ``rtol`` and ``atol``; NaN equals NaN."""
    if [x.shape for x in one] != [y.shape for y in other]:
        return False
    limits = {"rtol": rtol, "atol": rtol if atol is None else atol}
    pairs = zip(one, other, strict=True)
    return all(torch.allclose(x.double(), y.double(), **limits, equal_nan=True) for x, y in pairs)


def equal(one: Any, other: Any) -> bool:
    """Whether two values, or the index tuples of two miners, are exactly equal."""
    return all_close(_listed(one), _listed(other), 0)


def _listed(tensors: Any) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def close(actual: Any, expected: Any, text: str, rtol: float = 1e-6, atol: float = 1e-8) -> None:
    """Raise AssertionError if two tensors or lists of tensors differ; NaN equals NaN."""
    for found, wanted in zip(_listed(actual), _listed(expected), strict=True):
        if not all_close([found], [wanted], rtol, atol):
            raise AssertionError(f"{text}: {difference(found.detach(), wanted.detach())}")


def difference(found: Tensor, wanted: Tensor) -> str:
    """Describe where two tensors differ most, or which mined rows differ."""
    if found.dtype == wanted.dtype == torch.long and found.ndim == wanted.ndim == 2:
        return difference_of_rows(set(map(tuple, found.tolist())), set(map(tuple, wanted.tolist())))
    if found.shape != wanted.shape:
        return f"shape {tuple(found.shape)} instead of {tuple(wanted.shape)}"
    gap = (found.double() - wanted.double()).abs().nan_to_num(nan=torch.inf).flatten()
    place = int(gap.argmax())
    mine = found.flatten()[place].item()
    theirs = wanted.flatten()[place].item()
    index = [int(part) for part in torch.unravel_index(torch.tensor(place), found.shape)]
    where = f" at {index}" if index else ""
    digits = 6 if f"{mine:.6g}" != f"{theirs:.6g}" else 17
    return f"{mine:.{digits}g} instead of {theirs:.{digits}g}{where}"


def difference_of_rows(found: set[tuple[int, ...]], wanted: set[tuple[int, ...]]) -> str:
    """Describe which rows of :func:`sorted_rows` are too many, and which are missing."""
    texts = []
    for what, rows in (("too many", found - wanted), ("missing", wanted - found)):
        if rows:
            shown = ", ".join(map(str, sorted(rows)[:2]))
            texts.append(f"{len(rows)} {what}, such as {shown}")
    return f"{'; '.join(texts)}, of {len(wanted)}"


def gradients(value: Tensor, leaves: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of a value, zeros for unused leaves; the graph is retained."""
    if not value.requires_grad or not leaves:
        return [torch.zeros_like(leaf) for leaf in leaves]
    slopes = torch.autograd.grad(value, leaves, retain_graph=True, allow_unused=True)
    found = []
    for slope, leaf in zip(slopes, leaves, strict=True):
        found.append(torch.zeros_like(leaf) if slope is None else slope)
    return found


def gradient(value: Tensor, x: Tensor) -> Tensor:
    """The gradient of a value with respect to one tensor."""
    return gradients(value, [x])[0]


def weighted(value: Tensor) -> Tensor:
    """A scalar unchanged, or a matrix's sum with fixed random weights."""
    if value.ndim == 0:
        return value
    weights = torch.randn(value.shape, generator=torch.Generator().manual_seed(10), dtype=value.dtype)
    return (value * weights).sum()


def sorted_rows(indices: tuple[Tensor, ...]) -> Tensor:
    """A miner's unique, sorted rows; the third entry of a pair is 0 if positive, else 1."""
    if len(indices) == 3:
        rows = torch.stack(indices, 1)
    else:
        anchors, positives, other_anchors, negatives = indices
        positive_rows = torch.stack([anchors, positives, torch.zeros_like(anchors)], 1)
        negative_rows = torch.stack([other_anchors, negatives, torch.ones_like(other_anchors)], 1)
        rows = torch.cat([positive_rows, negative_rows])
    base = int(rows.max()) + 1 if rows.numel() else 1
    if base**3 >= 2**63 or (rows < 0).any():
        return torch.unique(rows, dim=0)  # type: ignore[no-any-return]
    numbers = torch.unique((rows[:, 0] * base + rows[:, 1]) * base + rows[:, 2])  # many times faster than by rows
    return torch.stack([numbers // base**2, numbers // base % base, numbers % base], 1)


def check_tuple(actual: Any, labels: Tensor, ref_labels: Tensor, where: str = "", twice: bool = False) -> None:
    """Raise AssertionError for an invalid index tuple; ``twice`` allows duplicates."""
    require(
        isinstance(actual, tuple) and len(actual) in (3, 4),
        f"a miner must return a tuple of three or four index tensors; got {type(actual).__name__}",
    )
    a, p, b, n = pml.convert_to_pairs(actual)
    count = len(a) if len(actual) == 3 else len(a) + len(b)
    for number, (index, of) in enumerate(zip((a, p, b, n), (labels, ref_labels) * 2, strict=True)):
        require(
            index.dtype == torch.long and index.ndim == 1,
            f"index tensor {number} must be int64 [N]; got {index.dtype}, {index.ndim}",
        )
        in_range = (index >= 0) & (index < len(of))
        require(in_range.all(), f"index tensor {number} is outside of 0 to {len(of) - 1}{where}")
    require(len(a) == len(p) and len(b) == len(n), f"paired index tensors differ in length: {[*map(len, actual)]}")
    require(
        (labels[a] == ref_labels[p]).all() and (labels[b] != ref_labels[n]).all(),
        f"a positive is not of its anchor's class, or a negative is{where}",
    )
    require(
        ref_labels is not labels or (a != p).all(),
        "an anchor is its own positive, at distance 0; leave the diagonal out, as pair_masks does",
    )
    require(
        twice or len(sorted_rows(actual)) == count,
        f"a pair or a triplet is listed twice{where}, and counts twice in the loss",
    )
