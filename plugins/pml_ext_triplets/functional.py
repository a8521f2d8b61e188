r"""The losses of Shah's "Clustering and Querying", Sec. 5, of one triplet and over all of a batch, none of them listed.

:math:`S = \{(a, p, n): a \neq p,\ d_{an} < d_{ap} + m\}` are the violating triplets of Sec. 5.2. Functions of
a batch sum over the negatives of a pair (a, p), so that memory is quadratic in the batch. Positives are padded per
anchor: column k of a matrix ``[B, P]`` belongs to the k-th positive of each anchor, P the most that any anchor has.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pml_ext.plugin import all_places, transformed

_FAR = 1e6  # stands for the distance to what is no negative: finite, so that 0 times it is 0
_AT_ONCE = 4  # positives of an anchor that are compared at a time
_MANY = 24  # positives of an anchor from which on one sort is cheaper than a pass for each

Slopes = tuple[Tensor, Tensor | float, Tensor, Tensor | None]


@dataclasses.dataclass(frozen=True)
class Kind:
    """A loss of one triplet, of margin m."""

    margin: float

    def limit(self, d_ap: Tensor) -> Tensor:
        """Return the distance of a negative below which the triplet is in S."""
        return d_ap + self.margin


class Hinge(Kind):
    r""":math:`\max(0, d_{ap} - d_{an} + m)`: a hinge between functions of the two distances."""

    active_in_s = True  # whether the triplets of S are those whose hinge is above 0

    def measured(self, distances: Tensor) -> Tensor:
        """Return the compared quantity: the distances themselves."""
        return distances

    def slope(self, distances: Tensor) -> Tensor:
        """Return the derivative of :meth:`measured`."""
        return torch.ones_like(distances)

    def value(self, d_ap: Tensor, d_an: Tensor, d_pn: Tensor | None = None) -> Tensor:
        """Return the loss of triplets; d_pn has no part in it."""
        return (self.measured(d_ap) - self.measured(d_an) + self.margin).clamp(min=0)

    def active_limit(self, d_ap: Tensor) -> Tensor:
        """Return the distance of a negative below which the hinge is above 0."""
        return self.limit(d_ap)


class SquaredHinge(Hinge):
    r""":math:`\max(0, d_{ap}^2 - d_{an}^2 + m)`."""

    active_in_s = False

    def measured(self, distances: Tensor) -> Tensor:
        """Return the compared quantity: squares."""
        return distances.square()

    def slope(self, distances: Tensor) -> Tensor:
        """Return the derivative of :meth:`measured`."""
        return 2 * distances

    def active_limit(self, d_ap: Tensor) -> Tensor:
        """Return the distance of a negative below which the hinge is above 0."""
        return (d_ap.square() + self.margin).clamp(min=0).sqrt()


class Ratio(Kind):
    r""":math:`r^2 - (1 - r)^2 = \tanh\frac{d_{ap} - d_{an}}{2}`, :math:`r = e^{d_{ap}} / (e^{d_{ap}} + e^{d_{an}})`."""

    def value(self, d_ap: Tensor, d_an: Tensor, d_pn: Tensor | None = None) -> Tensor:
        """Return the loss of triplets."""
        return self.value_and_slopes(d_ap, d_an, d_pn)[0]

    def value_and_slopes(self, d_ap: Tensor, d_an: Tensor, d_pn: Tensor | None) -> Slopes:
        """Return the loss of triplets, and its derivatives by d_ap, d_an and, where that has a part in it, d_pn."""
        value = torch.tanh((d_ap - d_an) / 2)
        slope = (1 - value.square()) / 2
        return value, slope, -slope, None


class Soft(Ratio):
    r""":math:`d_{ap} + \log(e^{m - d_{an}} + e^{m - d_{pn}})`."""

    def value_and_slopes(self, d_ap: Tensor, d_an: Tensor, d_pn: Tensor | None) -> Slopes:
        """Return the loss of triplets and its derivatives."""
        assert d_pn is not None
        value = d_ap + self.margin + torch.logaddexp(-d_an, -d_pn)
        share = torch.sigmoid(d_pn - d_an)  # of the term of d_an
        return value, 1.0, -share, share - 1


KINDS: dict[str, type[Hinge | Ratio]] = {"hinge": Hinge, "squared-hinge": SquaredHinge, "ratio": Ratio, "soft": Soft}


class Positives(NamedTuple):
    """The positive pairs, in row-major order, and where they stand in a matrix ``[B, P]``."""

    anchors: Tensor  # [L]
    positives: Tensor  # [L]
    places: Tensor  # which positive of its anchor each is, [L]
    most: int  # P, at least 1
    mask: Tensor | None = None  # [B, R], where the pairs are all places of it and P is R

    def laid_out(self, values: Tensor, fill: float, rows: int) -> Tensor:
        """Return values of the pairs, ``[L]``, as a padded matrix ``[rows, P]``."""
        if self.mask is not None:
            return torch.where(self.mask, values.view(rows, self.most), fill)
        matrix = values.new_full((rows, self.most), fill)
        return matrix.index_put_((self.anchors, self.places), values)


def lay_out(mask: Tensor, listed: tuple[Tensor, Tensor] | None = None) -> Positives:
    """Return the positive pairs of a mask ``[B, R]``; ``listed``: these pairs in row-major order, if they are known."""
    anchors, positives = torch.where(mask) if listed is None else listed
    starts = torch.searchsorted(anchors, torch.arange(len(mask), device=mask.device))
    places = torch.arange(len(anchors), device=mask.device) - starts[anchors]
    return Positives(anchors, positives, places, max(1, len(torch.unique(places))))


def every_place(mask: Tensor) -> Positives:
    """Return all B x R positions with their mask, so that no shape depends on the labels."""
    anchors, positives = all_places(mask)
    return Positives(anchors, positives, positives, mask.shape[1], mask)


def local_positives(distances: Tensor, mask: Tensor, percentile: float = 60.0) -> Tensor:
    """Return the pairs whose distance is not above a percentile of their anchor's positive distances, Sec. 5.3.

    Args:
        distances: ``[B, R]``.
        mask: positive pairs, ``[B, R]``.
        percentile: from 0 (the nearest positive alone) to 100 (all), interpolated linearly.

    Returns:
        A mask ``[B, R]``; a pair whose distance is NaN is kept, so that NaN propagates.
    """
    pairs = every_place(mask) if torch.compiler.is_compiling() else lay_out(mask)
    values = pairs.laid_out(distances[pairs.anchors, pairs.positives], torch.inf, len(mask)).sort(1).values
    last = (mask.sum(1, keepdim=True) - 1).clamp(min=0)
    place = last.to(values.dtype) * (percentile / 100)
    low = place.floor().long().clamp(max=values.shape[1] - 1)
    high = torch.minimum(low + 1, last)
    at_low, at_high = values.gather(1, low), values.gather(1, high)
    step = torch.where(place > low, (at_high - at_low) * (place - low), 0)
    return mask & ~(distances > at_low + step)


class _Request(NamedTuple):
    """Arguments of :func:`pair_sums`."""

    pairs: Positives
    negatives: Tensor  # mask of (a, n), [B, R]
    kind: Hinge | Ratio
    everything: bool  # all negatives of the anchor, rather than those in S
    rows: Tensor | None  # of each pair's positive in the distances between positives and columns, [L]


def pair_sums(
    distances: Tensor,
    pairs: Positives,
    negatives: Tensor,
    kind: Hinge | Ratio,
    everything: bool = False,
    between: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return each pair's sum of a triplet loss over its negatives in S, and the number of these.

    The forward pass also computes the gradient for a uniform upstream gradient (a sum or a mean); any other upstream
    gradient needs a second pass. For double backward, ``torch.func`` and forward mode, and for ``ratio`` and ``soft``
    under ``torch.compile``, the sums come from a matrix ``[pairs, R]``.

    Args:
        distances: ``[B, R]``.
        pairs: the positive pairs (a, p).
        negatives: mask of (a, n), ``[B, R]``.
        kind: the loss of a triplet.
        everything: all negatives of the anchor, rather than those in S.
        between: for the soft loss's d_pn: distances of positives to all columns, ``[U, R]``, and the row of each pair's
            positive among them, ``[L]``.

    Returns:
        Sums ``[L]`` and counts ``[L]``, floating point.
    """
    matrix, rows = between or (None, None)
    wanted = _Request(pairs, negatives, kind, everything, rows)
    if transformed(distances) or (torch.compiler.is_compiling() and isinstance(kind, Ratio)):  # no loop over positives
        return _written_out(distances, matrix, wanted)
    sums, counts = _PairSums.apply(distances, matrix, wanted)  # type: ignore[no-untyped-call]
    return sums, counts


