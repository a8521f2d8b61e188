"""How long the trunk takes for somebody's images, from the time that it takes for some of them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

from pml_ext.plugin import DataError
from pml_ext.tool import (
    Override,
    build_dataset,
    build_network,
    choose_device,
    embed_batches,
    load_recipe,
    overrides_of,
    prepare,
    preprocessing_of,
    use_channels_last,
)

from .candidates import Candidate

TIMED_IMAGES = 32


def seconds_per_image(
    candidate: Candidate, overrides: Iterable[Override], device: str, data: Path | None
) -> float | None:
    """Return the seconds that the trunk of a candidate takes for an image, reading included.

    None where none of the 32 images that are timed can be read.
    """
    recipe = load_recipe(candidate.recipe, [*overrides_of(candidate.settings), *overrides])
    images = build_dataset(recipe.data, data)
    preprocessing, _ = preprocessing_of(recipe, images)
    chosen = torch.device(choose_device(device))
    network = build_network(recipe.model, preprocessing).to(chosen)
    if chosen.type == "cpu":
        use_channels_last(network, preprocessing.channels, preprocessing.image_size)
    _, plain = preprocessing.transforms()
    count = min(TIMED_IMAGES, len(images.train))
    evenly = np.linspace(0, len(images.train) - 1, count).astype(np.int64)
    try:
        some, _ = prepare(images.train.subset(evenly), plain, skip_unreadable=True)
    except DataError:
        return None
    some = some.with_transform(plain)
    seconds = []
    for _ in range(2):  # the first pass warms up
        started = time.perf_counter()
        for _ in embed_batches(network.trunk, network.embedder, some, chosen, batch_size=16):
            pass
        seconds.append(time.perf_counter() - started)
    return seconds[-1] / len(some)
