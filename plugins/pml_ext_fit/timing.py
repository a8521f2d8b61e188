"""How long somebody's images take, by the time of some of them, and what is left while steps end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from pml_ext.distributed import choose_device
from pml_ext.errors import DataError
from pml_ext_train.data import prepare
from pml_ext_train.networks import use_channels_last
from pml_ext_train.recipe import Override, build_dataset, build_network, load_recipe, overrides_of, preprocessing_of
from pml_ext_train.training import Run, embed_batches

from .candidates import Candidate

TIMED_IMAGES = 32


@dataclass(frozen=True)
class PerImage:
    """The seconds of an image: to read it before anything else, and in a pass through the trunk."""

    reading: float
    passing: float  # with reading, where images are not cached


def seconds_per_image(
    candidate: Candidate, overrides: Iterable[Override], device: str, data: Path | None
) -> PerImage | None:
    """Return the seconds that an image takes with the trunk of a candidate.

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
    begun = time.perf_counter()
    try:
        some, _ = prepare(images.train.subset(evenly), plain, recipe.data.cache, skip_unreadable=True)
    except DataError:
        return None
    reading = (time.perf_counter() - begun) / count
    some = some.with_transform(plain)
    seconds = []
    for _ in range(2):  # the first pass warms up
        started = time.perf_counter()
        for _ in embed_batches(network.trunk, network.embedder, some, chosen, batch_size=16):
            pass
        seconds.append(time.perf_counter() - started)
    return PerImage(reading, seconds[-1] / len(some))


def seconds_of_training(run: Run) -> float | None:
    """Return about how long a run trains from kept activations, by the time of one batch; None for other runs."""
    stage = run.stages[0]
    cut = run.inputs.cut_of(stage)
    if cut is None:
        return None
    activations = torch.zeros(stage.batch_size, *cut.shape, device=run.device, requires_grad=True)
    cut.rest.eval()
    step = _seconds(lambda: cut.rest(activations).sum().backward())
    cut.rest.zero_grad(set_to_none=True)
    return step * stage.iterations * run.epochs


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


class TimeLeft:
    """The seconds of steps that are left, as they were estimated, corrected by what the steps before them took.

    What is left is as much evidence as what is over: a step of seconds that takes ten times as long says little about
    one of minutes.
    """

    def __init__(self, seconds: Mapping[str, float]) -> None:
        self._seconds = dict(seconds)
        self._ended = 0.0  # seconds of the steps that are over, as they were estimated
        self._begun = time.perf_counter()

    def end(self, step: str) -> None:
        """Take a step as over."""
        self._ended += self._seconds.pop(step, 0.0)

    def leave_out(self, step: str) -> None:
        """Take a step as one that is not made."""
        self._seconds.pop(step, None)

    def seconds(self, without: str = "") -> float:
        """Return the seconds that are left, of all steps but one."""
        left = sum(seconds for step, seconds in self._seconds.items() if step != without)
        if self._ended == 0:
            return left
        return left * (time.perf_counter() - self._begun + left) / (self._ended + left)

    def __str__(self) -> str:
        """The end of a line about a step: ``"; about 3 minutes left"``; empty if nothing was estimated."""
        if not self._seconds:
            return ""
        return f"; about {in_minutes(self.seconds())} left"


def in_minutes(seconds: float) -> str:
    """Return a time for readers: ``"40 s"``, ``"3 minutes"``."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} minutes"