def _written_out(distances: Tensor, between: Tensor | None, wanted: _Request) -> tuple[Tensor, Tensor]:
    """Return :func:`pair_sums` from a matrix with a row per pair."""
    pairs, kind = wanted.pairs, wanted.kind
    d_ap, d_an = distances[pairs.anchors, pairs.positives][:, None], distances[pairs.anchors]
    inside = wanted.negatives[pairs.anchors]
    if not wanted.everything:
        inside = inside & (d_an < kind.limit(d_ap))
    values = kind.value(d_ap, d_an, None if between is None else between[wanted.rows])
    return (values * inside).sum(1), inside.sum(1, dtype=distances.dtype)


class _Pass(NamedTuple):
    """The results of one pass, of the triplets of every pair."""

    sums: Tensor  # [B, P]
    counts: Tensor  # [B, P]
    by_pair: Tensor  # derivatives with respect to d_ap, [B, P]
    by_negative: Tensor  # to -d_an, [B, R]; whole numbers of a hinge may be uint8
    by_other: Tensor | None  # to d_pn, [U, R]


class _PairSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, distances: Tensor, between: Tensor | None, wanted: _Request) -> tuple[Tensor, Tensor]:
        pairs, result = wanted.pairs, _one_pass(distances, between, wanted)
        tensors = (distances, between, wanted.negatives, wanted.rows, pairs.anchors, pairs.positives, pairs.places)
        ctx.save_for_backward(*tensors, pairs.mask, result.by_pair, result.by_negative, result.by_other)
        ctx.settings = pairs.most, wanted.kind, wanted.everything
        sums, counts = (matrix[pairs.anchors, pairs.places] for matrix in (result.sums, result.counts))
        ctx.mark_non_differentiable(counts)
        return sums, counts

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _counts: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        distances, between, negatives, rows, anchors, positives, places, mask, *derivatives = ctx.saved_tensors
        by_pair, by_negative, by_other = derivatives
        most, kind, everything = ctx.settings
        pairs = Positives(anchors, positives, places, most, mask)
        wanted = _Request(pairs, negatives, kind, everything, rows)
        if torch.is_grad_enabled():  # the gradient is to be differentiated
            d = distances.view_as(distances)  # two tensors, where the distances between references are the same one
            b = None if between is None else between.view_as(between)
            sums, _ = _written_out(d, b, wanted)
            leaves = [x for x in (d, b) if x is not None and x.requires_grad]
            gradients = iter(torch.autograd.grad(sums, leaves, grad, create_graph=True))
            return (*(next(gradients) if x is not None and x.requires_grad else None for x in (d, b)), None)
        if len(grad) and grad.stride() == (0,):  # one number for all, as a sum or a mean hands down
            weight = grad[0]
        else:
            weights = pairs.laid_out(grad, 0.0, len(distances))
            _, _, by_pair, by_negative, by_other = _one_pass(distances, between, wanted, weights)
            weight = grad.new_ones(())
        to_distances = by_negative * -weight
        slopes = by_pair[pairs.anchors, pairs.places] * weight
        to_distances.index_put_((pairs.anchors, pairs.positives), slopes, accumulate=True)
        return to_distances, None if by_other is None else by_other * weight, None


