r"""The losses of Shah's "Clustering and Querying", Sec. 5, per triplet and over a batch.

:math:`S = \{(a, p, n): a \neq p,\ d_{an} < d_{ap} + m\}` are the violating triplets. Positives are padded per anchor:
column k of ``[B, P]`` belongs to each anchor's k-th positive.
"""

import dataclasses
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pml_ext.plugin import (
    all_entries,
    apply_or_plain,
    fill_outside,
    in_parts,
    indicators,
    places_in,
    prefers_floats,
    widest_dtype,
    zero_outside,
)

_FAR = 1e6  # distance assigned to columns that are not negatives: finite, so that 0 times it is 0
_AT_ONCE = 4  # positives per anchor that are compared at a time
_MANY = 24  # with more positives per anchor, one sort is cheaper than one pass per positive
_DIFFERENCES = 1 << 18  # entries up to which the hinges of several positives are computed in one operation
_ENTRIES = 1 << 20  # triplets in memory at a time where rows are gathered, as for smooth kinds


@dataclasses.dataclass(frozen=True)
class Kind:
    """A loss of one triplet with margin m."""

    margin: float

    def limit(self, d_ap: Tensor) -> Tensor:
        """The distance of a negative below which the triplet is in S."""
        return d_ap + self.margin

    def value(self, d_ap: Tensor, d_an: Tensor, d_pn: Tensor | None = None) -> Tensor:
        """Loss of triplets; only ``Soft`` uses d_pn."""
        raise NotImplementedError


class Ratio(Kind):
    r""":math:`r^2 - (1 - r)^2 = \tanh\frac{d_{ap} - d_{an}}{2}`, :math:`r = e^{d_{ap}} / (e^{d_{ap}} + e^{d_{an}})`."""

    def value(self, d_ap: Tensor, d_an: Tensor, d_pn: Tensor | None = None) -> Tensor:
        """The loss of triplets."""
        return torch.tanh((d_ap - d_an) / 2)


class Soft(Kind):
    r""":math:`d_{ap} + \log(e^{m - d_{an}} + e^{m - d_{pn}})`."""

    def value(self, d_ap: Tensor, d_an: Tensor, d_pn: Tensor | None = None) -> Tensor:
        """The loss of triplets."""
        assert d_pn is not None
        return d_ap + self.margin + torch.logaddexp(-d_an, -d_pn)


class Hinge(Kind):
    r""":math:`\max(0, d_{ap} - d_{an} + m)`."""

    squared = False  # whether squared distances are compared; S uses distances, so hinges in S may then be 0

    def compared(self, distances: Tensor) -> Tensor:
        """The distances, or their squares if ``squared``."""
        return distances.square() if self.squared else distances

    def by_distance(self, derivative: Tensor, distances: Tensor) -> Tensor:
        """The derivative by distances, from the derivative by :meth:`compared` values."""
        if self.squared:
            return derivative * (2 * distances)
        return derivative

    def value(self, d_ap: Tensor, d_an: Tensor, d_pn: Tensor | None = None) -> Tensor:
        """The loss of triplets."""
        return (self.compared(d_ap) - self.compared(d_an) + self.margin).clamp(min=0)

    def active_limit(self, d_ap: Tensor) -> Tensor:
        """The distance of a negative below which the hinge is above 0."""
        if self.squared:
            return (d_ap.square() + self.margin).clamp(min=0).sqrt()
        return self.limit(d_ap)


class SquaredHinge(Hinge):
    r""":math:`\max(0, d_{ap}^2 - d_{an}^2 + m)`."""

    squared = True


KINDS: dict[str, type[Kind]] = {"hinge": Hinge, "squared-hinge": SquaredHinge, "ratio": Ratio, "soft": Soft}


