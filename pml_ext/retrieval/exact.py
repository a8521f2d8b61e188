"""Exact search by Euclidean distance, of all images or of some, in place: no copy of the embeddings is made."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..evaluation import default_neighbors, has_faiss

_ROWS = 1 << 16  # of some images, copied at a time


def nearest_of(points: Tensor, k: int, reference: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest of all references.

    Args:
        points: ``[Q, D]``.
        k: how many, at most R.
        reference: ``[R, D]``, read where it lies: one that is mapped from a file is not copied.

    Returns:
        Distances and numbers, two tensors ``[Q, k]``, nearest first.
    """
    if points.device.type != "cpu" or not has_faiss():
        return default_neighbors().search(points, k, reference)
    import faiss

    squared, numbers = faiss.knn(_rows(points), _rows(reference), k)
    return torch.from_numpy(squared).clamp_(min=0).sqrt_(), torch.from_numpy(numbers)


def nearest_among(rows: NDArray[np.int64], points: Tensor, k: int, reference: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest of some references, 65,536 of which are copied at a time.

    Args:
        rows: their numbers, ``[M]``.
        points: ``[Q, D]``.
        k: how many, at most M.
        reference: ``[R, D]``.

    Returns:
        As of :func:`nearest_of`; the numbers are rows of ``reference``.
    """
    best, which = points.new_empty(len(points), 0), torch.empty(len(points), 0, dtype=torch.long, device=points.device)
    for start in range(0, len(rows), _ROWS):
        some = torch.from_numpy(rows[start : start + _ROWS]).to(reference.device)
        distances, numbers = nearest_of(points, min(k, len(some)), reference[some])
        best = torch.cat([best, distances], 1)
        which = torch.cat([which, some[numbers.to(some.device)]], 1)
        best, order = best.sort(dim=1, stable=True)
        best, which = best[:, :k], which.gather(1, order)[:, :k]
    return best, which


def _rows(points: Tensor) -> NDArray[np.float32]:
    return np.ascontiguousarray(points.detach().numpy(), dtype=np.float32)
