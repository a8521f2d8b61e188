"""Huang et al. (2016): the metric of Eq. 2, quadruplets of Sec. 3.1, hinges of Eq. 3 and 4.

Functions expect normalized embeddings. A :class:`Head` contains its dropout masks.
"""

from collections.abc import Callable
from typing import NamedTuple, Self

import torch
from torch import Tensor
from torch.nn.functional import linear, softplus
from torch.utils.checkpoint import checkpoint

from pml_ext.plugin import normalize, transformed


class Head(NamedTuple):
    """The weights of Eq. 2."""

    w_u: Tensor  # of the difference, [H, D]
    b_u: Tensor  # [H]
    w_v: Tensor | None  # of the position, [H, D]; None if the score does not depend on it (LMDM)
    b_v: Tensor | None  # [H]
    w_c: Tensor  # [H, 2H], or [H, H] without the position
    b_c: Tensor  # [H]
    w_s: Tensor  # [1, H]
    b_s: Tensor  # [1]


class Side(NamedTuple):
    """Embeddings, with the part of Eq. 2 that depends on a single embedding."""

    points: Tensor  # normalized, [N, D]
    positions: Tensor | None  # W_v f(x) / 2, [N, H]; the sum of two rows is W_v v. None if w_v is None

    def at(self, index: Tensor) -> Self:
        """The rows at an index, with a backward pass that is deterministic on the CPU."""
        points = self.points.index_select(0, index)
        positions = None if self.positions is None else self.positions.index_select(0, index)
        return self._replace(points=points, positions=positions)


def side(head: Head, points: Tensor) -> Side:
    """Prepare normalized embeddings, ``[N, D]``, for :func:`scores`."""
    if head.w_v is None:
        return Side(points, None)
    return Side(points, linear(points / 2, head.w_v))


def scores(head: Head, x: Side, y: Side) -> Tensor:
    """Eq. 2 of N pairs, ``[N]``; pair i is row i of x and row i of y."""
    size = len(head.b_u)
    u = normalize(linear((x.points - y.points).abs(), head.w_u, head.b_u).relu())
    c = linear(u, head.w_c[:, :size], head.b_c)
    if x.positions is not None and y.positions is not None and head.b_v is not None:
        v = normalize((x.positions + y.positions + head.b_v).relu())
        c = c + linear(v, head.w_c[:, size:])
    return linear(c.relu(), head.w_s, head.b_s)[:, 0]


