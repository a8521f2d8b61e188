r"""The equations of Wang et al. (2017), Sec. 3.2 and 3.3, on dot products and lists of pairs.

:math:`t = \tan^2 \alpha` throughout. A dot product with :math:`x_a + x_p` is a sum of two entries of the similarity
matrix. A pair whose anchor has no negative gives 0.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pml_ext.plugin import (
    ClassMembers,
    apply_or_plain,
    fill_outside,
    in_parts,
    indicators,
    log_sum_exp,
    weights_of_shares,
    without_tiny,
)

# Largest slope 4 t at which products of exponentials of cosines stay finite: they lie between exp(-2 * slope) and
# exp(2 * slope), and float32 reaches from exp(-87) to exp(88).
PRODUCT_SLOPE = 16.0
_BELOW_PRODUCTS = math.exp(-2 * PRODUCT_SLOPE) / 2  # below every product, and so below every sum but 0
Between = Callable[[Tensor], tuple[Tensor, Tensor]]
MAX_ENTRIES = 1 << 23  # matrix entries of gathered rows in memory at a time


def squared_tangent(alpha: float) -> float:
    r""":math:`\tan^2 \alpha` of an angle in degrees."""
    return math.tan(math.radians(alpha)) ** 2


def log_sums_of_pairs(similarity: Tensor, negatives: Tensor, anchors: Tensor, partners: Tensor) -> Tensor:
    r"""The sum of Eq. (10) for every pair (a, p), as a logarithm, ``[P]``.

    .. math:: \log \sum_{n \in N_a} \exp(x_a^T x_n - x_a^T x_p)

    Similarity and the mask of negatives are ``[B, R]``. Without negatives, the result is very low; its upstream
    gradient must be 0.
    """
    log_sums: Tensor = apply_or_plain(_LogSumsOfPairs, _pairs_written_out, similarity, negatives, anchors, partners)
    return log_sums


def _pairs_written_out(similarity: Tensor, negatives: Tensor, anchors: Tensor, partners: Tensor) -> Tensor:
    return log_sum_exp(similarity, negatives)[anchors] - similarity[anchors, partners]


class _LogSumsOfPairs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, similarity: Tensor, negatives: Tensor, anchors: Tensor, partners: Tensor) -> Tensor:
        exponents = fill_outside(similarity, indicators(negatives, similarity), _lowest(similarity))
        shares = torch.softmax(exponents, 1)
        log_sums = exponents.amax(1) - shares.amax(1).log()  # the greatest exponential is this share of the sum
        ctx.save_for_backward(similarity, anchors, partners, without_tiny(shares))
        return log_sums[anchors] - similarity[anchors, partners]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        similarity, anchors, partners, shares = ctx.saved_tensors
        if torch.is_grad_enabled():  # double backward: recompute from the input, where there are shares
            shares = torch.softmax(fill_outside(similarity, shares != 0, _lowest(similarity)), 1)
        by_anchor = grad.new_zeros(len(similarity)).index_put_((anchors,), grad, accumulate=True)
        gradient = shares * weights_of_shares(by_anchor, shares)[:, None]
        gradient.index_put_((anchors, partners), -grad, accumulate=True)
        return gradient, None, None, None


def log_sums_of_rows(
    similarity: Tensor, between: Between, negatives: Tensor, anchors: Tensor, partners: Tensor, t: float
) -> Tensor:
    r""":math:`\log \sum_{n \in N_a} \exp f_{a,p,n}` of every pair (a, p), ``[P]``, for Eq. (8).

    .. math:: f_{a,p,n} = 4 t (x_a + x_p)^T x_n - 2 (1 + t) \, x_a^T x_p

    Anchors and partners, ``[P]``, are rows and columns of ``similarity``, ``[B, R]``. ``between(partners)`` returns the
    products of the distinct partners, ``[U, R]``, and each partner's row in them, ``[P]``.
    """

    def log_sums(anchors: Tensor, partners: Tensor) -> Tensor:
        matrix, rows = between(partners)
        return log_sum_exp(4 * t * (similarity[anchors] + matrix[rows]), negatives[anchors])

    sums = torch.cat(in_parts(log_sums, pairs_at_once(similarity), anchors, partners))
    return torch.sub(sums, similarity[anchors, partners], alpha=2 * (1 + t))


def log_sums_of_products(
    similarity: Tensor,
    mask: Tensor,
    classes: ClassMembers | None,
    anchors: Tensor,
    partners: Tensor,
    t: float,
    first: int = 0,
    with_n_pair: bool = False,
) -> Tensor:
    r""":func:`log_sums_of_rows` from a product, if the negatives follow from the labels.

    With :math:`E = \exp 4 t s` inside a mask and 0 outside, it is :math:`\log (E E^T)_{ap} - 2 (1 + t) s_{ap}`. This
    needs cosines, :math:`4 t` up to :data:`PRODUCT_SLOPE`, pairs within a class, and rows of whole classes; ``first``
    is the column of the first row. A sum of 0 gives a very low number, whose upstream gradient must be 0.

    With ``with_n_pair``, the result is ``[2, P]``: :func:`log_sums_of_pairs` first, then these.
    """
    rows_of_partners = partners
    if first:
        rows_of_partners = partners - first
    members: Tensor | None = None
    rows_of: tuple[Tensor, Tensor] | None = None
    places: tuple[Tensor, ...] = (anchors, rows_of_partners)
    if classes is not None:
        members = classes.members
        rows_of = (classes.class_of, classes.place)
        places = (classes.class_of[anchors], classes.place[anchors], classes.place[rows_of_partners])
    logarithms: Tensor = apply_or_plain(
        _LogSumsOfProducts,
        _products_written_out,
        similarity,
        mask,
        t,
        members,
        rows_of,
        places,
        anchors,
        partners,
        with_n_pair,
    )
    return logarithms


def _products_written_out(
    similarity: Tensor,
    mask: Tensor,
    t: float,
    members: Tensor | None,
    rows_of: tuple[Tensor, Tensor] | None,
    places: tuple[Tensor, ...],
    anchors: Tensor,
    partners: Tensor,
    with_n_pair: bool,
) -> Tensor:
    rows = _by_class((4 * t * similarity).exp() * mask, members)
    sums = (rows @ rows.mT)[places]
    empty = sums == 0
    logarithms = torch.where(empty, 1, sums).log().masked_fill(empty, _lowest(sums))
    angular = torch.sub(logarithms, similarity[anchors, partners], alpha=2 * (1 + t))
    if with_n_pair:
        return torch.stack((_pairs_written_out(similarity, mask, anchors, partners), angular))
    return angular


def _by_class(rows: Tensor, members: Tensor | None) -> Tensor:
    if members is None:
        return rows
    return rows[members]


def _lowest(like: Tensor) -> float:
    return torch.finfo(like.dtype).min / 4


def _scattered(
    shares: Tensor, rows: Tensor, places: tuple[Tensor, ...], anchors: Tensor, num_rows: int
) -> tuple[Tensor, Tensor | None]:
    by_anchor: Tensor | None = None
    if shares.ndim == 2:
        n_pair, shares = shares.unbind()
        by_anchor = shares.new_zeros(num_rows).index_put_((anchors,), n_pair, accumulate=True)
    weights = shares.new_zeros(*rows.shape[:-1], rows.shape[-2]).index_put_(places, shares)
    return weights, by_anchor


class _LogSumsOfProducts(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        similarity: Tensor,
        mask: Tensor,
        t: float,
        members: Tensor | None,
        rows_of: tuple[Tensor, Tensor] | None,
        places: tuple[Tensor, ...],
        anchors: Tensor,
        partners: Tensor,
        with_n_pair: bool,
    ) -> Tensor:
        cosines = fill_outside(similarity, indicators(mask, similarity), _lowest(similarity))
        exponentials: Tensor | None = None  # of Eq. (10); those of cosines need no common factor
        if with_n_pair:
            exponentials = cosines.exp()
        rows = _by_class(cosines.mul_(4 * t).exp_(), members)
        sums = (rows @ rows.mT)[places]
        if exponentials is not None:
            sums = torch.stack((exponentials.sum(1)[anchors], sums))
        ctx.save_for_backward(similarity, members, rows, exponentials, sums, anchors, partners)
        ctx.t = t
        ctx.rows_of = rows_of
        ctx.places = places
        logarithms = sums.log().clamp(min=_lowest(sums))
        of_pairs = similarity[anchors, partners]
        if exponentials is not None:
            return logarithms - torch.stack((of_pairs, 2 * (1 + t) * of_pairs))
        return torch.sub(logarithms, of_pairs, alpha=2 * (1 + t))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        similarity, members, rows, exponentials, sums, anchors, partners = ctx.saved_tensors
        if torch.is_grad_enabled():  # double backward: recompute from the input, where there are exponentials
            rows = _by_class((4 * ctx.t * similarity).exp(), members) * (rows != 0)
            sums = (rows @ rows.mT)[ctx.places]
            if exponentials is not None:
                exponentials = similarity.exp() * (exponentials != 0)
                sums = torch.stack((exponentials.sum(1)[anchors], sums))
        shares = grad / sums.clamp(min=_BELOW_PRODUCTS)
        weights, by_anchor = _scattered(shares, rows, ctx.places, anchors, len(similarity))
        del shares  # before there are more matrices
        gradient = (4 * ctx.t * (weights + weights.mT)) @ rows * rows
        if members is not None:
            gradient = gradient[ctx.rows_of]
        if by_anchor is None:
            by_pair = -2 * (1 + ctx.t) * grad
        else:
            gradient.addcmul_(exponentials, by_anchor[:, None])
            n_pair_grad, angular_grad = grad.unbind()
            by_pair = torch.add(-n_pair_grad, angular_grad, alpha=-2 * (1 + ctx.t))
        gradient.index_put_((anchors, partners), by_pair, accumulate=True)
        return gradient, *[None] * 8


def rows_of_each_class(labels: Tensor) -> int:
    """Rows per class of labels ``[B]``, if they are ordered by class and all classes have equally many; else B."""
    if type(labels) is not Tensor:  # a FakeTensor has no values to read
        return len(labels)
    names = labels.tolist()
    size = names.count(names[0])
    classes = names[::size]
    if len(set(classes)) == len(classes) and all(names[row::size] == classes for row in range(size)):
        return size
    return len(names)


def sums_of_cosines(
    similarity: Tensor, masks: Tensor, labels: Tensor, t: float, weights: tuple[float, float]
) -> Tensor:
    r"""The sum of Eq. (10) and Eq. (8), with weights, over the positives of each anchor of a small batch, ``[B]``.

    .. math:: \sum_{p \in P_a} \sum_k w_k \log(1 + S_{ap} / F_{ap})

    with :math:`S = \sum_n e^{s_{an}}, F = e^{s_{ap}}` for Eq. (10), and :math:`S = (E E^T)_{ap},
    F = e^{2 (1 + t) s_{ap}}` for Eq. (8), as in :func:`log_sums_of_products`; ``weights`` are in this order. It needs
    the cosines of a batch with itself, a symmetric matrix, :math:`4 t` up to :data:`PRODUCT_SLOPE`, masks of 1 and 0,
    ``[2, B, B]``, and an upstream gradient that is the same for all anchors. With M from
    :func:`rows_of_each_class`, S and F are computed within blocks along the diagonal, ``[B / M, M, M]``.
    """
    totals: Tensor = apply_or_plain(_SumsOfCosines, _cosines_written_out, similarity, masks, labels, t, weights)
    return totals


def _cosines_written_out(
    similarity: Tensor, masks: Tensor, labels: Tensor, t: float, weights: tuple[float, float]
) -> Tensor:
    positives, negatives = masks
    rows = (4 * t * similarity).exp() * negatives
    n_pair = (similarity.exp() * negatives).sum(1, keepdim=True) / similarity.exp()
    angular = (rows @ rows.mT) / (2 * (1 + t) * similarity).exp()
    totals: Tensor = ((weights[0] * n_pair.log1p() + weights[1] * angular.log1p()) * positives).sum(1)
    return totals


class _SumsOfCosines(torch.autograd.Function):
    """The forward pass also computes the gradient."""

    @staticmethod
    def forward(
        ctx: Any, similarity: Tensor, masks: Tensor, labels: Tensor, t: float, weights: tuple[float, float]
    ) -> Tensor:
        size = rows_of_each_class(labels)
        positives, negatives = masks.unbind()
        positives = _blocks(positives, size)
        n_pair_weight, angular_weight = weights
        parts = []  # values [B] and gradients [B, B]
        if n_pair_weight:
            powers = similarity.exp()
            gradient = powers * negatives
            sums = gradient.sum(1).view(-1, size, 1)
            value, by_sums = _sums_of_logarithms(sums, _blocks(powers, size), positives, n_pair_weight)
            gradient *= by_sums.sum(2).view(-1, 1)
            _blocks(gradient, size).addcmul_(by_sums, sums, value=-1)
            parts.append((value, gradient))
        if angular_weight:
            rows = torch.mul(similarity, 4 * t).exp_().mul_(negatives).view(-1, size, len(similarity))
            sums = torch.bmm(rows, rows.mT)
            divisors = torch.mul(_blocks(similarity, size), 2 * (1 + t)).exp_()
            value, by_sums = _sums_of_logarithms(sums, divisors, positives, angular_weight)
            gradient = torch.baddbmm(rows, by_sums, rows, beta=0, alpha=8 * t)  # rows are not added
            gradient = gradient.mul_(rows).view_as(similarity)
            _blocks(gradient, size).addcmul_(by_sums, sums, value=-2 * (1 + t))
            parts.append((value, gradient))
        totals, gradient = parts[0]
        for value, other in parts[1:]:
            totals += value
            gradient += other
        ctx.save_for_backward(similarity, masks, gradient)
        ctx.settings = (labels, t, weights)
        return totals

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        similarity, masks, gradient = ctx.saved_tensors
        if torch.is_grad_enabled():  # double backward
            totals = _cosines_written_out(similarity, masks, *ctx.settings)
            return (*torch.autograd.grad(totals, similarity, grad, create_graph=True), *[None] * 4)
        return gradient * grad[:, None], *[None] * 4


def _blocks(matrix: Tensor, size: int) -> Tensor:
    """A view of the blocks of a matrix along its diagonal, ``[B / M, M, M]``."""
    row, column = matrix.stride()
    return matrix.as_strided((len(matrix) // size, size, size), (size * (row + column), row, column))


def _sums_of_logarithms(sums: Tensor, divisors: Tensor, positives: Tensor, weight: float) -> tuple[Tensor, Tensor]:
    """Each row's sum over positive pairs of log(1 + sums / divisors), and its derivative by the sums, weighted."""
    if weight != 1:
        positives = positives * weight
    totals = sums + divisors
    value = (totals / divisors).log_().mul_(positives).sum(2).view(-1)  # log1p takes five times as long
    return value, positives / totals