def _one_pass(distances: Tensor, between: Tensor | None, wanted: _Request, weights: Tensor | None = None) -> _Pass:
    """Return sums, counts and derivatives, each pair's derivatives times its weight."""
    pairs = wanted.pairs
    d_ap = pairs.laid_out(distances[pairs.anchors, pairs.positives], -_FAR, len(distances))
    far = torch.where(wanted.negatives, distances, _FAR)
    if isinstance(wanted.kind, Ratio):
        return _smooth_by_passes(distances, between, far, d_ap, wanted, wanted.kind, weights)
    compiling = torch.compiler.is_compiling()  # compiled, no number of positives is a loop
    hinges = _hinge_by_sorting if compiling or pairs.most > _MANY else _hinge_by_passes
    sums, counts, active, by_negative = hinges(far, d_ap, wanted, wanted.kind, weights)
    if wanted.everything:
        counts = _where_pairs_stand(d_ap, wanted.negatives.sum(1, dtype=sums.dtype)[:, None], 0.0)
    by_pair = active * _where_pairs_stand(d_ap, wanted.kind.slope(d_ap), 0.0)
    return _Pass(sums, counts, by_pair if weights is None else by_pair * weights, by_negative, None)


def _where_pairs_stand(d_ap: Tensor, values: Tensor, fill: float) -> Tensor:
    """Return padded values of pairs, with a number in the padding."""
    return torch.where(d_ap < -_FAR / 2, fill, values)


_Hinges = tuple[Tensor, Tensor, Tensor, Tensor]  # sums, counts, numbers of hinges above 0, slopes by -d_an


