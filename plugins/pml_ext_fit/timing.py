"""How long the trunk takes for somebody's images, from the time that it takes for some of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch

from pml_ext.plugin import DataError
from pml_ext.tool import (
    Override,
    Run,
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
STEM_IMAGES = 16  # of a pass through the frozen part of a trunk


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


def seconds_of_training(run: Run) -> float | None:
    """Return about how long a run trains from kept activations, by the time of one batch; None for other runs.

    The activations of training and tested images are counted, as if none was kept before.
    """
    stage = run.stages[0]
    cut = run.inputs.cut_of(stage)
    if cut is None:
        return None
    images = torch.zeros(STEM_IMAGES, *run.data.preprocessing.input_shape, device=run.device)
    images = images.contiguous(memory_format=run.memory_format)
    activations = torch.zeros(stage.batch_size, *cut.shape, device=run.device, requires_grad=True)
    cut.stem.eval()
    cut.rest.eval()
    with torch.no_grad():
        per_image = _seconds(lambda: cut.stem(images)) / STEM_IMAGES
    step = _seconds(lambda: cut.rest(activations).sum().backward())
    cut.rest.zero_grad(set_to_none=True)
    seen = sum(len(part) for part in run.splits.values())
    return per_image * seen + step * stage.iterations * run.epochs


def _seconds(compute: Callable[[], object]) -> float:
    """Return the seconds of a computation that was made once before, which warms up."""
    started = 0.0
    for _ in range(2):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        started = time.perf_counter()
        compute()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started


def in_minutes(seconds: float) -> str:
    """Return a time for readers: ``"40 s"``, ``"3 minutes"``."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} minutes"