def hinge(squared_ap: Tensor, squared_nc: Tensor, *, alpha: float) -> Tensor:
    """The hinge of Eq. (6), from broadcastable squared sides; alpha in degrees."""
    return torch.relu(squared_ap - 4 * squared_tangent(alpha) * squared_nc)


def angle_at_negative(squared_ap: Tensor, squared_nc: Tensor) -> Tensor:
    r"""Angle n' of Eq. (5), 0 to 90 degrees: :math:`\tan n' = \|x_a - x_p\| / (2 \|x_n - x_c\|)`."""
    opposite = squared_ap.clamp(min=0).sqrt()
    adjacent = 2 * squared_nc.clamp(min=0).sqrt()
    return torch.rad2deg(torch.atan2(opposite, adjacent))


def squared_sides(
    squared_a: Tensor, squared_p: Tensor, squared_n: Tensor, ap: Tensor, an: Tensor, pn: Tensor
) -> tuple[Tensor, Tensor]:
    r"""The squared sides of Eq. (6), from broadcastable squared lengths and dot products.

    .. math::
        \|x_a - x_p\|^2 = |x_a|^2 + |x_p|^2 - 2 x_a^T x_p, \qquad
        \|x_n - x_c\|^2 = |x_n|^2 - (x_a + x_p)^T x_n + \tfrac14 |x_a + x_p|^2
    """
    return squared_a + squared_p - 2 * ap, squared_n - an - pn + (squared_a + squared_p + 2 * ap) / 4


