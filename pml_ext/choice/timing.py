"""How long trials and training take on somebody's images, from the time that the trunk takes for some of them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

from ..data import prepare
from ..distributed.devices import choose_device
from ..errors import DataError
from ..networks.memory_format import use_channels_last
from ..recipe import Override, build_dataset, build_network, load_recipe, preprocessing_of
from ..recipe.images import OwnImages, iterations_of
from ..recipe.own_data import parsed_all
from ..training.batches import embed_batches
from .candidates import PRETRAINED, Candidate, views_of

TIMED_IMAGES = 32
# seconds of a step from cached activations, over those of embedding the images of its batch
STEP = 0.75


def estimated_seconds(images: OwnImages, per_image: float) -> float:
    """Return the seconds of the trials, and of the training and the tests of the last blocks.

    ``per_image`` are the seconds of embedding an image.
    """
    trained = images.training_images
    epochs = load_recipe(PRETRAINED).schedule.epochs
    embedded = 2 * trained + trained * views_of(trained) + 4 * images.tested_images
    seen = 64 * iterations_of(images) * 2 * epochs  # in the trial and in the training
    return per_image * (embedded + STEP * seen)


def seconds_per_image(
    candidate: Candidate, overrides: Iterable[Override], device: str, data: Path | None
) -> float | None:
    """Return the seconds that the trunk of a candidate takes for an image, reading included.

    None where none of the 32 images that are timed can be read.
    """
    recipe = load_recipe(candidate.recipe, [*parsed_all(candidate.settings), *overrides])
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
