r"""The losses of Shah's "Clustering and Querying", Sec. 5, over all triplets of a batch, none of them listed.

:math:`S = \{(a, p, n): a \neq p,\ d_{an} < d_{ap} + m\}` are the violating triplets of Sec. 5.2. Every function here
sums over the negatives of a pair (a, p), so that memory is quadratic in the batch. Positives are laid out by anchor:
column k of a matrix ``[B, P]`` belongs to the k-th positive of each anchor, P the most that any anchor has.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from pml_ext.plugin import transformed

KINDS = ("hinge", "squared-hinge", "ratio", "soft")
_FAR = 1e6  # stands for the distance to what is no negative: finite, so that 0 times it is 0
_MANY = 24  # positives of an anchor from which on one sort is cheaper than a pass for each


class Positives(NamedTuple):
    """The positive pairs, in row-major order, and where they stand in a matrix ``[B, P]``.

    Args:
        anchors: ``[L]``.
        positives: ``[L]``.
        places: which positive of its anchor each is, ``[L]``.
        most: P, at least 1.
    """

    anchors: Tensor
    positives: Tensor
    places: Tensor
    most: int

    def laid_out(self, values: Tensor, fill: float, rows: int) -> Tensor:
        """Values of the pairs, ``[L]``, as a matrix ``[rows, P]``."""
        matrix = values.new_full((rows, self.most), fill)
        return matrix.index_put_((self.anchors, self.places), values)


def lay_out(mask: Tensor) -> Positives:
    """The positive pairs of a mask ``[B, R]``."""
    anchors, positives = torch.where(mask)
    counts = mask.sum(1)
    starts = counts.cumsum(0) - counts
    places = torch.arange(len(anchors), device=mask.device) - starts[anchors]
    return Positives(anchors, positives, places, max(1, len(torch.unique(places))))


def local_positives(distances: Tensor, mask: Tensor, percentile: float = 60.0) -> Tensor:
    """Pairs whose distance is not above a percentile of their anchor's positive distances, Sec. 5.3.

    Args:
        distances: ``[B, R]``.
        mask: positive pairs, ``[B, R]``.
        percentile: from 0 (the nearest positive alone) to 100 (all), interpolated linearly.

    Returns:
        A mask ``[B, R]``; a pair whose distance is NaN is in it, so that no NaN is left out.
    """
    pairs = lay_out(mask)
    values = pairs.laid_out(distances[pairs.anchors, pairs.positives], torch.inf, len(mask)).sort(1).values
    last = (mask.sum(1, keepdim=True) - 1).clamp(min=0)
    place = last.to(values.dtype) * (percentile / 100)
    low = place.floor().long().clamp(max=values.shape[1] - 1)
    high = torch.minimum(low + 1, last)
    at_low, at_high = values.gather(1, low), values.gather(1, high)
    step = torch.where(place > low, (at_high - at_low) * (place - low), 0)
    return mask & ~(distances > at_low + step)


def triplet_values(kind: str, margin: float, d_ap: Tensor, d_an: Tensor, d_pn: Tensor | None = None) -> Tensor:
    r"""The loss of triplets, Sec. 5.1 and 5.2.

    .. math::
        \max(0, d_{ap} - d_{an} + m), \quad \max(0, d_{ap}^2 - d_{an}^2 + m), \quad
        \tanh\frac{d_{ap} - d_{an}}{2}, \quad d_{ap} + \log(e^{m - d_{an}} + e^{m - d_{pn}})

    The third is the ratio loss :math:`r^2 - (1 - r)^2` with :math:`r = e^{d_{ap}} / (e^{d_{ap}} + e^{d_{an}})`.

    Args:
        kind: ``"hinge"``, ``"squared-hinge"``, ``"ratio"`` or ``"soft"``.
        margin: m; of no meaning to the ratio loss.
        d_ap: any shape.
        d_an: likewise.
        d_pn: likewise; for the soft loss alone.
    """
    if kind == "hinge":
        return (d_ap - d_an + margin).clamp(min=0)
    if kind == "squared-hinge":
        return (d_ap.square() - d_an.square() + margin).clamp(min=0)
    if kind == "ratio":
        return torch.tanh((d_ap - d_an) / 2)
    assert d_pn is not None
    return d_ap + margin + torch.logaddexp(-d_an, -d_pn)


def pair_sums(
    distances: Tensor,
    pairs: Positives,
    negatives: Tensor,
    kind: str = "hinge",
    margin: float = 0.2,
    everything: bool = False,
    between: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Each pair's sum of :func:`triplet_values` over its negatives in S, and how many those are.

    The gradient is written in the same pass, for weights alike; another pass is made for weights that differ. Where it
    is to be differentiated again, under torch.func and in forward mode, the sums are written out over all triplets:
    memory for pairs x R entries.

    Args:
        distances: ``[B, R]``.
        pairs: the positive pairs (a, p).
        negatives: mask of (a, n), ``[B, R]``.
        kind: of the loss.
        margin: m.
        everything: all negatives of the anchor, rather than those in S.
        between: for the soft loss's d_pn: distances of positives to all columns, ``[U, R]``, and the row of each pair's
            positive among them, ``[L]``.

    Returns:
        Sums ``[L]`` and counts ``[L]``, floating point.
    """
    matrix, rows = between or (None, None)
    settings = (pairs, negatives, kind, margin, everything, rows)
    if transformed():
        return _written_out(distances, matrix, *settings)
    sums, counts = _PairSums.apply(distances, matrix, *settings)  # type: ignore[no-untyped-call]
    return sums, counts