def pairs_at_once(matrix: Tensor) -> int:
    """How many rows of a matrix fit into :data:`MAX_ENTRIES` entries, at least 1."""
    return max(1, MAX_ENTRIES // max(1, matrix.shape[1]))


def hinge_sums(
    pairs: tuple[Tensor, Tensor],
    similarity: Tensor,
    between: Between,
    squared: tuple[Tensor, Tensor],
    negatives: Tensor,
    *,
    alpha: float,
) -> Tensor:
    """Eq. (6) summed over the negatives of every pair (a, p), ``[P]``."""

    def sums(anchors: Tensor, partners: Tensor) -> Tensor:
        sides = sides_of_pairs((anchors, partners), similarity, between, squared)
        return (hinge(*sides, alpha=alpha) * negatives[anchors].to(sides[1].dtype)).sum(1)

    return torch.cat(in_parts(sums, pairs_at_once(negatives), *pairs))


def sides_of_pairs(
    pairs: tuple[Tensor, Tensor], similarity: Tensor, between: Between, squared: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Squared sides of all triplets of some pairs, ``[P, 1]`` and ``[P, R]``."""
    anchors, partners = pairs
    squared_batch, squared_references = squared
    matrix, rows = between(partners)
    return squared_sides(
        squared_batch[anchors, None],
        squared_references[partners, None],
        squared_references,
        similarity[anchors, partners][:, None],
        similarity[anchors],
        matrix[rows],
    )
