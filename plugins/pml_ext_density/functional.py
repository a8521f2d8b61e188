r"""The equations of Li et al. (2019), Sec. III-B. Distances are squared, classes are those present in the batch.

Classes are slots here: slot c holds the c-th class of the batch in increasing order; slots beyond the last are empty.
Where no shape may depend on the labels, so that nothing waits for a device, there are as many slots as embeddings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pml_ext.plugin import in_tiles, normalize, rows_per_tile, tiles_of_rows, transformed


class Slots(NamedTuple):
    """The class of the batch that every embedding belongs to."""

    of: Tensor  # the slot of every embedding, [B]
    counts: Tensor  # how many embeddings a slot has, [S], floating point
    classes: Tensor  # the class of every slot, [S]; 0 of an empty one


def slots(classes: Tensor, dtype: torch.dtype) -> Slots:
    """Sort a batch into slots: as many as it has classes on a CPU, as many as it has embeddings elsewhere."""
    if classes.device.type == "cpu" and not torch.compiler.is_compiling():
        present, of, counts = torch.unique(classes, return_inverse=True, return_counts=True)
        return Slots(of, counts.to(dtype), present)
    values, order = classes.sort()
    new = torch.zeros_like(values)
    new[1:] = values[1:] != values[:-1]
    of = torch.empty_like(order).scatter_(0, order, new.cumsum(0))
    counts = torch.zeros(len(classes), dtype=dtype, device=classes.device)
    counts.scatter_add_(0, of, torch.ones_like(counts))
    return Slots(of, counts, torch.zeros_like(classes).scatter_(0, of, classes))


def slot_densities(embeddings: Tensor, batch: Slots) -> Tensor:
    """Return :func:`class_densities` of a batch's slots, ``[S]``; 0 for a single embedding and for an empty slot."""
    return _variances(normalize(embeddings), batch.of, batch.counts.clamp(min=1))


def _variances(x: Tensor, of: Tensor, sizes: Tensor) -> Tensor:
    """Return the mean squared distance to the mean of every group of rows."""
    centroids = x.new_zeros(len(sizes), x.shape[1]).index_add(0, of, x) / sizes[:, None]
    return torch.zeros_like(sizes).index_add(0, of, (x - centroids[of]).square().sum(1)) / sizes


