"""Profiles of training steps, by a clock that moves where a part takes its time."""

import pytest
import torch
from pytorch_metric_learning import losses
from torch import nn

from pml_ext.errors import ConfigError
from pml_ext.experiment import profile
from pml_ext.experiment.batches import BatchReader, EpochBatches
from pml_ext.experiment.engine import Engine, Objective
from pml_ext.experiment.profile import PARTS, profile_recipe, profile_steps

CPU = torch.device("cpu")
BATCHES = EpochBatches([list(range(8))] * 5, 0, 1)


class Clock:
    """Counts naps, and a microsecond per look."""

    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        self.seconds += 1e-6
        return self.seconds


class Naps(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, forward, backward):
        ctx.nap = backward
        forward()
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        ctx.nap()
        return gradient, None, None


class Slow(nn.Module):
    def __init__(self, inner, forward, backward):
        super().__init__()
        self.inner, self.naps = inner, (forward, backward)

    def forward(self, first, *rest):
        return self.inner(Naps.apply(first, *self.naps), *rest)


class Images(torch.utils.data.Dataset):
    def __init__(self, nap):
        self.nap = nap

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 0:
            self.nap()
        return torch.rand(4, generator=torch.Generator().manual_seed(index)), index % 2


def parts(clock, slow=""):
    """Trunk, embedder, images and objective, one part of which takes a second."""

    def nap():  # unlike a method it is not copied with a module
        clock.seconds += 1.0

    def naps(*names):
        return [nap if name == slow else (lambda: None) for name in names]

    class SGD(torch.optim.SGD):
        def step(self):
            naps("optimizer")[0]()
            super().step()

    torch.manual_seed(0)
    # What naps in the backward pass lies behind weights, so that it has a gradient.
    trunk = nn.Sequential(nn.Linear(4, 4), Slow(nn.Linear(4, 4), *naps("network forward", "network backward")))
    loss = Slow(losses.ContrastiveLoss(), *naps("loss forward", "loss backward"))
    embedder = nn.Linear(4, 3)
    optimizer = SGD([*trunk.parameters(), *embedder.parameters()], lr=0.1)
    miner = (lambda *_: nap()) if slow == "miner" else None
    return trunk, embedder, Images(*naps("reading")), Objective(loss, {"all": optimizer}, miner), *naps("records")


WHERE = "reading, network forward, network backward, miner, loss forward, loss backward, optimizer, records"


@pytest.mark.parametrize("slow", WHERE.split(", "))
def test_time_is_found_in_its_part(slow, monkeypatch):
    monkeypatch.setattr(profile, "timer", clock := Clock())
    trunk, embedder, images, objective, record = parts(clock, slow)
    engine = Engine(trunk, embedder, CPU)
    found = profile_steps(engine, images, BATCHES, objective, warm_up=1, record=lambda step: record())
    part = slow.partition(" ")[0]
    assert found.milliseconds == pytest.approx({name: 1e3 * (name == part) for name in PARTS}, abs=0.1)
    assert found.step == pytest.approx(1e3, abs=0.1)
    assert found.bare == pytest.approx(1e3 * (slow != "records"), abs=0.1)  # a bare loop records nothing
    assert found.steps == 4


def test_a_measured_step_trains_like_any_other():
    (trunk, embedder, images, objective, _), plain = parts(Clock()), parts(Clock())
    profile_steps(Engine(trunk, embedder, CPU), images, BATCHES, objective)
    reader = BatchReader(plain[2], 0, CPU)
    list(Engine(plain[0], plain[1], CPU).epoch(reader.read(BATCHES), plain[3]))
    for one, other in zip(trunk.parameters(), plain[0].parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_recipe_is_measured_in_a_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    quick = ["model.trunk.width=8", "sampler.iterations=3", "loss.memory.size=200", "loss.memory.start_epoch=2"]
    found = profile_recipe("cbml/digits", overrides=quick, device="cpu", threads=1, steps=4, warm_up=1)
    assert found.steps == 4
    assert all(found.milliseconds[part] > 0 for part in set(PARTS) - {"miner"})
    assert found.ratio > 0
    assert not list(tmp_path.iterdir())
    with pytest.raises(ConfigError, match="has 4 variants; wanted one of them"):
        profile_recipe("cbml/omniglot-small-mvc-weight")
