r"""The equations of Wang et al. (2017), Sec. 3.2 and 3.3, on matrices of dot products and lists of pairs.

:math:`t = \tan^2 \alpha` throughout. A dot product with :math:`x_a + x_p` is a sum of two entries of the similarity
matrix, so no triplet is ever formed from coordinates. A pair whose anchor has no negative gives 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pml_ext.plugin import ClassMembers, apply_or_plain, in_parts, log_sum_exp

# Largest slope 4 t at which products of exponentials of cosines stay finite: they lie between exp(-2 * slope) and
# exp(2 * slope), and float32 reaches from exp(-87) to exp(88).
PRODUCT_SLOPE = 16.0
Between = Callable[[Tensor], tuple[Tensor, Tensor]]
MAX_ENTRIES = 1 << 23  # matrix entries of gathered rows in memory at a time


def squared_tangent(alpha: float) -> float:
    r"""Return :math:`\tan^2 \alpha` of an angle in degrees."""
    return math.tan(math.radians(alpha)) ** 2


def log_sums_of_rows(
    similarity: Tensor, between: Between, negatives: Tensor, anchors: Tensor, partners: Tensor, slope: float
) -> Tensor:
    r"""Return :math:`\log \sum_{n \in N_a} \exp k (x_a + x_p)^T x_n` of every pair (a, p), ``[P]``, k the slope.

    Anchors and partners, ``[P]``, are rows and columns of ``similarity``, ``[B, R]``. ``between(partners)`` returns the
    products :math:`x_p^T x_n` of the U distinct partners, ``[U, R]``, and each partner's row in them, ``[P]``.
    """

    def log_sums(anchors: Tensor, partners: Tensor) -> Tensor:
        matrix, rows = between(partners)
        return log_sum_exp(slope * (similarity[anchors] + matrix[rows]), negatives[anchors])

    return torch.cat(in_parts(log_sums, pairs_at_once(similarity), anchors, partners))


def log_sums_of_products(
    similarity: Tensor, mask: Tensor, classes: ClassMembers, anchors: Tensor, partners: Tensor, slope: float
) -> Tensor:
    r"""Return :math:`\log (E E^T)_{ap}`, ``[P]``, :math:`E = \exp k s` inside a mask and 0 outside.

    The result equals :func:`log_sums_of_rows` if the negatives follow from the labels. The cost is one batched product
    of ``[C, M, B]`` with its transpose, over C classes of M members. Requirements: cosines, a slope of at most
    :data:`PRODUCT_SLOPE`, pairs within a class, and rows that are the whole batch or all members of some classes. Where
    a sum is 0, the result is a very low number with gradient zero. The backward pass takes one product and is
    differentiable. Under torch.func and forward-mode differentiation, plain operators are used instead.
    """
    members: Tensor | None = None
    rows_of: tuple[Tensor, Tensor] | None = None
    places: tuple[Tensor, ...] = (anchors, partners)
    if len(classes.members) > 1:  # in one group, rows keep their order
        members = classes.members
        rows_of = (classes.class_of, classes.place)
        places = (classes.class_of[anchors], classes.place[anchors], classes.place[partners])
    logarithms: Tensor = apply_or_plain(
        _LogSumsOfProducts, _products_written_out, similarity, mask, slope, members, rows_of, *places
    )
    return logarithms


def _products_written_out(
    similarity: Tensor,
    mask: Tensor,
    slope: float,
    members: Tensor | None,
    rows_of: tuple[Tensor, Tensor] | None,
    *places: Tensor,
) -> Tensor:
    """Return :func:`log_sums_of_products` by plain operations; arguments as of :class:`_LogSumsOfProducts`."""
    rows = _by_class((slope * similarity).exp() * mask, members)
    sums = (rows @ rows.mT)[places]
    empty = sums == 0
    return torch.where(empty, 1, sums).log().masked_fill(empty, torch.finfo(sums.dtype).min / 4)


def _by_class(rows: Tensor, members: Tensor | None) -> Tensor:
    """Return rows ``[B, R]`` grouped by class, ``[C, M, R]``; unchanged in one group, without ``members``."""
    if members is None:
        return rows
    return rows[members]


class _LogSumsOfProducts(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        similarity: Tensor,
        mask: Tensor,
        slope: float,
        members: Tensor | None,
        rows_of: tuple[Tensor, Tensor] | None,
        *places: Tensor,
    ) -> Tensor:
        exponentials = torch.where(mask, similarity, -torch.inf).mul_(slope).exp_()
        rows = _by_class(exponentials, members)
        sums = (rows @ rows.mT)[places]
        ctx.save_for_backward(similarity, mask, members, rows, sums, *places)
        ctx.slope = slope
        ctx.rows_of = rows_of
        # not in place: torch 2.11, compiling, would give the result no gradient
        return sums.log().clamp(min=torch.finfo(sums.dtype).min / 4)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        similarity, mask, members, rows, sums, *places = ctx.saved_tensors
        if torch.is_grad_enabled():  # double backward: recompute from the input by differentiable operators
            rows = _by_class((ctx.slope * similarity).exp() * mask, members)
            sums = (rows @ rows.mT)[tuple(places)]
        shares = ctx.slope * grad / sums.clamp(min=torch.finfo(sums.dtype).tiny)
        shares = torch.where(sums == 0, 0, shares)  # the quotient may have overflowed there
        weights = grad.new_zeros(*rows.shape[:-1], rows.shape[-2]).index_put(places, shares)
        gradient = (weights + weights.mT) @ rows * rows
        if members is not None:
            gradient = gradient[ctx.rows_of]
        num_others = 4 + len(places)  # arguments without a gradient
        return gradient, *[None] * num_others


def hinge(squared_ap: Tensor, squared_nc: Tensor, *, alpha: float) -> Tensor:
    """Return the hinge of Eq. (6), :class:`AngularTripletLoss`, from broadcastable squared sides; alpha in degrees."""
    return torch.relu(squared_ap - 4 * squared_tangent(alpha) * squared_nc)


def angle_at_negative(squared_ap: Tensor, squared_nc: Tensor) -> Tensor:
    r"""Return n' of Eq. (5), in degrees from 0 to 90: :math:`\tan n' = \|x_a - x_p\| / (2 \|x_n - x_c\|)`."""
    opposite = squared_ap.clamp(min=0).sqrt()
    adjacent = 2 * squared_nc.clamp(min=0).sqrt()
    return torch.rad2deg(torch.atan2(opposite, adjacent))


def squared_sides(
    squared_a: Tensor, squared_p: Tensor, squared_n: Tensor, ap: Tensor, an: Tensor, pn: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Return the squared sides of Eq. (6) from broadcastable squared lengths and dot products.

    .. math::
        \|x_a - x_p\|^2 = |x_a|^2 + |x_p|^2 - 2 x_a^T x_p, \qquad
        \|x_n - x_c\|^2 = |x_n|^2 - (x_a + x_p)^T x_n + \tfrac14 |x_a + x_p|^2
    """
    return squared_a + squared_p - 2 * ap, squared_n - an - pn + (squared_a + squared_p + 2 * ap) / 4


def pairs_at_once(matrix: Tensor) -> int:
    """Return how many rows of a matrix fit into :data:`MAX_ENTRIES` entries, at least 1: the pairs per chunk."""
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
    r"""Return Eq. (6) summed over the negatives of every pair (a, p), ``[P]``; see :func:`log_sums_of_rows`."""

    def sums(anchors: Tensor, partners: Tensor) -> Tensor:
        sides = sides_of_pairs((anchors, partners), similarity, between, squared)
        return (hinge(*sides, alpha=alpha) * negatives[anchors].to(sides[1].dtype)).sum(1)

    return torch.cat(in_parts(sums, pairs_at_once(negatives), *pairs))


def sides_of_pairs(
    pairs: tuple[Tensor, Tensor], similarity: Tensor, between: Between, squared: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the squared sides of all triplets of some pairs, ``[P, 1]`` and ``[P, R]``; see :func:`squared_sides`."""
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
