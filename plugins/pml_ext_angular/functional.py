r"""The equations of Wang et al. (2017), Sec. 3.2 and 3.3, on similarity matrices and pairs.

:math:`t = \tan^2 \alpha` throughout. A dot product with :math:`x_a + x_p` is a sum of two entries of the similarity
matrix, so no triplet is ever formed from coordinates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

# Slopes 4 t up to which the product of two exponentials of normalised similarities, at least exp(-4 * slope), is a
# normal float32 with room for its gradient: 4 * 16 = 64 of 87.
PRODUCT_SLOPE = 16.0


def squared_tangent(alpha: float) -> float:
    r""":math:`\tan^2 \alpha` of an angle in degrees."""
    return math.tan(math.radians(alpha)) ** 2


def log_one_plus(log_sum: Tensor) -> Tensor:
    r""":math:`\log(1 + e^{x})`, stable, 0 with gradient 0 at minus infinity's stand-in."""
    return torch.logaddexp(log_sum, torch.zeros_like(log_sum))


def n_pair_terms(similarity: Tensor, negatives: Tensor, anchors: Tensor, positive_similarity: Tensor) -> Tensor:
    r"""The N-pair loss of every pair (a, p), Eq. (10).

    .. math:: \log\Big[1 + \sum_{n \in N_a} \exp(x_a^T x_n - x_a^T x_p)\Big]

    Args:
        similarity: dot products, ``[B, R]``.
        negatives: mask of :math:`N_a`, ``[B, R]``.
        anchors: index a of each pair, ``[P]``.
        positive_similarity: :math:`x_a^T x_p`, ``[P]``.

    Returns:
        ``[P]``; 0 where an anchor has no negative.
    """
    lowest = torch.finfo(similarity.dtype).min
    total = torch.where(negatives, similarity, lowest).logsumexp(1)
    return log_one_plus((total[anchors] - positive_similarity).where(negatives.any(1)[anchors], lowest))


def angular_terms(
    similarity: Tensor,
    partner_similarity: Tensor,
    negatives: Tensor,
    anchors: Tensor,
    partners: Tensor,
    positive_similarity: Tensor,
    *,
    alpha: float,
    max_entries: int = 1 << 24,
) -> Tensor:
    r"""The angular loss of every pair (a, p), Eq. (8).

    .. math::
        \log\Big[1 + \sum_{n \in N_a} \exp f_{a,p,n}\Big], \qquad
        f_{a,p,n} = 4 t (x_a + x_p)^T x_n - 2 (1 + t) x_a^T x_p

    Gathers two rows of the matrices a pair; pairs beyond ``max_entries / R`` go in tiles that the backward pass
    computes again, so memory stays bounded.

    Args:
        similarity: :math:`x_a^T x_n`, ``[B, R]``.
        partner_similarity: :math:`x_p^T x_n`, ``[Q, R]``; the same matrix where positives come from the batch.
        negatives: mask of :math:`N_a`, ``[B, R]``.
        anchors: a, row of ``similarity``, ``[P]``.
        partners: p, row of ``partner_similarity``, ``[P]``.
        positive_similarity: :math:`x_a^T x_p`, ``[P]``.
        alpha: the upper bound of the angle at the negative, in degrees, above 0 and below 90.
        max_entries: how many entries of gathered rows are held at a time.

    Returns:
        ``[P]``; 0 where an anchor has no negative.
    """
    t = squared_tangent(alpha)
    lowest = torch.finfo(similarity.dtype).min

    def log_sums(anchors: Tensor, partners: Tensor) -> Tensor:
        sums = similarity[anchors] + partner_similarity[partners]
        return (4 * t * sums).masked_fill(~negatives[anchors], lowest).logsumexp(1)

    tiles = list(_tiles(len(anchors), max_entries // max(1, similarity.shape[1])))
    if len(tiles) == 1:
        totals = log_sums(anchors, partners)
    else:
        totals = torch.cat([checkpoint(log_sums, anchors[tile], partners[tile], use_reentrant=False) for tile in tiles])
    exponents = totals - 2 * (1 + t) * positive_similarity
    return log_one_plus(exponents.where(negatives.any(1)[anchors], lowest))


def angular_terms_by_class(
    similarity: Tensor,
    negatives: Tensor,
    members: Tensor,
    present: Tensor,
    *,
    alpha: float,
) -> Tensor:
    r"""Eq. (8) for all pairs of a batch whose negatives follow from its labels, from one product a class.

    With :math:`E_{an} = \exp(4 t x_a^T x_n)` on negatives and 0 elsewhere, the sum over n of Eq. (8) is
    :math:`(E E^T)_{ap} e^{-2 (1 + t) x_a^T x_p}`, and only pairs inside a class are wanted: a batched product of
    ``[C, M, B]`` with its transpose. For normalised embeddings and :math:`4 t` up to :data:`PRODUCT_SLOPE`.

    Args:
        similarity: cosines, ``[B, B]``.
        negatives: mask of other classes, ``[B, B]``.
        members: the rows of each class, ``[C, M]``, filled up with any index.
        present: which entries of ``members`` count, ``[C, M]``.
        alpha: the upper bound of the angle at the negative, in degrees.

    Returns:
        ``[C, M, M]``, of which entries of a member with itself or with a filled-up one mean nothing.
    """
    t = squared_tangent(alpha)
    exponentials = torch.where(negatives, (4 * t * (similarity - 1)).exp(), 0)[members.flatten()]
    exponentials = exponentials.view(*members.shape, -1)
    sums = torch.bmm(exponentials, exponentials.mT)
    tiny = torch.finfo(sums.dtype).tiny
    within = similarity[members[:, :, None], members[:, None, :]]
    exponents = sums.clamp(min=tiny).log() + 8 * t - 2 * (1 + t) * within
    paired = present[:, :, None] & present[:, None, :] & (sums > 0)
    return log_one_plus(exponents.where(paired, torch.finfo(sums.dtype).min))


def angular_hinge(squared_ap: Tensor, squared_nc: Tensor, *, alpha: float) -> Tensor:
    r"""The angular hinge of triplets, Eq. (6).

    .. math:: \big[\,\|x_a - x_p\|^2 - 4 t \|x_n - x_c\|^2\,\big]_+, \qquad x_c = (x_a + x_p) / 2

    Args:
        squared_ap: :math:`\|x_a - x_p\|^2`, any shape.
        squared_nc: :math:`\|x_n - x_c\|^2`, a shape that broadcasts with it.
        alpha: the upper bound of the angle, in degrees.

    Returns:
        The hinge of every entry.
    """
    return (squared_ap - 4 * squared_tangent(alpha) * squared_nc).clamp(min=0)


def angle_at_negative(squared_ap: Tensor, squared_nc: Tensor) -> Tensor:
    r"""The angle n' of Eq. (5), in degrees: :math:`\tan n' = \|x_a - x_p\| / (2 \|x_n - x_c\|)`.

    Args:
        squared_ap: :math:`\|x_a - x_p\|^2`.
        squared_nc: :math:`\|x_n - x_c\|^2`, a shape that broadcasts with it.

    Returns:
        Angles from 0 to 90.
    """
    opposite, adjacent = squared_ap.clamp(min=0).sqrt(), 2 * squared_nc.clamp(min=0).sqrt()
    return torch.rad2deg(torch.atan2(*torch.broadcast_tensors(opposite, adjacent)))


def _tiles(length: int, size: int) -> Iterator[slice]:
    size = max(1, size)
    for start in range(0, max(1, length), size):
        yield slice(start, start + size)