def _written_out(
    distances: Tensor, between: Tensor | None, pairs: Positives, negatives: Tensor, kind: str, margin: float,
    everything: bool, rows: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """:func:`pair_sums` from a matrix with a row per pair."""
    d_ap, d_an = distances[pairs.anchors, pairs.positives][:, None], distances[pairs.anchors]
    inside = negatives[pairs.anchors]
    if not everything:
        inside = inside & (d_an < d_ap + margin)
    values = triplet_values(kind, margin, d_ap, d_an, None if between is None else between[rows])
    return (values * inside).sum(1), inside.sum(1, dtype=distances.dtype)


class _Pass(NamedTuple):
    """What one pass finds.

    Args:
        sums: of the values, ``[B, P]``.
        counts: of the triplets in S (or of all), ``[B, P]``.
        by_pair: derivatives by d_ap, ``[B, P]``.
        by_negative: derivatives by d_an, ``[B, R]``.
        by_other: derivatives by d_pn, ``[U, R]``, or None.
    """

    sums: Tensor
    counts: Tensor
    by_pair: Tensor
    by_negative: Tensor
    by_other: Tensor | None


class _PairSums(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, distances: Tensor, between: Tensor | None, pairs: Positives, negatives: Tensor, kind: str,
        margin: float, everything: bool, rows: Tensor | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        result = _one_pass(distances, between, pairs, negatives, kind, margin, everything, rows)
        ctx.save_for_backward(distances, between, negatives, *pairs[:3], result.by_pair, result.by_negative,
                              result.by_other, rows)  # fmt: skip
        ctx.settings = pairs.most, kind, margin, everything
        sums, counts = (matrix[pairs.anchors, pairs.places] for matrix in (result.sums, result.counts))
        ctx.mark_non_differentiable(counts)
        return sums, counts

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _counts: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        distances, between, negatives, anchors, positives, places, *derivatives, rows = ctx.saved_tensors
        by_pair, by_negative, by_other = derivatives
        most, kind, margin, everything = ctx.settings
        pairs = Positives(anchors, positives, places, most)
        if torch.is_grad_enabled():  # the gradient is to be differentiated
            d = distances.view_as(distances)  # two tensors, where the distances between references are the same one
            b = None if between is None else between.view_as(between)
            sums, _ = _written_out(d, b, pairs, negatives, kind, margin, everything, rows)
            wanted = [x for x in (d, b) if x is not None and x.requires_grad]
            gradients = iter(torch.autograd.grad(sums, wanted, grad, create_graph=True))
            to_both = (next(gradients) if x is not None and x.requires_grad else None for x in (d, b))
            return (*to_both, None, None, None, None, None, None)
        if len(grad) and grad.stride() == (0,):  # one number for all, as a sum or a mean hands down
            weight = grad[0]
        else:
            weights = pairs.laid_out(grad, 0.0, len(distances))
            settings = (kind, margin, everything, rows)
            _, _, by_pair, by_negative, by_other = _one_pass(distances, between, pairs, negatives, *settings, weights)
            weight = grad.new_ones(())
        to_distances = by_negative * weight
        slopes = by_pair[pairs.anchors, pairs.places] * weight
        to_distances.index_put_((pairs.anchors, pairs.positives), slopes, accumulate=True)
        to_between = None if by_other is None else by_other * weight
        return to_distances, to_between, None, None, None, None, None, None


def _one_pass(
    distances: Tensor, between: Tensor | None, pairs: Positives, negatives: Tensor, kind: str, margin: float,
    everything: bool, rows: Tensor | None, weights: Tensor | None = None,
) -> _Pass:  # fmt: skip
    """Sums, counts and derivatives, each pair's derivatives times its weight."""
    d_ap = pairs.laid_out(distances[pairs.anchors, pairs.positives], -_FAR, len(distances))
    far = torch.where(negatives, distances, _FAR)
    if kind in ("hinge", "squared-hinge"):
        if pairs.most > _MANY:
            return _hinge_by_sorting(far, negatives, d_ap, kind, margin, everything, weights)
        return _hinge_by_passes(far, negatives, d_ap, kind, margin, everything, weights)
    return _smooth_by_passes(distances, between, rows, pairs, far, negatives, d_ap, kind, margin, everything, weights)


def _hinge_scale(far: Tensor, d_ap: Tensor, kind: str, margin: float) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """What is compared (d or d^2), thresholds on it, and their derivatives by d_ap (None: 1)."""
    if kind == "hinge":
        return far, d_ap + margin, torch.ones_like(d_ap), None
    none = d_ap < -_FAR / 2  # no pair stands there
    return far.square(), torch.where(none, -_FAR, d_ap.square() + margin), torch.where(none, 0, 2 * d_ap), far


def _hinge_by_passes(far: Tensor, negatives: Tensor, d_ap: Tensor, kind: str, margin: float, everything: bool,
                     weights: Tensor | None) -> _Pass:  # fmt: skip
    """One pass over the matrix for each positive of an anchor."""
    compared, thresholds, slopes, d_an = _hinge_scale(far, d_ap, kind, margin)
    sums, counts, active = (torch.zeros_like(d_ap) for _ in range(3))
    by_negative = torch.zeros_like(far)
    excess, inside = torch.empty_like(far), torch.empty_like(far)
    number = negatives.sum(1, dtype=far.dtype)
    for k in range(d_ap.shape[1]):
        torch.sub(thresholds[:, k, None], compared, out=excess)
        torch.gt(excess, 0, out=inside)
        active[:, k] = inside.sum(1)
        sums[:, k] = excess.clamp_(min=0).sum(1)
        if d_an is not None:  # the set by distances may lack what exceeds in squares, and has what does not
            torch.lt(far, d_ap[:, k, None] + margin, out=excess)
            counts[:, k] = excess.sum(1)
            if not everything:
                inside.mul_(excess)
                active[:, k] = inside.sum(1)
                sums[:, k] = (thresholds[:, k, None] - compared).mul_(inside).sum(1)
        by_negative.sub_(inside if weights is None else inside.mul_(weights[:, k, None]))
    if d_an is None:
        counts = active
    if everything:
        counts = torch.where(d_ap < -_FAR / 2, 0, number[:, None])
    if d_an is not None:
        by_negative.mul_(d_an).mul_(2)
    by_pair = active * slopes
    return _Pass(sums, counts, by_pair if weights is None else by_pair * weights, by_negative, None)


def _hinge_by_sorting(far: Tensor, negatives: Tensor, d_ap: Tensor, kind: str, margin: float, everything: bool,
                      weights: Tensor | None) -> _Pass:  # fmt: skip
    """One sort of every row, a binary search for each threshold, and prefix sums."""
    _, thresholds, slopes, d_an = _hinge_scale(far, d_ap, kind, margin)
    limit = d_ap + margin
    if d_an is not None:
        limit = torch.where(d_ap < -_FAR / 2, -_FAR, _set_limit(d_ap, margin, everything))
    ordered = far.sort(1).values
    below = torch.searchsorted(ordered, limit.contiguous())  # of d_an < limit
    prefix = torch.nn.functional.pad((ordered if d_an is None else ordered.square()).double().cumsum(1), (1, 0))
    active = below.to(far.dtype)
    sums = below * thresholds.double() - prefix.gather(1, below)
    sums = (sums + 0 * prefix[:, -1:]).to(far.dtype)  # NaN is sorted behind every threshold
    if everything:
        counts = torch.where(d_ap < -_FAR / 2, 0, negatives.sum(1, dtype=far.dtype)[:, None])
    elif d_an is None:
        counts = active
    else:
        counts = torch.searchsorted(ordered, (d_ap + margin).contiguous()).to(far.dtype)
    ranked, order = limit.sort(1)
    each = torch.ones_like(ranked) if weights is None else weights.gather(1, order)
    # Of a negative: the weights of all thresholds above it.
    above = torch.nn.functional.pad(each.flip(1).cumsum(1).flip(1), (0, 1))
    by_negative = above.gather(1, torch.searchsorted(ranked, far.contiguous(), right=True)).neg_()
    by_negative.mul_(negatives)
    if d_an is not None:
        by_negative.mul_(d_an).mul_(2)
    by_pair = active * slopes
    return _Pass(sums, counts, by_pair if weights is None else by_pair * weights, by_negative, None)


def _set_limit(d_ap: Tensor, margin: float, everything: bool) -> Tensor:
    """The distance below which a negative has a squared hinge: in squares, and in S unless everything counts."""
    squared = (d_ap.square() + margin).clamp(min=0).sqrt()
    return squared if everything else torch.minimum(squared, d_ap + margin)


def _smooth_by_passes(
    distances: Tensor, between: Tensor | None, rows: Tensor | None, pairs: Positives, far: Tensor, negatives: Tensor,
    d_ap: Tensor, kind: str, margin: float, everything: bool, weights: Tensor | None,
) -> _Pass:  # fmt: skip
    """The ratio and the soft loss: a pass over the matrix for each positive of an anchor."""
    sums, counts, by_pair = (torch.zeros_like(d_ap) for _ in range(3))
    by_negative = torch.zeros_like(far)
    by_other = None if between is None else torch.zeros_like(between)
    partners = None if rows is None else pairs.laid_out(rows, 0, len(distances))
    for k in range(d_ap.shape[1]):
        none = d_ap[:, k, None] < -_FAR / 2
        mask = negatives & ~none if everything else far < d_ap[:, k, None] + margin
        inside = mask.to(far.dtype)
        pair = torch.where(none, 0, d_ap[:, k, None])
        weight = torch.ones_like(pair) if weights is None else weights[:, k, None]
        counts[:, k] = inside.sum(1)
        if kind == "ratio":
            value = triplet_values(kind, margin, pair, distances)
            slope = (1 - value.square()) / 2 * inside
            by_pair[:, k] = (slope * weight).sum(1)
            by_negative.addcmul_(slope, weight, value=-1)
        else:
            assert between is not None
            assert by_other is not None
            assert partners is not None
            d_pn = between[partners[:, k]]
            value = triplet_values(kind, margin, pair, distances, d_pn)
            by_pair[:, k] = counts[:, k] * weight[:, 0]
            share = torch.sigmoid(d_pn - distances).mul_(inside).mul_(weight)  # of the term of d_an
            by_negative.sub_(share)
            by_other.index_add_(0, partners[:, k], share.sub_(inside * weight))
        sums[:, k] = (value * inside).sum(1)
    return _Pass(sums, counts, by_pair, by_negative, by_other)
