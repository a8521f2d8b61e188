"""Embeddings in two dimensions."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Paul Tol's bright colors, which are color-blind safe; further classes reuse them with other marker shapes.
COLORS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")
SHAPES = 4
ONE_POINT = 1e-5  # extent below which unit vectors count as one point


def mark(rank: int) -> tuple[str, int]:
    """Return color and marker number of a class's rank."""
    return COLORS[rank % len(COLORS)], rank // len(COLORS) % SHAPES


def unit_rows_on_cpu(points: Tensor) -> Tensor:
    """Return unit rows ``[N, D]`` on the CPU; float64 avoids overflow."""
    return torch.nn.functional.normalize(points.detach().cpu().double()).float()


def flattened(points: NDArray[np.float32], method: str, seed: int = 0) -> NDArray[np.float32]:
    """Return unit vectors ``[N, D]`` in two dimensions, ``[N, 2]``; zeros for a single point.

    ``method`` is ``"tsne"`` or ``"pca"``; up to 10 points use PCA.
    """
    if len(points) < 2 or np.ptp(points, axis=0).max() <= ONE_POINT:
        return np.zeros((len(points), 2), dtype=np.float32)
    if method == "tsne" and len(points) > 10:
        from sklearn.manifold import TSNE
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

        tsne = TSNE(perplexity=min(30, (len(points) - 1) / 3), init="pca", max_iter=400, random_state=seed)
        with threadpool_limits(1):  # more threads only add synchronization in each of the 400 steps
            return tsne.fit_transform(points)  # type: ignore[no-any-return]
    centered = torch.from_numpy(points - points.mean(axis=0))
    axes = torch.linalg.svd(centered, full_matrices=False).Vh[:2]
    return (centered @ axes.T).numpy()  # type: ignore[no-any-return]