def density_terms(
    densities: Tensor, targets: Tensor, base: Tensor, present: Tensor, eta: float = 0.5
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Return the three terms of Eq. (8), without their signs and weights.

    .. math::
        \frac{1}{C} \sum_c (D_c - \alpha_c)^2, \qquad \frac{1}{C} \sum_c \alpha_c, \qquad
        \frac{1}{C^2} \sum_{i, j} (b_j \alpha_i - b_i \alpha_j)^2
        = \frac{2}{C^2} \Big[ \sum_i \alpha_i^2 \sum_j b_j^2 - \Big(\sum_i \alpha_i b_i\Big)^2 \Big]

    with :math:`b_c = (D^{(0)}_c)^\eta`; by Lagrange's identity no pair of classes is formed.

    Args:
        densities: :math:`D_c`, ``[K]``.
        targets: :math:`\alpha_c`, ``[K]``.
        base: :math:`D^{(0)}_c`, 0 or more, ``[K]``; a class where it is 0 takes no part in the third term.
        present: 1 for a class that is there, else 0, ``[K]``, floating point.
        eta: :math:`\eta`.
    """
    count = present.sum().clamp(min=1)
    fit, spread = (densities - targets).square() @ present / count, targets @ present / count
    counted = present * (base > 0)
    a, b = targets * counted, base**eta * counted
    return fit, spread, 2 * ((a @ a) * (b @ b) - (a @ b).square()) / count.square()


class Adaptivity(NamedTuple):
    """Eq. (8), its three terms without signs and weights, and the densities; only the value has a gradient."""

    value: Tensor
    fit: Tensor
    spread: Tensor
    correlation: Tensor
    densities: Tensor  # of every slot, [S]


def density_adaptivity(
    embeddings: Tensor, targets: Tensor, base: Tensor, batch: Slots, eta: float = 0.5, correlation_weight: float = 1.0
) -> Adaptivity:
    """Return Eq. (8) of a batch: :func:`density_terms` of :func:`slot_densities`, with the gradient in the same pass.

    Batches are small, so that the number of operations is the cost; the value can be differentiated again. Under
    torch.func and in forward mode it is written out.
    """
    if transformed(embeddings, targets, base):
        densities = slot_densities(embeddings, batch)
        fit, spread, correlation = density_terms(densities, targets, base, (batch.counts > 0).to(densities.dtype), eta)
        value = fit - spread + correlation_weight * correlation
        return Adaptivity(value, fit.detach(), spread.detach(), correlation.detach(), densities.detach())
    result = _DensityAdaptivity.apply(embeddings, targets, base, batch.of, batch.counts, eta, correlation_weight)  # type: ignore[no-untyped-call]
    return Adaptivity(*result)


class _DensityAdaptivity(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        embeddings: Tensor,
        targets: Tensor,
        base: Tensor,
        of: Tensor,
        counts: Tensor,
        eta: float,
        weight: float,
    ) -> tuple[Tensor, ...]:
        norm = torch.linalg.vector_norm(embeddings, dim=1, keepdim=True)
        inverse = torch.where(norm == 0, 0, norm.clamp(min=1e-12).reciprocal())
        sizes = counts.clamp(min=1)
        x = embeddings * inverse
        centroids = x.new_zeros(len(sizes), x.shape[1]).index_add_(0, of, x).div_(sizes[:, None])
        centered = x - centroids[of]
        distances = torch.linalg.vector_norm(centered, dim=1).square()
        densities = torch.zeros_like(sizes).index_add_(0, of, distances).div_(sizes)
        terms = density_terms(densities, targets, base, (counts > 0).to(x.dtype), eta)
        ctx.save_for_backward(embeddings, targets, base, of, counts, x, centered, inverse, distances, densities)
        ctx.settings = eta, weight
        ctx.mark_non_differentiable(*terms, densities)
        return terms[0] - terms[1] + weight * terms[2], *terms, densities

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        embeddings, targets, base, of, counts, x, centered, inverse, distances, densities = ctx.saved_tensors
        eta, weight = ctx.settings
        present, sizes = (counts > 0).to(x.dtype), counts.clamp(min=1)
        if torch.is_grad_enabled():  # the gradient is to be differentiated: from the inputs again
            terms = density_terms(slot_densities(embeddings, Slots(of, counts, of)), targets, base, present, eta)
            value = terms[0] - terms[1] + weight * terms[2]
            wanted = torch.autograd.grad(value, (embeddings, targets), grad, create_graph=True)
            return (*wanted, None, None, None, None, None)
        count = present.sum().clamp(min=1)
        share = present * (grad / count)
        to_densities = 2 * share * (densities - targets)
        to_targets = -to_densities - share
        if weight:
            counted = present * (base > 0)
            a, b = targets * counted, base**eta * counted
            to_targets += (a * (b @ b) - b * (a @ b)) * (4 * weight * grad / count.square())
        squares = (inverse[:, 0] > 0).to(x.dtype)  # |x|^2
        centroids = torch.zeros_like(sizes).index_add_(0, of, squares).div_(sizes).sub_(densities)  # |mu|^2
        along = (squares + distances - centroids[of]) / 2  # x (x - mu)
        scale = (2 * to_densities / sizes)[of][:, None] * inverse
        to_embeddings = torch.addcmul(centered * scale, x, along[:, None] * scale, value=-1)
        return to_embeddings, to_targets, None, None, None, None, None


def class_densities(features: Tensor, labels: Tensor) -> Tensor:
    r"""Return the mean squared distance of every class's embeddings to their mean, Eq. (5); the smaller, the denser.

    .. math::
        D_{avg}(S_c) = \frac{1}{|S_c|} \sum_{i \in S_c} \|x_i - \mu_c\|^2, \qquad
        \mu_c = \frac{1}{|S_c|} \sum_{i \in S_c} x_i

    with L2-normalized :math:`x_i`; :math:`\mu_c` is not normalized again.

    Args:
        features: ``[N, D]``, normalized here.
        labels: ``[N]``, integers.

    Returns:
        ``[C]``, in increasing order of the labels; between 0 and 1, and 0 for a class of one image.
    """
    x = normalize(features)
    _, of, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    return _variances(x, of, counts.to(x.dtype))


def streamed_class_densities(
    batches: Callable[[], Iterable[tuple[Tensor, Tensor]]], entry_of: Callable[[Tensor], Tensor], num_classes: int
) -> Tensor:
    """Return the densities of Eq. (5) of features that do not fit into memory, in two passes: means, then distances.

    Args:
        batches: gives the features ``[B, D]`` and labels ``[B]`` anew, batch by batch, each time it is called.
        entry_of: entries ``[B]``, from 0, of labels ``[B]``.
        num_classes: how many entries there are.

    Returns:
        ``[num_classes]``, float64; 0 for a class without features.
    """
    sums, counts = torch.zeros(num_classes, 0), torch.zeros(num_classes, dtype=torch.float64)
    for features, labels in batches():
        x, entries = normalize(features.double()), entry_of(labels)
        if not sums.numel():
            sums, counts = x.new_zeros(num_classes, x.shape[1]), x.new_zeros(num_classes)
        sums.index_add_(0, entries, x)
        counts.index_add_(0, entries, torch.ones_like(x[:, 0]))
    centroids = sums / counts.clamp(min=1)[:, None]
    distances = torch.zeros_like(counts)
    for features, labels in batches():
        x, entries = normalize(features.double()), entry_of(labels)
        distances.index_add_(0, entries, (x - centroids[entries]).square().sum(1))
    return distances / counts.clamp(min=1)


def nearest_distances(x: Tensor, tile_size: int | None = None) -> Tensor:
    """Return each embedding's distance to its nearest neighbor, ``[B]``, B at least 2; gradient 0 where it is 0."""
    with torch.no_grad():
        half = x.square().sum(1) / 2

        def nearest_of(rows: slice, points: tuple[Tensor, ...], columns: tuple[Tensor, ...]) -> tuple[Tensor]:
            similarity = points[0] @ columns[0].T - half  # orders as the negative distance does
            similarity.diagonal(rows.start).fill_(-torch.inf)
            return (similarity.argmax(1),)

        size = rows_per_tile(tile_size, len(x), len(x), x.device) or len(x)
        (nearest,) = in_tiles(nearest_of, (x,), (x,), tiles_of_rows(len(x), size), values=0)
    squared = (x - x[nearest]).square().sum(1)
    return torch.where(squared == 0, 0, squared.clamp(min=torch.finfo(x.dtype).tiny).sqrt())
