"""Normalization, similarity matrices, and accurate Euclidean distances."""

from typing import Any

import torch
from torch import Tensor

from .batch import apply_or_plain, to_full_precision
from .masks import places_in, prefers_floats, zero_at_most

_EPS = 1e-12  # the least length divided by, as in torch.nn.functional.normalize
_LEAST = 1e-6  # a shorter row has the gradient of a row of this length
_NEAR = 0.2  # nearer pairs use differences: in float32, d^2 by a matrix product has an error of 1e-7
_LONG = 128  # entries of a row that a CPU reads faster than as many of a column
_CHUNK = 1 << 22  # entries of differences held at a time


def normalize(x: Tensor) -> Tensor:
    r"""L2-normalized rows; the gradient is bounded, however short a row is.

    .. math:: y = x / \max(|x|, 10^{-12}), \qquad g \mapsto (g - y \, y^T g) / \max(|x|, 10^{-6})

    Values are as in ``torch.nn.functional.normalize``. A row of zeros stays zero and gets gradient zero. The gradient
    can be differentiated again. Rows of float16 are normalized in float32.
    """
    if x.dtype == torch.float16:
        return normalize(to_full_precision(x, normalized=True)).to(x.dtype)
    if torch.compiler.is_compiling():
        return _written_out(x)
    rows: Tensor = apply_or_plain(_Normalize, _written_out, x)
    return rows


def _written_out(x: Tensor) -> Tensor:
    norm = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    rows = x / norm.clamp(min=_EPS)
    short = rows.detach() + (x - x.detach()) / _LEAST  # the same row, with a bounded gradient
    projected = short / torch.linalg.vector_norm(short, dim=1, keepdim=True).clamp(min=_EPS)
    short = torch.where(norm < _EPS, short, projected)
    return torch.where(norm == 0, 0, torch.where(norm < _LEAST, short, rows))


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        norm = torch.linalg.vector_norm(x, dim=1, keepdim=True)
        rows = x / norm.clamp(min=_EPS)
        ctx.save_for_backward(x, rows, norm)
        return rows  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        x, rows, norm = ctx.saved_tensors
        if torch.is_grad_enabled():  # double backward: recompute from the input
            norm = torch.linalg.vector_norm(x, dim=1, keepdim=True)
            rows = x / norm.clamp(min=_EPS)
        return _before_normalizing(grad, rows, norm)


def _before_normalizing(grad: Tensor, rows: Tensor, norm: Tensor) -> Tensor:
    """Convert the gradient of normalized rows into the gradient of the rows."""
    along = (grad * rows).sum(1, keepdim=True)
    along = zero_at_most(along, norm, _EPS)  # shorter rows are divided by a constant
    length = torch.threshold(norm, 0, torch.inf)  # a row of zeros gets gradient zero
    return torch.addcmul(grad, rows, along, value=-1) / length.clamp(min=_LEAST)


def gram(x: Tensor) -> Tensor:
    """``x @ x.T``, ``[B, B]``, with one matrix product in the backward pass instead of two."""
    product: Tensor = apply_or_plain(_Gram, _plain_gram, x)
    return product


def _plain_gram(x: Tensor) -> Tensor:
    return x @ x.T


class _Gram(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x)
        return x @ x.T

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        product: Tensor = _plus_transposed(grad) @ x
        return product


def _plus_transposed(matrix: Tensor) -> Tensor:
    """A square matrix plus its transpose."""
    if prefers_floats(matrix) and len(matrix) > _LONG:
        return matrix.T.clone(memory_format=torch.contiguous_format).add_(matrix)
    return matrix + matrix.T


def cosine_similarity(x: Tensor, references: Tensor | None = None) -> Tensor:
    """Cosines between rows ``[B, D]`` and references ``[R, D]``, by default the rows."""
    x = normalize(x)
    if references is None:
        return gram(x)
    return x @ normalize(references).T


def euclidean_distances(x: Tensor, references: Tensor | None = None, normalized: bool = True) -> Tensor:
    """Distances between rows from one matrix product; near pairs are computed from differences.

    Equal rows have distance 0 with gradient 0. Higher derivatives and forward mode work; ``vmap`` does not, because the
    values decide which pairs are near. *Cost:* one product of ``B x D x R`` forward and one backward (two with
    references), and ``O(D)`` for each pair nearer than 0.2 of the rows' length.

    Args:
        x: ``[B, D]``.
        references: ``[R, D]``, or None for ``x`` itself.
        normalized: whether :func:`normalize` returned the rows. The gradient is then complete only together with that
            of ``normalize``. Otherwise, rows nearer than the product's rounding error count as equal.
    """
    distances: Tensor = apply_or_plain(_EuclideanDistances, _distances_written_out, x, references, normalized)
    return distances


