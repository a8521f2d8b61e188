"""A sample of images in which classes stay large enough for retrieval."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

PER_CLASS = 20  # images per class that suffice for retrieval


def some_of_each_class(labels: Any, most: int, seed: int = 0) -> NDArray[np.int64]:
    """Return indices of a sample in which classes stay large enough for retrieval.

    Classes are added in random order with up to 20 images each, until there are ``most``. If 20 are too few, the
    limit is the smallest that suffices: 10 classes of 90 give 300 as 30 of each. The indices ascend; all N are
    returned if N <= ``most``.
    """
    labels = np.asarray(labels)
    if most >= len(labels):
        return np.arange(len(labels))
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(labels))
    by_class = order[np.argsort(labels[order], kind="stable")]
    _, starts, class_of, counts = np.unique(
        labels[by_class], return_index=True, return_inverse=True, return_counts=True
    )
    place = np.arange(len(labels)) - starts[class_of]  # position of each image within its class
    rank = np.argsort(generator.permutation(len(counts)))  # random rank of each class

    per_class = PER_CLASS
    while np.minimum(counts, per_class).sum() < most:
        per_class += 1
    by_rank = np.argsort(rank[class_of], kind="stable")
    chosen = by_rank[place[by_rank] < per_class][:most]
    return np.sort(by_class[chosen])
