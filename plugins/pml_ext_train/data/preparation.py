"""Reading files before training, to leave out unreadable ones and to cache images."""

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from pml_ext.errors import ConfigError, DataError, counted

from .images import LabeledImages, PackedImages, ResizedCache
from .transforms import Steps

NAMED = 5  # of the files that cannot be read, in a warning


def left_out_text(unreadable: Mapping[str, Mapping[str, str]]) -> str:
    """A warning with the number of unreadable files and the first five, or an empty string.

    ``unreadable`` has the second results of :func:`prepare` by split.
    """
    reasons: list[str] = []
    for paths in unreadable.values():
        for error in paths.values():
            reason, _, _ = error.partition("; ")  # the remedy is the same for all
            reasons.append(reason)
    if not reasons:
        return ""
    by_split = ", ".join(f"{len(paths)} of {split}" for split, paths in unreadable.items() if paths)
    shown = "; ".join(sorted(reasons)[:NAMED])
    more = f"; and {len(reasons) - NAMED} more" if len(reasons) > NAMED else ""
    return f"left out {counted(len(reasons), 'image')} that cannot be read ({by_split}): {shown}{more}"


def prepare(
    images: LabeledImages,
    steps: Steps,
    cache: Literal["none", "memory"] = "none",
    skip_unreadable: bool = False,
    workers: int = 0,
    tell: Callable[[str], None] = lambda text: None,
) -> tuple[LabeledImages, dict[str, str]]:
    """Cache images or leave out unreadable files; also return ``{path: reason}`` of the latter.

    The cache holds results of the first of ``steps``. ``workers`` threads (0: one per processor, up to 8) read every
    file. ConfigError if nothing can be cached; DataError for an unreadable file, or with ``skip_unreadable`` if all
    are.
    """
    in_memory = isinstance(images.images, Tensor)
    keep = cache == "memory"
    if in_memory and keep:
        raise ConfigError(
            f"data.cache: found {cache!r}, but the images of this data set are already in memory; leave it out"
        )
    if in_memory or not (keep or skip_unreadable):
        return images, {}
    if steps.first is None and keep:
        raise ConfigError(
            "data.cache: training images are cropped from the original files, so there is nothing to cache; set "
            "data.images.resize to resize them first"
        )

    first_step = steps.first if keep else None
    into_memory = ", into memory" if keep else ""
    tell(f"reading {len(images):,} images{into_memory}")
    results = _read_all(images, steps.smallest, first_step, skip_unreadable, workers)

    unreadable = {index: result for index, result in enumerate(results) if isinstance(result, str)}
    if len(unreadable) == len(images):
        raise DataError(f"all {len(images)} images are unreadable; the first: {unreadable[0]}")
    readable = images.subset(np.setdiff1d(np.arange(len(images)), list(unreadable)))
    if keep:
        kept = [result for result in results if isinstance(result, Tensor)]
        del results
        readable = readable.replace(cache=ResizedCache(PackedImages.of(kept), steps.first_name))
    reasons = {str(images.images[index]): reason for index, reason in unreadable.items()}
    return readable, reasons


def _read_all(
    images: LabeledImages, smallest: int, first_step: nn.Module | None, skip_unreadable: bool, workers: int
) -> list[Tensor | str]:
    def read(index: int) -> Tensor | str:
        try:
            image = images.image(index, smallest)
        except DataError as error:
            if not skip_unreadable:
                raise
            return str(error)
        if first_step is None:
            return torch.empty(0)
        return first_step(image)  # type: ignore[no-any-return]

    with ThreadPoolExecutor(workers or min(os.cpu_count() or 1, 8)) as pool:
        return list(pool.map(read, range(len(images))))
