"""Short runs on digits: built, trained, stopped and resumed; and a listener that keeps what it hears."""

import contextlib
import json
import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from pml_ext.errors import StoppedError
from pml_ext_train.launch.launch import train
from pml_ext_train.recipe import load_recipe
from pml_ext_train.training import Run, Silence, listening, load, run_data

from ....overrides import typed

QUICK = ("schedule.epochs=3", "schedule.milestones=[2]", "sampler.iterations=4", "model.trunk.width=16")
TINY = ("schedule.epochs=4", "schedule.milestones=[2]", "sampler.iterations=2", "model.trunk.width=8")
SHORT = [
    "evaluation.training_images=0",
    "schedule.epochs=5",
    "schedule.milestones=[4]",
    "sampler.iterations=20",
    "model.trunk.width=8",
    "model.trunk.weights=random",
]


def quick(out: Path, *overrides: str, recipe: str = "cbml/digits", **settings):
    return train(recipe, out=out, overrides=typed((*QUICK, *overrides)), device="cpu", **settings)[0]


def same(one: dict, other: dict) -> bool:
    return all(one[phase] == other[phase] for phase in ("raw", "before", "after"))


def built(folder, *overrides, recipe="pml/proxy-anchor/digits", **settings):
    """Build a run, and do not train it."""
    folder.mkdir(exist_ok=True)
    return Run(load_recipe(recipe, typed([*TINY, *overrides])), recipe, folder, **settings)


def finished(folder, *overrides, seed=0):
    """Train a run; return the weights and the metrics that it wrote."""
    train("cbml/digits", overrides=typed([*SHORT, *overrides]), out=folder, seed=seed)
    return torch.load(folder / "checkpoints" / "model.pt", weights_only=True), json.loads(
        (folder / "metrics.json").read_text()
    )


def assert_close_networks(one, other, tolerance=0.0):
    for part in ("trunk", "embedder"):
        torch.testing.assert_close(dict(other[part]), dict(one[part]), atol=tolerance, rtol=0)


@contextlib.contextmanager
def garbled_labels():
    """Let runs see training images whose labels say nothing."""
    real = run_data.build_dataset

    def garbled(*arguments):
        splits = real(*arguments)
        splits.train.labels[:] = np.random.default_rng(0).permutation(splits.train.labels)
        return splits

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_data, "build_dataset", garbled)
        yield


class Ear(Silence):
    """A listener that keeps what it hears."""

    def __init__(self):
        self.lines = []
        self.warnings = []
        self.epochs = []

    def step(self, text):
        self.lines.append(text)
        if found := re.fullmatch(r"epoch (\d+) of (\d+): loss ([\d.]+), (\d+) images/s, (\d:\d\d:\d\d) left.*", text):
            self.epochs.append(found.groups())

    def warn(self, text):
        self.warnings.append(text)


class Stopping(Ear):
    """Sends a signal after the second iteration of the second epoch."""

    def iteration(self, epoch, done, *_):
        if (epoch, done) == (2, 2):
            os.kill(os.getpid(), signal.SIGTERM)


def assert_the_same_when_resumed(folder, *overrides, recipe="cbml/digits"):
    """Compare a run that was stopped within an epoch, and resumed, with one that was not, bit for bit."""
    settings = typed(
        [
            *SHORT,
            "schedule.epochs=3",
            "sampler.iterations=4",
            "evaluation.baselines=false",
            "schedule.milestones=[2]",
            *overrides,
        ]
    )
    train(recipe, overrides=settings, out=folder / "once")
    with listening(), pytest.raises(StoppedError, match="in epoch 2, after iteration 2; a checkpoint is written"):
        train(recipe, overrides=settings, out=folder / "twice", listener=Stopping())
    train(recipe, overrides=settings, out=folder / "twice", resume=True)
    once, twice = (load(folder / name / "checkpoints" / "last.pt") for name in ("once", "twice"))
    assert once["epoch"] == twice["epoch"] == 3
    assert {"trunk_optimizer", "embedder"} <= set(once["parts"])
    for part, state in once["parts"].items():
        tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
        torch.testing.assert_close({name: twice["parts"][part][name] for name in tensors}, tensors, rtol=0, atol=0)
    assert once["parts"]["trunk_optimizer"]["param_groups"] == twice["parts"]["trunk_optimizer"]["param_groups"]
