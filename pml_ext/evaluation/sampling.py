"""Samples of images."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PER_CLASS = 20  # images that are enough for retrieval


def some_of_each_class(labels: Any, most: int, seed: int = 0) -> NDArray[np.int64]:
    """Return the indices of a sample in which classes stay large enough for retrieval.

    Classes are taken in random order, 20 images of each, until there are ``most``: 300 of 15 classes of 90
    are 20 of each. Where all classes together have fewer, the limit per class is the smallest that suffices: 300 of 10
    classes of 90 are 30 of each.

    Of labels ``[N]`` these are ``[most]`` indices, rising; all N where these are no more.
    """
    labels = np.asarray(labels)
    if most >= len(labels):
        return np.arange(len(labels))
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(labels))
    by_class = order[np.argsort(labels[order], kind="stable")]
    _, starts, of, counts = np.unique(labels[by_class], return_index=True, return_inverse=True, return_counts=True)
    place = np.arange(len(labels)) - starts[of]  # of an image in its class
    rank = np.argsort(generator.permutation(len(counts)))  # of a class
    limits = range(PER_CLASS, counts.max() + 1)
    per_class = next((limit for limit in limits if np.minimum(counts, limit).sum() >= most), PER_CLASS)
    by_rank = np.argsort(rank[of], kind="stable")
    chosen = by_rank[place[by_rank] < per_class][:most]
    return np.sort(by_class[chosen])


def sample_indices(count: int, most: int, seed: int) -> Tensor:
    """Return at most ``most`` of the numbers below ``count``, drawn at random, in rising order."""
    if count <= most:
        return torch.arange(count)
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:most].sort().values