def logistic(s: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
    r"""Eq. (1) with logistic regression: scores ``[N]`` are logits; 0 without pairs.

    .. math::
        \frac{1}{|P \cup N|} \Big[ \sum_P \log(1 + e^{-S_{ij}}) + \sum_N \log(1 + e^{S_{ij}}) \Big]
    """
    count = (positives.sum() + negatives.sum()).clamp(min=1)
    return (softplus(-s)[positives].sum() + softplus(s)[negatives].sum()) / count


def fisher(s: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
    r"""Minus the Fisher criterion of Sec. 3.1, which is to be maximized.

    .. math::
        -\frac{(\mu_P - \mu_N)^2}{\operatorname{Var}_P + \operatorname{Var}_N}

    It is 0 without positives or negatives, or if all scores are equal.
    """
    means = []
    variances = []
    for mask in (positives, negatives):
        count = mask.sum().clamp(min=1)
        means.append(s[mask].sum() / count)
        variances.append((s[mask] - means[-1]).square().sum() / count)
    has_both = (positives.any() & negatives.any()).to(s.dtype)
    spread = (variances[0] + variances[1]).clamp(min=torch.finfo(s.dtype).eps)
    return -has_both * (means[0] - means[1]).square() / spread


POINTWISE = {"logistic": logistic, "fisher": fisher}


def score_pairs(head: Head, x: Tensor, y: Tensor, tile: int) -> Tensor:
    """The scores of rows i of x and y, normalized ``[N, D]``, ``tile`` pairs at a time; ``[N]``."""
    one = side(head, x)
    other = side(head, y)
    if _is_exporting():
        return scores(head, one, other)
    return _in_tiles(lambda n: scores(head, one.at(n), other.at(n)), len(x), tile, x)


def score_matrix(head: Head, x: Tensor, y: Tensor | None, tile: int) -> Tensor:
    """The scores of all pairs of two normalized sets, ``[B, R]``, or within one (y is None)."""
    one = side(head, x)
    other = one if y is None else side(head, y)
    if _is_exporting():
        return _scores_at_once(head, one, other)
    if y is not None:
        width = max(1, len(y))

        def of_matrix(numbers: Tensor) -> Tensor:
            return scores(head, one.at(numbers // width), other.at(numbers % width))

        flat = _in_tiles(of_matrix, len(x) * len(y), tile, x)
        return flat.view(len(x), len(y))

    # The pairs of the upper triangle are numbered in row-major order. Row and column follow from the number, since a
    # list of all of them would take more memory than the matrix.
    row_lengths = torch.arange(len(x), 0, -1, device=x.device)
    row_starts = row_lengths.cumsum(0) - row_lengths

    def upper(numbers: Tensor) -> Tensor:
        rows = torch.searchsorted(row_starts, numbers, right=True) - 1
        columns = rows + numbers - row_starts[rows]
        return scores(head, one.at(rows), one.at(columns))

    flat = _in_tiles(upper, len(x) * (len(x) + 1) // 2, tile, x)
    triangle = torch.ones(len(x), len(x), dtype=torch.bool, device=x.device).triu()
    matrix = torch.zeros_like(triangle, dtype=flat.dtype).masked_scatter(triangle, flat)
    return matrix + matrix.triu(1).T


def scores_of_pairs(
    head: Head, x: Tensor, positives: Tensor, negatives: Tensor, tile: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Scores of a set's unordered pairs, ``[B (B - 1) / 2]``, and masks of their kind.

    A pair is positive or negative if the mask, ``[B, B]``, has either order.
    """
    rows, columns = torch.triu_indices(len(x), len(x), 1, device=x.device)
    ends = side(head, x)

    def of_pairs(numbers: Tensor) -> Tensor:
        return scores(head, ends.at(rows[numbers]), ends.at(columns[numbers]))

    flat = _in_tiles(of_pairs, len(rows), tile, x)
    is_positive = (positives | positives.T)[rows, columns]
    is_negative = (negatives | negatives.T)[rows, columns]
    return flat, is_positive, is_negative


def _is_exporting() -> bool:
    exporting = getattr(torch.compiler, "is_exporting", None)
    return bool(torch.jit.is_tracing() or (exporting and exporting()))  # type: ignore[attr-defined,no-untyped-call]


def _scores_at_once(head: Head, x: Side, y: Side) -> Tensor:
    """Scores by broadcasting, so that exported models accept any batch."""
    rows = x.points.shape[0]
    columns = y.points.shape[0]

    def spread(z: Tensor, dim: int) -> Tensor:
        return z.unsqueeze(dim).expand(rows, columns, z.shape[1]).flatten(0, 1)

    def spread_side(z: Side, dim: int) -> Side:
        positions = None if z.positions is None else spread(z.positions, dim)
        return Side(spread(z.points, dim), positions)

    return scores(head, spread_side(x, 1), spread_side(y, 0)).view(rows, columns)


def _in_tiles(part: Callable[[Tensor], Tensor], count: int, tile: int, like: Tensor) -> Tensor:
    numbers = torch.arange(count, device=like.device)
    if count <= tile:
        return part(numbers)
    recomputes = torch.is_grad_enabled() and not transformed(like)  # torch.func cannot recompute tiles
    results = []
    for piece in torch.split(numbers, tile):
        if recomputes:
            results.append(checkpoint(part, piece, use_reentrant=False, preserve_rng_state=False))
        else:
            results.append(part(piece))
    return torch.cat(results)


def hard_quadruplets(
    scores: Tensor, positives: Tensor, negatives: Tensor, count: int = 1, classes: Tensor | None = None
) -> tuple[tuple[Tensor, Tensor, Tensor], int]:
    """Triplets (i, j, k), (j, i, l) of :class:`HardQuadrupletMiner`; number of quadruplets.

    A pair of two images without negatives is skipped. Scores, ``[B, B]``, are symmetric; larger means more similar. A
    pair is positive if the mask has either order. ``count`` is per batch, or per class if ``classes``, ``[B]``, are
    given.
    """
    has_negative = negatives.any(1)
    is_pair = (positives | positives.T).triu(1) & (has_negative[:, None] | has_negative)
    i, j = torch.where(is_pair)
    # The pairs of the least scores come first, and those of NaN before them, which sorts as the greatest value.
    order = (-scores[i, j]).argsort(stable=True, descending=True)
    if classes is None:
        order = order[:count]
    else:
        by_class = classes[i[order]].sort(stable=True)
        order = order[by_class.indices]
        class_starts = torch.searchsorted(by_class.values, by_class.values)
        rank_in_class = torch.arange(len(order), device=order.device) - class_starts
        order = order[rank_in_class < count]
    i = i[order]
    j = j[order]
    # argmax refuses a matrix without columns
    hardest = scores.masked_fill(~negatives, -torch.inf).argmax(1) if len(scores) else i
    anchors = torch.stack((i, j), 1).flatten()
    others = torch.stack((j, i), 1).flatten()
    is_kept = has_negative[anchors]
    anchors = anchors[is_kept]
    others = others[is_kept]
    return (anchors, others, hardest[anchors]), len(order)


def min_max_pairs(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and columns, ``[2]`` each, of the least and the greatest off-diagonal score."""
    diagonal = torch.eye(len(scores), dtype=torch.bool, device=scores.device)
    least = scores.masked_fill(diagonal, torch.inf).argmin()
    greatest = scores.masked_fill(diagonal, -torch.inf).argmax()
    places = torch.stack([least, greatest])  # in the flattened matrix
    return places // len(scores), places % len(scores)


def min_max_scale(values: Tensor, least: Tensor, greatest: Tensor) -> Tensor:
    """``(values - least) / (greatest - least)``, 0 with gradient 0 if both are equal."""
    span = greatest - least
    equal = span <= 0
    return torch.where(equal, 0, (values - least) / torch.where(equal, 1, span))


def embedding_hinge(a: Tensor, p: Tensor, n: Tensor, margin: float, squared: bool) -> Tensor:
    r"""One side of Eq. 4, :math:`\max(0, \beta + D_{ap} - D_{an})`, of normalized rows."""
    d_ap = torch.linalg.vector_norm(a - p, dim=1)
    d_an = torch.linalg.vector_norm(a - n, dim=1)
    if squared:
        d_ap = d_ap.square()
        d_an = d_an.square()
    return (margin + d_ap - d_an).clamp(min=0)  # type: ignore[no-any-return]
