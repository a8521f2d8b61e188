"""Short runs on digits, for tests that compare their weights."""

import json
import os
import signal

import pytest
import torch

from pml_ext.errors import StoppedError
from pml_ext_train.launch.launch import train
from pml_ext_train.training import checkpoint
from pml_ext_train.training.signals import listening

from ....overrides import typed
from .whole_runs import Ear

SHORT = ["evaluation.training_images=0", "schedule.epochs=5", "schedule.milestones=[4]"]
SHORT += ["sampler.iterations=20", "model.trunk.width=8", "model.trunk.weights=random"]


def finished(folder, *overrides, seed=0):
    train("cbml/digits", overrides=typed([*SHORT, *overrides]), out=folder, seed=seed)
    state = torch.load(folder / "checkpoints" / "model.pt", weights_only=True)
    return state, json.loads((folder / "metrics.json").read_text())


class Stopping(Ear):
    """Sends a signal after the second iteration of the second epoch."""

    def iteration(self, epoch, done, *_):
        if (epoch, done) == (2, 2):
            os.kill(os.getpid(), signal.SIGTERM)


def assert_the_same_when_resumed(folder, *overrides, recipe="cbml/digits"):
    """Compare a run that was stopped within an epoch, and resumed, with one that was not, bit for bit."""
    short = [*SHORT, "schedule.epochs=3", "sampler.iterations=4", "evaluation.baselines=false"]
    settings = [*short, "schedule.milestones=[2]", *overrides]
    train(recipe, overrides=typed(settings), out=folder / "once")
    with listening(), pytest.raises(StoppedError, match="in epoch 2, after iteration 2; a checkpoint is written"):
        train(recipe, overrides=typed(settings), out=folder / "twice", listener=Stopping())
    train(recipe, overrides=typed(settings), out=folder / "twice", resume=True)
    once, twice = (checkpoint.load(folder / name / "checkpoints" / "last.pt") for name in ("once", "twice"))
    assert once["epoch"] == twice["epoch"] == 3
    compared = 0
    for part, state in once["parts"].items():
        for name, value in state.items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(twice["parts"][part][name], value), f"{part}.{name}"
                compared += 1
    assert compared > 4
    assert once["parts"]["trunk_optimizer"]["param_groups"] == twice["parts"]["trunk_optimizer"]["param_groups"]
