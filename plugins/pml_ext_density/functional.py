"""The equations of Li et al. (2019), Sec. III-B. Distances are squared.

Slot c holds the c-th class of the batch in increasing order. On accelerators and under torch.compile there are as many
slots as embeddings, some empty, so no shape depends on labels.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from pml_ext.plugin import in_tiles, normalize, rows_per_tile, tiles_of_rows, to_full_precision, widest_dtype


class Slots(NamedTuple):
    """The assignment of a batch's embeddings to class slots."""

    class_index: Tensor  # the slot of every embedding, [B]
    counts: Tensor  # number of embeddings per slot, [S], floating point
    classes: Tensor  # the class of every slot, [S]; 0 for an empty slot


def slots(classes: Tensor, dtype: torch.dtype) -> Slots:
    """Assign a batch to slots: one per class on the CPU, else one per embedding."""
    if classes.device.type == "cpu" and not torch.compiler.is_compiling():
        present, class_index, counts = torch.unique(classes, return_inverse=True, return_counts=True)
        return Slots(class_index, counts.to(dtype), present)
    values, order = classes.sort()
    new = torch.zeros_like(values)
    new[1:] = values[1:] != values[:-1]
    class_index = torch.empty_like(order).scatter_(0, order, new.cumsum(0))
    counts = torch.zeros(len(classes), dtype=dtype, device=classes.device)
    counts.scatter_add_(0, class_index, torch.ones_like(counts))
    return Slots(class_index, counts, torch.zeros_like(classes).scatter_(0, class_index, classes))


def slot_densities(embeddings: Tensor, batch: Slots) -> Tensor:
    """The densities of a batch's slots, ``[S]``; 0 for a single embedding or none."""
    return _variances(normalize(embeddings), batch.class_index, batch.counts.clamp(min=1))


def _variances(x: Tensor, class_index: Tensor, sizes: Tensor) -> Tensor:
    centroids = x.new_zeros(len(sizes), x.shape[1]).index_add(0, class_index, x) / sizes[:, None]
    distances = (x - centroids.index_select(0, class_index)).square().sum(1)
    return torch.zeros_like(sizes).index_add(0, class_index, distances) / sizes


def density_terms(
    densities: Tensor, targets: Tensor, base: Tensor, present: Tensor, eta: float = 0.5
) -> tuple[Tensor, Tensor, Tensor]:
    r"""The three terms of Eq. (8), without their signs and weights.

    .. math::
        \frac{1}{C} \sum_c (D_c - \alpha_c)^2, \qquad \frac{1}{C} \sum_c \alpha_c, \qquad
        \frac{1}{C^2} \sum_{i, j} (b_j \alpha_i - b_i \alpha_j)^2
        = \frac{2}{C^2} \Big[ \sum_i \alpha_i^2 \sum_j b_j^2 - \Big(\sum_i \alpha_i b_i\Big)^2 \Big]

    for densities :math:`D_c`, targets :math:`\alpha_c` and :math:`b_c = (D^{(0)}_c)^\eta`, all ``[K]``. The third term
    leaves out classes with base density 0. ``present``, ``[K]``, is 1 for a class in the batch, else 0.
    """
    count = present.sum().clamp(min=1)
    fit = (densities - targets).square() @ present / count
    spread = targets @ present / count
    counted = present * (base > 0)
    a = targets * counted
    b = base**eta * counted
    return fit, spread, 2 * ((a @ a) * (b @ b) - (a @ b).square()) / count.square()


def class_densities(features: Tensor, labels: Tensor) -> Tensor:
    r"""Every class's mean squared distance to its mean, Eq. (5); smaller is denser.

    .. math::
        D_{avg}(S_c) = \frac{1}{|S_c|} \sum_{i \in S_c} \|x_i - \mu_c\|^2, \qquad
        \mu_c = \frac{1}{|S_c|} \sum_{i \in S_c} x_i

    Features, ``[N, D]``, are normalized here; labels are ``[N]``. The result, ``[C]``, from 0 to 1, follows the labels
    in increasing order.
    """
    x = normalize(to_full_precision(features, normalized=True))
    _, class_index, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    return _variances(x, class_index, counts.to(x.dtype))


def streamed_class_densities(
    batches: Iterable[tuple[Tensor, Tensor]], entry_of: Callable[[Tensor], Tensor], num_classes: int
) -> Tensor:
    """Eq. (5) of features that do not fit into memory, in float64, ``[num_classes]``.

    ``batches`` yields features ``[B, D]`` and labels ``[B]``; ``entry_of`` maps labels to indices of the result. A
    class without features has density 0.
    """
    sums: Tensor | None = None
    squares = torch.zeros(num_classes, dtype=torch.float64)
    counts = torch.zeros(num_classes, dtype=torch.float64)
    for features, labels in batches:
        x = normalize(features.to(widest_dtype(features.device)))
        entries = entry_of(labels)
        if sums is None:
            sums = x.new_zeros(num_classes, x.shape[1])
            squares = squares.to(x)
            counts = counts.to(x)
        sums.index_add_(0, entries, x)
        squares.index_add_(0, entries, x.square().sum(1))
        counts.index_add_(0, entries, torch.ones_like(x[:, 0]))
    if sums is None:
        return squares
    sizes = counts.clamp(min=1)
    return (squares / sizes - (sums / sizes[:, None]).square().sum(1)).clamp(min=0)


def nearest_distances(x: Tensor, tile_size: int | None = None) -> Tensor:
    """Each embedding's distance to its nearest neighbor, ``[B]``, for B >= 2.

    A distance of 0 has gradient 0.
    """
    with torch.no_grad():
        half = x.square().sum(1) / 2

        def nearest_of(rows: slice, points: tuple[Tensor, ...], columns: tuple[Tensor, ...]) -> tuple[Tensor]:
            similarity = points[0] @ columns[0].T - half  # same order as the negative distance
            similarity.diagonal(rows.start).fill_(-torch.inf)
            return (similarity.argmax(1),)

        size = rows_per_tile(tile_size, len(x), len(x), x.device) or len(x)
        (nearest,) = in_tiles(nearest_of, (x,), (x,), tiles_of_rows(len(x), size), values=0)
    squared = (x - x[nearest]).square().sum(1)
    return torch.where(squared == 0, 0, squared.clamp(min=torch.finfo(x.dtype).tiny).sqrt())
