"""Batches of whole classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from pml_ext.plugin import GroupSampler


class WholeClassSampler(GroupSampler):
    """All images of randomly drawn classes, one class after the other, until a batch is full.

    Of the last class as many images as still fit are drawn at random. Every class is drawn once, in a random order that
    goes on from epoch to epoch, before one is drawn again. A pass gives whole batches alone.

    Args:
        labels: the label of every image, integers, ``[N]``.
        batch_size: images in a batch.
        seed: of the draw; the sampler has a generator of its own.

    Raises:
        ValueError: fewer images than a batch, or a class that alone fills one.

    *Source:* Li et al., Deep Metric Learning with Density Adaptivity, 2019, Sec. IV-A (for Stanford Online Products),
    https://arxiv.org/abs/1909.03909.
    """

    def __init__(self, labels: Sequence[int] | Tensor, batch_size: int, seed: int = 0) -> None:
        known: Any = np.asarray(labels)
        classes, of = np.unique(known, return_inverse=True)
        members = [np.flatnonzero(of == number) for number in range(len(classes))]
        if not 1 <= batch_size <= len(known):
            raise ValueError(f"batch_size must be between 1 and the {len(known)} images; got {batch_size}")
        largest = max(range(len(classes)), key=lambda number: len(members[number]))
        if len(members[largest]) >= batch_size:
            raise ValueError(
                f"class {classes[largest]} has {len(members[largest])} images and would fill a batch of "
                f"{batch_size} alone; make batch_size larger, or take MPerClassSampler"
            )
        super().__init__(members, batch_size, len(known), seed)