class Positives(NamedTuple):
    """The L positive pairs in row-major order, and their places in a matrix ``[B, P]``."""

    anchors: Tensor  # [L]
    positives: Tensor  # [L]
    columns: Tensor | None  # k of each pair, the k-th positive of its anchor, from 0, [L]; None if none is padding
    most: int  # P, at least 1
    mask: Tensor | None = None  # [B, R] if the pairs are all its positions (then P = R), else None

    def laid_out(self, values: Tensor, fill: float, rows: int) -> Tensor:
        """Values of the pairs, ``[L]``, as a padded matrix ``[rows, P]``."""
        if self.mask is not None:
            return torch.where(self.mask, values.view(rows, self.most), fill)
        if self.columns is None:
            return values.view(rows, self.most)
        matrix = values.new_full((rows, self.most), fill)
        return matrix.index_put_((self.anchors, self.columns), values)

    def of(self, matrix: Tensor, fill: float) -> Tensor:
        """The pairs' entries of a matrix ``[rows, R]``, as a padded matrix."""
        rows = len(matrix)
        if self.columns is None:
            return matrix.gather(1, self.positives.view(rows, self.most))
        return self.laid_out(matrix[self.anchors, self.positives], fill, rows)

    def add_to(self, matrix: Tensor, values: Tensor) -> None:
        """Add a padded matrix to the pairs' entries, in place."""
        if self.columns is None:
            matrix.scatter_add_(1, self.positives.view_as(values), values)
        else:
            matrix.index_put_((self.anchors, self.positives), self.listed(values), accumulate=True)

    def listed(self, matrix: Tensor) -> Tensor:
        """Values of the pairs, ``[L]``, from a padded matrix."""
        if self.columns is None or self.mask is not None:
            return matrix.flatten()
        return matrix[self.anchors, self.columns]


def lay_out(anchors: Tensor, positives: Tensor, rows: int) -> Positives:
    """The positive pairs of some rows."""
    anchors_by_count = torch.bincount(torch.bincount(anchors))  # how many have 0, 1, ... positives
    most = max(1, len(anchors_by_count) - 1)
    if len(anchors) == rows * most:
        return Positives(anchors, positives, None, most)
    first_of_anchor = torch.searchsorted(anchors, anchors)
    columns = torch.arange(len(anchors), device=anchors.device) - first_of_anchor
    return Positives(anchors, positives, columns, most)


def all_positions(mask: Tensor) -> Positives:
    """All B x R positions with their mask, so that no shape depends on labels."""
    anchors, positives = all_entries(mask)
    return Positives(anchors, positives, positives, mask.shape[1], mask)


def local_positives(distances: Tensor, mask: Tensor, percentile: float = 60.0) -> Tensor:
    """Positives up to a percentile (0 to 100) of their anchor's positive distances, ``[B, R]``.

    The percentile is interpolated linearly. NaN distances are kept.
    """
    if torch.compiler.is_compiling():
        pairs = all_positions(mask)
    else:
        anchors, positives = places_in(mask)
        pairs = lay_out(anchors, positives, len(mask))
    padded = pairs.of(distances, torch.inf)
    ordered = padded.sort(1).values
    last = (mask.sum(1, keepdim=True) - 1).clamp(min=0)
    rank = last.to(ordered.dtype) * (percentile / 100)  # of the percentile, between two ranks
    low = rank.floor().long().clamp(max=ordered.shape[1] - 1)
    high = torch.minimum(low + 1, last)
    at_low = ordered.gather(1, low)
    at_high = ordered.gather(1, high)
    step = torch.where(rank > low, (at_high - at_low) * (rank - low), 0)
    return mask & ~(distances > at_low + step)