def _hinge_by_passes(far: Tensor, d_ap: Tensor, wanted: _Request, kind: Hinge, weights: Tensor | None) -> _Hinges:
    """Compute hinges by a few passes over the matrix for each positive of an anchor."""
    differ = not kind.active_in_s
    compared = kind.measured(far)
    thresholds = _where_pairs_stand(d_ap, kind.measured(d_ap) + kind.margin, -_FAR)
    sums, counts, active = (torch.zeros_like(d_ap) for _ in range(3))
    above: Tensor | None = None  # of each negative: how many thresholds are above it, or their weights
    excess = torch.empty_like(far)
    for first in range(0, d_ap.shape[1], _AT_ONCE):
        some = slice(first, first + _AT_ONCE)
        inside = compared[:, None] < thresholds[:, some, None]
        if differ:  # S is told by distances, whatever the hinge is between
            in_s = far[:, None] < kind.limit(d_ap)[:, some, None]
            counts[:, some] = in_s.sum(2, dtype=far.dtype)
            inside = inside if wanted.everything else inside & in_s
        active[:, some] = inside.sum(2, dtype=far.dtype)
        if weights is None:
            some_above = inside.view(torch.uint8).sum(1, dtype=torch.uint8)
        else:
            some_above = torch.where(inside, weights[:, some, None], 0).sum(1)
        above = some_above if above is None else above.add_(some_above)
        for k in range(inside.shape[1]):
            torch.sub(thresholds[:, first + k, None], compared, out=excess).clamp_(min=0)
            sums[:, first + k] = (excess.mul_(inside[:, k]) if differ else excess).sum(1)
    assert above is not None
    if differ:
        return sums, counts, active, above * kind.slope(far)
    return sums, active, active, above


def _hinge_by_sorting(far: Tensor, d_ap: Tensor, wanted: _Request, kind: Hinge, weights: Tensor | None) -> _Hinges:
    """Compute hinges by one sort of every row, a binary search for each threshold, and prefix sums."""
    differ = not kind.active_in_s
    thresholds = _where_pairs_stand(d_ap, kind.measured(d_ap) + kind.margin, -_FAR)
    limit = kind.active_limit(d_ap)
    if not wanted.everything:
        limit = torch.minimum(limit, kind.limit(d_ap))
    limit = _where_pairs_stand(d_ap, limit, -_FAR)
    ordered = far.sort(1).values
    below = torch.searchsorted(ordered, limit.contiguous())  # of d_an < limit
    prefix = torch.nn.functional.pad(kind.measured(ordered).double().cumsum(1), (1, 0))
    active = below.to(far.dtype)
    sums = below * thresholds.double() - prefix.gather(1, below)
    sums = (sums + 0 * prefix[:, -1:]).to(far.dtype)  # NaN is sorted behind every threshold
    counts = torch.searchsorted(ordered, kind.limit(d_ap).contiguous()).to(far.dtype) if differ else active
    ranked, order = limit.sort(1)
    each = torch.ones_like(ranked) if weights is None else weights.gather(1, order)
    # Of a negative: the weights of all thresholds above it.
    above = torch.nn.functional.pad(each.flip(1).cumsum(1).flip(1), (0, 1))
    by_negative = above.gather(1, torch.searchsorted(ranked, far.contiguous(), right=True))
    by_negative.mul_(wanted.negatives)
    if differ:
        by_negative.mul_(kind.slope(far))
    return sums, counts, active, by_negative


def _smooth_by_passes(
    distances: Tensor,
    between: Tensor | None,
    far: Tensor,
    d_ap: Tensor,
    wanted: _Request,
    kind: Ratio,
    weights: Tensor | None,
) -> _Pass:
    """Compute smooth kinds by a pass over the matrix for each positive of an anchor."""
    partners = None if wanted.rows is None else wanted.pairs.laid_out(wanted.rows, 0, len(distances))
    sums, counts, by_pair = (torch.zeros_like(d_ap) for _ in range(3))
    by_negative = torch.zeros_like(far)
    by_other = None if between is None else torch.zeros_like(between)
    for k in range(d_ap.shape[1]):
        pair = d_ap[:, k, None]
        counted = wanted.negatives & (pair > -_FAR / 2) if wanted.everything else far < kind.limit(pair)
        inside = counted.to(far.dtype)
        d_pn = None if between is None or partners is None else between[partners[:, k]]
        value, by_ap, by_an, by_pn = kind.value_and_slopes(_where_pairs_stand(pair, pair, 0.0), distances, d_pn)
        counts[:, k] = inside.sum(1)
        sums[:, k] = (value * inside).sum(1)
        if weights is not None:
            inside.mul_(weights[:, k, None])
        by_pair[:, k] = (by_ap * inside).sum(1)
        by_negative.addcmul_(by_an, inside, value=-1)
        if by_other is not None and partners is not None and by_pn is not None:
            by_other.index_add_(0, partners[:, k], by_pn * inside)
    return _Pass(sums, counts, by_pair, by_negative, by_other)
