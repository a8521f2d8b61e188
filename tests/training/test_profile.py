"""Times of training steps, by a clock that moves where a part takes its time."""

import pytest
import torch
from pytorch_metric_learning import losses
from torch import nn

from pml_ext.errors import ConfigError
from pml_ext.training import profile
from pml_ext.training.batches import Batch
from pml_ext.training.engine import Engine, Objective
from pml_ext.training.profile import profile_recipe, profile_steps

from ..overrides import typed

CPU = torch.device("cpu")
LABELS = torch.arange(8) % 2


class Clock:
    """Counts naps, and a microsecond per look."""

    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        self.seconds += 1e-6
        return self.seconds


@pytest.mark.parametrize("slow", ["reading", "network", "records"])
def test_both_loops_are_timed(slow, monkeypatch):
    monkeypatch.setattr(profile, "timer", clock := Clock())

    def nap():  # unlike a method it is not copied with a module
        clock.seconds += 1.0

    def naps(name):
        return nap if name == slow else (lambda: None)

    def batches():
        for _ in range(5):
            naps("reading")()
            yield Batch(torch.rand(8, 4), LABELS)

    def plain():
        for images, labels, _ in batches():
            yield images, labels

    trunk = nn.Linear(4, 4)
    embedder = nn.Linear(4, 3)
    slow_network = naps("network")
    trunk.register_forward_hook(lambda *_: slow_network())
    optimizer = torch.optim.SGD([*trunk.parameters(), *embedder.parameters()], lr=0.1)
    objective = Objective(losses.ContrastiveLoss(), {"all": optimizer})
    record = naps("records")
    engine = Engine(trunk, embedder, CPU)
    found = profile_steps(engine, objective, batches(), plain(), 5, warm_up=1, record=lambda step: record())
    assert found.step == pytest.approx(1e3, abs=0.1)
    assert found.bare == pytest.approx(1e3 * (slow != "records"), abs=0.1)  # a bare loop records nothing
    assert found.steps == 4


def test_a_recipe_is_measured_in_a_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    quick = ["model.trunk.width=8", "sampler.iterations=3", "loss.memory.size=200", "loss.memory.start_epoch=2"]
    found = profile_recipe("cbml/digits", overrides=typed(quick), device="cpu", threads=1, steps=4, warm_up=1)
    assert found.steps == 4
    assert min(found.step, found.bare, found.ratio) > 0
    assert not list(tmp_path.iterdir())
    with pytest.raises(ConfigError, match="has 4 variants; wanted one of them"):
        profile_recipe("cbml/omniglot-small-mvc-weight")
