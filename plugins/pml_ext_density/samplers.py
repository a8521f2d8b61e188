"""Batches of whole classes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from pml_ext.plugin import GroupSampler, members_by_class


class WholeClassSampler(GroupSampler):
    """Sampler of all images of randomly drawn classes, class by class, until a batch is full.

    A random subset of the last class fills the batch. Every class is drawn once before any is drawn again.

    Args:
        labels: the label of every image, integers, ``[N]``.
        batch_size: images in a batch; ValueError if one class alone fills it.
        seed: of the sampler's own random generator.

    *Source:* Li et al., 2019, Sec. IV-A, https://arxiv.org/abs/1909.03909.
    """

    def __init__(self, labels: Sequence[int] | Tensor, batch_size: int, seed: int = 0) -> None:
        known: Any = np.asarray(labels)
        classes, class_index = np.unique(known, return_inverse=True)
        if not 1 <= batch_size <= len(known):
            raise ValueError(f"batch_size must be between 1 and the {len(known)} images; got {batch_size}")
        members = members_by_class(class_index)
        largest = max(range(len(classes)), key=lambda number: len(members[number]))
        if len(members[largest]) >= batch_size:
            raise ValueError(
                f"class {classes[largest]} has {len(members[largest])} images and would fill a batch of "
                f"{batch_size} alone; make batch_size larger, or take MPerClassSampler"
            )
        super().__init__(members, batch_size, len(known), seed)
