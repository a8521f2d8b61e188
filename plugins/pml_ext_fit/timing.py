"""How long images take, measured on a few, and the time left while steps end."""

import time
import timeit
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
TRAINING = "training"  # the step of the final training


@dataclass(frozen=True)
class PerImage:
    """Seconds to read an image, and to pass it through the trunk."""

    reading: float
    passing: float  # with reading, where images are not cached


def seconds_per_image(
    candidate: Candidate, overrides: Iterable[Override], device: str, data: Path | None
) -> PerImage | None:
    """Time 32 images with the trunk of a candidate; None if none of them can be read."""
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
    passing = _seconds(lambda: list(embed_batches(network.trunk, network.embedder, some, chosen, batch_size=16)))
    return PerImage(reading, passing / len(some))


def seconds_of_training(run: Run) -> float | None:
    """Estimate how long a run trains from kept activations, by one batch; None for other runs."""
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
    """Seconds of a computation, after a first one that warms up."""

    def synchronized() -> None:
        compute()
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    return timeit.repeat(synchronized, number=1, repeat=2)[-1]


class TimeLeft:
    """The estimated seconds of the remaining steps, corrected by the pace of finished ones.

    A short step corrects little: the remaining estimate has as much weight as the finished one.
    """

    def __init__(
        self, seconds: Mapping[str, float], trainings: Mapping[str, float] | None = None, steps: int = 0
    ) -> None:
        """``trainings`` are the seconds of each training that may follow; the longest counts until one is chosen.

        ``steps`` are the training steps of the trials.
        """
        self.steps = steps
        self._trainings = dict(trainings or {})
        self._seconds = dict(seconds)
        if self._trainings:
            self._seconds[TRAINING] = max(self._trainings.values())
        self._ended = 0.0  # estimated seconds of the finished steps
        self._begun = time.perf_counter()

    def end(self, step: str) -> None:
        """Count a step as finished."""
        self._ended += self._seconds.pop(step, 0.0)

    def leave_out(self, step: str) -> None:
        """Drop a step that is not made."""
        self._seconds.pop(step, None)

    def trains(self, title: str) -> None:
        """Count the training of the chosen candidate, if it trains."""
        self._seconds.pop(TRAINING, None)
        if title in self._trainings:
            self._seconds[TRAINING] = self._trainings[title]

    def seconds(self, *without: str) -> float:
        """Seconds left, without some of the steps."""
        left = sum(seconds for step, seconds in self._seconds.items() if step not in without)
        if self._ended == 0:
            return left
        return left * (time.perf_counter() - self._begun + left) / (self._ended + left)

    def __str__(self) -> str:
        """``"; about 3 minutes left"``, or an empty string without an estimate."""
        if not self._seconds:
            return ""
        return f"; about {in_minutes(self.seconds())} left"


def in_minutes(seconds: float) -> str:
    """A time for readers: ``"40 s"``, ``"3 minutes"``."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} minutes"