def pair_sums(
    distances: Tensor,
    pairs: Positives,
    negatives: Tensor,
    kind: Kind,
    all_negatives: bool = False,
    between: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Each pair's sum of a triplet loss over its negatives in S, and their number, ``[L]``.

    With ``all_negatives``, sums cover all negatives of the anchor. ``between`` has d_pn, ``[U, R]``, and each pair's
    row in it, ``[L]``.
    """
    sums_and_counts: tuple[Tensor, Tensor]
    if isinstance(kind, Hinge):
        sums_and_counts = apply_or_plain(_HingeSums, _sums_of_rows, distances, pairs, negatives, kind, all_negatives)
    else:
        sums_and_counts = _sums_of_rows(distances, pairs, negatives, kind, all_negatives, between)
    return sums_and_counts


def _sums_of_rows(
    distances: Tensor,
    pairs: Positives,
    negatives: Tensor,
    kind: Kind,
    all_negatives: bool,
    between: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    def sums(anchors: Tensor, positives: Tensor, *rows: Tensor) -> tuple[Tensor, Tensor]:
        d_ap = distances[anchors, positives][:, None]
        d_an = distances[anchors]
        inside = negatives[anchors]
        if not all_negatives:
            inside = inside * (d_an < kind.limit(d_ap))
        d_pn = None if between is None else between[0][rows[0]]
        values = kind.value(d_ap, d_an, d_pn)
        return (values * inside).sum(1), inside.sum(1, dtype=distances.dtype)

    size = max(1, _ENTRIES // max(1, distances.shape[1]))
    tensors = [pairs.anchors, pairs.positives]
    if between is not None:
        tensors.append(between[1])
    totals, counts = zip(*in_parts(sums, size, *tensors), strict=True)
    return torch.cat(totals), torch.cat(counts)


class _HingeSums(torch.autograd.Function):
    """Sums of hinges, whose forward pass computes the gradient."""

    @staticmethod
    def forward(
        ctx: Any, distances: Tensor, pairs: Positives, negatives: Tensor, kind: Hinge, all_negatives: bool
    ) -> tuple[Tensor, Tensor]:
        sums, counts, by_pair, by_negative = _hinge_sums(distances, pairs, negatives, kind, all_negatives)
        ctx.save_for_backward(
            distances, negatives, by_pair, by_negative, pairs.anchors, pairs.positives, pairs.columns, pairs.mask
        )
        ctx.settings = (pairs.most, kind, all_negatives)
        sums = pairs.listed(sums)
        counts = pairs.listed(counts)
        ctx.mark_non_differentiable(counts)
        ctx.set_materialize_grads(False)
        return sums, counts

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _counts: None) -> tuple[Any, ...]:  # type: ignore[override]
        if grad is None:  # nothing depends on the sums
            return None, None, None, None, None
        distances, negatives, by_pair, by_negative, anchors, positives, columns, mask = ctx.saved_tensors
        most, kind, all_negatives = ctx.settings
        pairs = Positives(anchors, positives, columns, most, mask)
        if torch.is_grad_enabled():  # double backward
            sums, _ = _sums_of_rows(distances, pairs, negatives, kind, all_negatives)
            return (*torch.autograd.grad(sums, distances, grad, create_graph=True), None, None, None, None)
        # A uniform upstream gradient, as from a sum or a mean; when compiling, its strides say nothing.
        if not torch.compiler.is_compiling() and len(grad) and grad.stride() == (0,):
            weight = grad[0]
        else:
            weights = pairs.laid_out(grad, 0.0, len(distances))
            _, _, by_pair, by_negative = _hinge_sums(distances, pairs, negatives, kind, all_negatives, weights)
            weight = grad.new_ones(())
        to_distances = by_negative * -weight
        pairs.add_to(to_distances, by_pair * weight)
        return to_distances, None, None, None, None


def _hinge_sums(
    distances: Tensor,
    pairs: Positives,
    negatives: Tensor,
    kind: Hinge,
    all_negatives: bool,
    weights: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    d_ap = pairs.of(distances, -_FAR)
    far = fill_outside(distances, indicators(negatives, distances), _FAR)
    if torch.compiler.is_compiling() or pairs.most > _MANY:  # no loop over positives when compiling
        sums, counts, active, by_negative = _hinges_by_sorting(far, d_ap, kind, all_negatives, weights)
        by_negative.mul_(negatives)
    else:
        sums, counts, active, by_negative = _hinges_by_passes(far, d_ap, kind, all_negatives, weights)
    if all_negatives:
        negatives_of_anchor = negatives.sum(1, dtype=sums.dtype)[:, None]
        counts = _with_padding(d_ap, negatives_of_anchor, 0.0)
    by_pair = kind.by_distance(active, d_ap)  # 0 in the padding
    if weights is not None:
        by_pair = by_pair * weights
    return sums, counts, by_pair, by_negative


def _with_padding(d_ap: Tensor, values: Tensor, fill: float) -> Tensor:
    return torch.where(d_ap < -_FAR / 2, fill, values)


_Hinges = tuple[Tensor, Tensor, Tensor, Tensor]  # sums, counts, numbers of hinges above 0, derivatives by -d_an


def _hinges_by_passes(far: Tensor, d_ap: Tensor, kind: Hinge, all_negatives: bool, weights: Tensor | None) -> _Hinges:
    compared = kind.compared(far)[:, None]
    thresholds = kind.compared(d_ap) + kind.margin
    if kind.squared:  # the padding is squared too
        thresholds = _with_padding(d_ap, thresholds, -_FAR)
    sums: list[Tensor] = []
    counts: list[Tensor] = []
    active: list[Tensor] = []
    # Per negative: the number of thresholds above it, at most _MANY, of booleans in uint8; or the sum of their weights.
    above: Tensor | None = None
    size = min(_AT_ONCE, max(1, _DIFFERENCES // max(1, far.numel())), d_ap.shape[1])  # positives per part
    excess = far.new_empty(far.shape[0], size, far.shape[1])
    at_once = min(_AT_ONCE, d_ap.shape[1])
    dtype = torch.bool
    if prefers_floats(far):
        at_once = size
        dtype = far.dtype
    comparisons = torch.empty(far.shape[0], at_once, far.shape[1], dtype=dtype, device=far.device)
    thresholds = thresholds[:, :, None]
    for first in range(0, d_ap.shape[1], at_once):
        threshold = _some_columns(thresholds, first, at_once)
        is_active = torch.lt(compared, threshold, out=_some_columns(comparisons, 0, threshold.shape[1]))
        if kind.squared:
            limit = _some_columns(kind.limit(d_ap), first, at_once)[:, :, None]
            in_s = torch.lt(far[:, None], limit, out=torch.empty_like(is_active))
            counts.append(in_s.sum(2, dtype=far.dtype))
            if not all_negatives:
                is_active.mul_(in_s)
        active.append(is_active.sum(2, dtype=far.dtype))
        if weights is not None:
            newly_above = zero_outside(_some_columns(weights, first, at_once)[:, :, None], is_active).sum(1)
        elif is_active.dtype == torch.bool:
            newly_above = is_active.view(torch.uint8).sum(1, dtype=torch.uint8)
        elif is_active.shape[1] > 1:
            newly_above = is_active.sum(1)
        else:
            newly_above = is_active[:, 0]
            if above is None:  # the next pass overwrites this view
                newly_above = newly_above.clone()
        if above is None:
            above = newly_above
        else:
            above = above.add_(newly_above)
        for k in range(0, is_active.shape[1], size):
            part = _some_columns(is_active, k, size)
            hinges = _some_columns(excess, 0, part.shape[1])
            torch.sub(_some_columns(threshold, k, size), compared, out=hinges).clamp_(min=0)
            if kind.squared:  # hinges above 0 outside of S do not count
                hinges.mul_(part)
            sums.append(hinges.sum(2))
    assert above is not None
    all_active = _side_by_side(active)
    if kind.squared:
        return _side_by_side(sums), _side_by_side(counts), all_active, kind.by_distance(above, far)
    return _side_by_side(sums), all_active, all_active, above


def _some_columns(matrix: Tensor, first: int, most: int) -> Tensor:
    if matrix.shape[1] <= most:
        return matrix
    return matrix[:, first : first + most]


def _side_by_side(parts: list[Tensor]) -> Tensor:
    if len(parts) == 1:
        return parts[0]
    return torch.cat(parts, 1)


def _hinges_by_sorting(far: Tensor, d_ap: Tensor, kind: Hinge, all_negatives: bool, weights: Tensor | None) -> _Hinges:
    """One sort of every row, a binary search for each threshold, and prefix sums."""
    thresholds = _with_padding(d_ap, kind.compared(d_ap) + kind.margin, -_FAR)
    limit = kind.active_limit(d_ap)
    if not all_negatives:
        limit = torch.minimum(limit, kind.limit(d_ap))
    limit = _with_padding(d_ap, limit, -_FAR)
    ordered = far.sort(1).values
    below = torch.searchsorted(ordered, limit.contiguous())  # number of negatives with d_an < limit
    wide = widest_dtype(far.device)
    prefix = torch.nn.functional.pad(kind.compared(ordered).cumsum(1, dtype=wide), (1, 0))
    active = below.to(far.dtype)
    sums = below * thresholds.to(wide) - prefix.gather(1, below)
    sums = (sums + 0 * prefix[:, -1:]).to(far.dtype)  # propagate NaN, which sorts above every threshold
    if kind.squared:
        counts = torch.searchsorted(ordered, kind.limit(d_ap).contiguous()).to(far.dtype)
    else:
        counts = active
    ranked, order = limit.sort(1)
    if weights is None:
        each = torch.ones_like(ranked)
    else:
        each = weights.gather(1, order)
    # Per negative: the summed weights of all thresholds above it.
    above = torch.nn.functional.pad(each.flip(1).cumsum(1).flip(1), (0, 1))
    by_negative = above.gather(1, torch.searchsorted(ranked, far.contiguous(), right=True))
    return sums, counts, active, kind.by_distance(by_negative, far)
