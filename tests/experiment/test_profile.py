"""Where the time of a step goes: what is slow on purpose is found in its part, and the training is that of a run."""

import time

import pytest
import torch
from pytorch_metric_learning import losses
from torch import nn

from pml_ext.errors import ConfigError
from pml_ext.experiment.batches import BatchReader, EpochBatches, SeededImages
from pml_ext.experiment.engine import Engine, Objective
from pml_ext.experiment.profile import PARTS, profile_recipe, profile_steps

CPU = torch.device("cpu")
NAP = 0.06  # seconds; more than what else a step may take on a busy machine


class Naps(torch.autograd.Function):
    """Takes its time, forward or backward."""

    @staticmethod
    def forward(ctx, x, forward, backward):
        ctx.backward = backward
        time.sleep(forward)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.backward)
        return gradient, None, None


class Slow(nn.Module):
    def __init__(self, inner, forward=0.0, backward=0.0):
        super().__init__()
        self.inner, self.naps = inner, (forward, backward)

    def forward(self, first, *rest):
        return self.inner(Naps.apply(first, *self.naps), *rest)


class SlowSGD(torch.optim.SGD):
    def step(self):
        time.sleep(NAP)
        super().step()


class Images(torch.utils.data.Dataset):
    def __init__(self, nap=0.0):
        self.nap = nap

    def __len__(self):
        return 8

    def __getitem__(self, index):
        time.sleep(self.nap / 8)
        return torch.rand(4, generator=torch.Generator().manual_seed(index)), index % 2


def miner(embeddings, labels):
    time.sleep(NAP)


def parts(slow=""):
    torch.manual_seed(0)
    trunk = Slow(nn.Linear(4, 4), NAP * (slow == "network forward"), NAP * (slow == "network backward"))
    # so that the trunk's own gradient is wanted: what naps in the backward pass is before its weights
    trunk = nn.Sequential(nn.Linear(4, 4), trunk)
    loss = Slow(losses.ContrastiveLoss(), NAP * (slow == "loss forward"), NAP * (slow == "loss backward"))
    embedder = nn.Linear(4, 3)
    kind = SlowSGD if slow == "optimizer" else torch.optim.SGD
    optimizer = kind([*trunk.parameters(), *embedder.parameters()], lr=0.1)
    return trunk, embedder, Objective(loss, {"all": optimizer}, miner if slow == "miner" else None)


BATCHES = EpochBatches([list(range(8))] * 5, 0, 1)


@pytest.mark.parametrize(
    "slow",
    [
        "reading",
        "network forward",
        "network backward",
        "miner",
        "loss forward",
        "loss backward",
        "optimizer",
        "records",
    ],
)
def test_what_is_slow_is_found_in_its_part(slow):
    trunk, embedder, objective = parts(slow)
    profile = profile_steps(
        trunk,
        embedder,
        Images(NAP * (slow == "reading")),
        BATCHES,
        objective,
        CPU,
        warm_up=1,
        record=lambda step: time.sleep(NAP * (slow == "records")),
    )
    assert set(profile.milliseconds) == set(PARTS)
    assert max(profile.milliseconds, key=profile.milliseconds.get) == slow.partition(" ")[0]
    assert profile.milliseconds[slow.partition(" ")[0]] >= 1e3 * NAP
    assert profile.step >= 1e3 * NAP
    assert (profile.bare >= 1e3 * NAP) == (slow != "records")  # a bare loop records nothing
    assert profile.steps == 4


def test_a_step_that_is_measured_trains_as_one_that_is_not():
    measured, plain = parts(), parts()
    profile_steps(measured[0], measured[1], Images(), BATCHES, measured[2], CPU)
    reader = BatchReader(SeededImages(Images()), 0, CPU)
    list(Engine(plain[0], plain[1], CPU).epoch(reader.read(BATCHES), plain[2]))
    for one, other in zip(measured[0].parameters(), plain[0].parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_recipe_is_measured_in_a_folder_that_is_removed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    quick = ["model.trunk.width=8", "sampler.iterations=3", "loss.memory.size=200", "loss.memory.start_epoch=2"]
    profile = profile_recipe("cbml/digits", overrides=quick, device="cpu", threads=1, steps=4, warm_up=1)
    assert profile.steps == 4
    assert all(profile.milliseconds[part] > 0 for part in set(PARTS) - {"miner"})
    assert profile.as_dict()["ratio"] == profile.ratio > 0
    assert not list(tmp_path.iterdir())
    with pytest.raises(ConfigError, match="has 4 variants; wanted one of them"):
        profile_recipe("cbml/omniglot-small-mvc-weight")
    with pytest.raises(ConfigError, match="steps must be at least 1, not 0"):
        profile_recipe("cbml/digits", steps=0)
