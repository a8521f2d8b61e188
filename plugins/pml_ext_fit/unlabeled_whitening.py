"""Whether features without labels are whitened, and with which shrinkage."""

import math

import torch
from torch import Tensor, nn

from pml_ext_train.training import Features

ITEMS = 4096  # drawn from more features
LEAST_SHARE = 0.1  # of the variance, between classes
LEAST_SEPARATION = 0.93  # after whitening, over that before
_PART = 1024  # items that are compared with all others at a time
_LEAST_VARIANCE = 1e-10  # of a direction, over the mean of all


def shrinkage_without_labels(count: int, size: int) -> float:
    r"""Return the shrinkage of whitening for ``count`` items of ``size`` features.

    .. math:: \lambda = 1 - 0.06 \sqrt{\frac{N}{N + F}}
    """
    return round(1 - 0.06 * math.sqrt(count / (count + size)), 3)


def whitening_helps(features: Tensor | Features, shrinkage: float) -> bool:
    r"""Return whether whitening of features ``[N, F]`` is expected to keep their classes apart.

    Whitening shrinks the leading directions, which loses classes that lie far apart in a few of them. The variance
    between classes is estimated from nearest neighbors: they are closer together than those of Gaussian features with
    the same covariance, and most in the directions in which classes differ.

    With the variance :math:`v_j` of direction j, and :math:`r_j` the mean squared difference of nearest neighbors over
    that of the Gaussian features (at most 1), the separation is

    .. math:: s(\lambda) = \frac{\sum_j a_j v_j (1 - r_j)}{\sqrt{\sum_j (a_j v_j r_j)^2}}, \qquad
        a_j = \frac{1}{(1 - \lambda) v_j + \lambda \bar v}

    Whitening helps if :math:`s(\lambda) \ge 0.93 \, s(1)`, and if classes have a tenth of the variance: where
    neighbors show no classes, nothing can be said. Both numbers were chosen on made-up mixtures and photographs.

    *Cost:* of 4,096 items at most, seconds.
    """
    generator = torch.Generator().manual_seed(0)
    drawn = features[torch.randperm(len(features), generator=generator)[:ITEMS]].double()
    centered = drawn - drawn.mean(0)
    variances, directions = torch.linalg.eigh(centered.T @ centered / len(centered))
    mean = variances.mean()
    varies = variances > _LEAST_VARIANCE * mean
    if not varies.any():
        return False
    variances = variances[varies]
    coordinates = centered @ directions[:, varies]
    gaussian = torch.randn(coordinates.shape, generator=generator, dtype=torch.float64)
    gaussian -= gaussian.mean(0)
    gaussian *= variances.sqrt() / gaussian.std(0, correction=0)
    within = variances * (_neighbor_variances(coordinates) / _neighbor_variances(gaussian)).clamp(max=1)
    between = variances - within
    if between.sum() < LEAST_SHARE * variances.sum():
        return False
    weights = 1 / ((1 - shrinkage) * variances + shrinkage * mean)
    whitened = (weights * between).sum() / (weights * within).norm()
    unwhitened = between.sum() / within.norm()
    return bool(whitened >= LEAST_SEPARATION * unwhitened)


def _neighbor_variances(points: Tensor) -> Tensor:
    """Return the mean squared difference of each coordinate between points ``[N, F]`` and their nearest, by cosine."""
    normalized = nn.functional.normalize(points).float()
    nearest = []
    for start in range(0, len(points), _PART):
        part = normalized[start : start + _PART]
        similarity = part @ normalized.T
        own = torch.arange(len(part))
        similarity[own, start + own] = -torch.inf
        nearest.append(similarity.argmax(1))
    return (points - points[torch.cat(nearest)]).square().mean(0)