def _squared_distances(x: Tensor, y: Tensor, normalized: bool) -> Tensor:
    squares = x.square().sum(1, keepdim=True)
    others = squares[:, 0]
    if y is not x:
        others = y.square().sum(1)
    rounding: Tensor | int
    if normalized:
        rounding = 0
    else:
        rounding = torch.finfo(x.dtype).eps ** 2 * x.shape[1] * (squares + others)
    if torch.compiler.is_compiling() and x.device.type != "mps":  # no shape may depend on which pairs are near
        squared = _squared_in_float64(x, y)
        if normalized:
            return squared
        return torch.where(squared <= rounding, 0, squared)
    if 4 * x.shape[1] <= min(len(x), len(y)):  # two columns more save a pass over the matrix
        one = torch.cat([x, squares, torch.ones_like(squares)], 1)
        squared = one @ torch.cat([-2 * y, y.new_ones(len(y), 1), others[:, None]], 1).T
    else:
        squared = torch.addmm(others, x, y.T, alpha=-2).add_(squares)
    near_length: Tensor | float
    if normalized:
        near_length = _NEAR**2
    else:
        near_length = _NEAR**2 / 2 * (squares + others)
    if y is x:
        squared.fill_diagonal_(torch.inf)  # a row is not near itself
    # On a CPU the least entry is read sooner than near pairs are listed; another device would have to be waited for.
    reads_least = normalized and squared.device.type == "cpu" and squared.numel() > 0
    if not (reads_least and squared.amin().item() > near_length):
        rows, columns = places_in(squared <= near_length)  # also negative rounding errors
        step = max(1, _CHUNK // x.shape[1])
        for some_rows, some_columns in zip(torch.split(rows, step), torch.split(columns, step), strict=True):
            differences = x[some_rows] - y[some_columns]
            squared.index_put_((some_rows, some_columns), differences.square().sum(1))
    if y is x:
        squared.fill_diagonal_(0)
    if normalized:
        return squared
    return torch.where(squared <= rounding, 0, squared)


def _squared_in_float64(x: Tensor, y: Tensor) -> Tensor:
    """Squared distances with an error of 1e-15; rows nearer than 1e-7 count as equal."""
    one = x.double()
    other = y.double()
    squared = one.square().sum(1)[:, None] + other.square().sum(1) - 2 * one @ other.T
    return torch.where(squared < 1e-14, 0, squared).to(x.dtype)


def _distances_written_out(x: Tensor, references: Tensor | None, normalized: bool) -> Tensor:
    """The distances by plain operations; ``normalized`` as above."""
    y = x if references is None else references
    fixed = x.detach()
    moving = -2 * x @ y.T
    if not normalized:
        moving = moving + x.square().sum(1, keepdim=True) + y.square().sum(1)
    squared = _squared_distances(fixed, fixed if y is x else y.detach(), normalized) + (moving - moving.detach())
    zero = squared == 0
    return torch.where(zero, 0, torch.where(zero, 1, squared).sqrt())


class _EuclideanDistances(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, references: Tensor | None, normalized: bool) -> Tensor:
        squared = _squared_distances(x, x if references is None else references, normalized)
        if torch.compiler.is_compiling():  # torch 2.11 gives no gradient to a result that is computed in place
            distances = squared.sqrt()
        else:
            distances = squared.sqrt_()
        ctx.save_for_backward(x, references, distances)
        ctx.normalized = normalized
        return distances

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:  # type: ignore[override]
        x, references, distances = ctx.saved_tensors
        if torch.is_grad_enabled():  # double backward: distances that are differentiable themselves
            distances = euclidean_distances(x, references, ctx.normalized)
            zero = distances == 0
            weights = torch.where(zero, 0, grad / torch.where(zero, 1, distances))
        else:
            weights = zero_at_most(grad / distances, distances, 0)

        def gradient(rows: Tensor, weights: Tensor, others: Tensor) -> Tensor:
            if ctx.normalized:  # only the product; with beta=0, rows are not read
                return torch.addmm(rows, weights, others, beta=0, alpha=-1)
            return torch.addmm(weights.sum(1, keepdim=True) * rows, weights, others, alpha=-1)

        if references is None:
            return gradient(x, _plus_transposed(weights), x), None, None
        wanted_x, wanted_references = ctx.needs_input_grad[:2]
        return (
            gradient(x, weights, references) if wanted_x else None,
            gradient(references, weights.T, x) if wanted_references else None,
            None,
        )


def normalized_matrix(x: Tensor, euclidean: bool) -> tuple[Tensor, Tensor]:
    """Normalized rows, ``[B, D]``, and their cosines or Euclidean distances, ``[B, B]``.

    Equals :func:`normalize`, then :func:`gram` or :func:`euclidean_distances`, with one backward pass for both.
    """
    results: tuple[Tensor, Tensor] = apply_or_plain(_NormalizedMatrix, _matrix_written_out, x, euclidean)
    return results


def _matrix_written_out(x: Tensor, euclidean: bool) -> tuple[Tensor, Tensor]:
    rows = normalize(x)
    if euclidean:
        return rows, euclidean_distances(rows)
    return rows, gram(rows)


class _NormalizedMatrix(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, euclidean: bool) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        norm = torch.linalg.vector_norm(x, dim=1, keepdim=True)
        rows = x / norm.clamp(min=_EPS)
        if euclidean:
            matrix = _squared_distances(rows, rows, normalized=True).sqrt_()
        else:
            matrix = rows @ rows.T
        ctx.save_for_backward(x, norm, rows, matrix)
        ctx.euclidean = euclidean
        ctx.set_materialize_grads(False)
        return rows, matrix

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any, by_rows: Tensor | None, by_matrix: Tensor | None
    ) -> tuple[Tensor | None, None]:
        if by_matrix is None and by_rows is None:
            return None, None
        x, norm, rows, matrix = ctx.saved_tensors
        if torch.is_grad_enabled():  # double backward
            weighted = zip(_matrix_written_out(x, ctx.euclidean), (by_rows, by_matrix), strict=True)
            results, grads = zip(*[pair for pair in weighted if pair[1] is not None], strict=True)
            return (*torch.autograd.grad(results, x, grads, create_graph=True), None)
        if by_matrix is not None:
            sign = 1
            if ctx.euclidean:
                by_matrix = zero_at_most(by_matrix / matrix, matrix, 0)
                sign = -1
            product = torch.addmm(rows, _plus_transposed(by_matrix), rows, beta=0, alpha=sign)  # rows are not added
            by_rows = product if by_rows is None else by_rows + product
        return _before_normalizing(by_rows, rows, norm), None  # type: ignore[arg-type]
