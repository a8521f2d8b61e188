"""Images cached as the first step of their transform leaves them, so that a file is decoded once a run."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import ConfigError, DataError
from .splits import LabeledImages, ResizedCache
from .transforms import Steps


def prepare(
    images: LabeledImages,
    steps: Steps,
    cache: Literal["none", "memory"] = "none",
    skip_unreadable: bool = False,
    workers: int = 0,
    tell: Callable[[str], None] = lambda text: None,
) -> tuple[LabeledImages, dict[str, str]]:
    """Return a split ready to be read, its images cached where wanted, and ``{path: reason}`` of what it leaves out.

    The result of the first of ``steps`` is cached. With ``skip_unreadable`` every file is read once to know. So many
    ``workers`` are threads that read, 0 for as many as there are processors, up to 8. ``tell`` is called before images
    are read. A ConfigError says that there is nothing to cache, a DataError that a file, or none, can be read.
    """
    if isinstance(images.images, Tensor) and cache != "none":
        raise ConfigError(f"data.cache: found {cache!r}, but the images of this data set are in memory; leave it out")
    if isinstance(images.images, Tensor) or (cache == "none" and not skip_unreadable):
        return images, {}
    if steps.first is None and cache != "none":
        raise ConfigError(
            "data.cache: training images are cut from the photographs as they are, which leaves nothing to keep; "
            "data.images.resize resizes them before"
        )
    tell(f"reading {len(images):,} images{', into memory' if cache == 'memory' else ''}")
    read = functools.partial(_first_step, images, steps, cache == "memory", skip_unreadable)
    with ThreadPoolExecutor(workers or min(os.cpu_count() or 1, 8)) as pool:
        results = list(pool.map(read, range(len(images))))
    unreadable = {index: result for index, result in enumerate(results) if isinstance(result, str)}
    if len(unreadable) == len(images):
        raise DataError(f"none of {len(images)} images can be read; the first: {unreadable[0]}")
    skipped = {str(images.images[index]): reason for index, reason in unreadable.items()}
    readable = images.subset(np.setdiff1d(np.arange(len(images)), list(unreadable)))
    if cache != "none":
        kept = [result for result in results if isinstance(result, Tensor)]
        readable = readable.replace(cache=ResizedCache(kept, steps.first_name))
    return readable, skipped


def _first_step(images: LabeledImages, steps: Steps, keep: bool, skip: bool, index: int) -> Tensor | str:
    """Return an image after the first step, its channels last in memory; or the reason why there is none."""
    try:
        image: Tensor = (steps.first or nn.Identity())(images.image(index, steps.smallest))
    except DataError as error:
        if not skip:
            raise
        return str(error)
    return image.permute(1, 2, 0).contiguous().permute(2, 0, 1) if keep else torch.empty(0)
