"""What a run has built, and its state in checkpoints."""

import itertools

import pytest
import torch
from torch import nn

from pml_ext.distributed import JoinedBatchNorm
from pml_ext.errors import ConfigError
from pml_ext.networks.modes import is_batch_norm
from pml_ext.recipe import load_recipes
from pml_ext.training import checkpoint
from pml_ext.training.checkpointing import Checkpointer
from pml_ext.training.loop import train_epoch
from pml_ext.training.run import Run

from ..overrides import typed
from .whole_runs import Ear

SHORT = ("schedule.epochs=4", "schedule.milestones=[2]", "sampler.iterations=2", "model.trunk.width=8")


def built(folder, *overrides, recipe="pml/proxy-anchor/digits", **settings):
    (loaded,) = load_recipes(recipe, typed([*SHORT, *overrides])).values()
    folder.mkdir(exist_ok=True)
    return Run(loaded, recipe, folder, **settings)


def stepped(run):
    """Change everything that training changes."""
    run.epoch = 1
    run.enter_stage(run.stages[0])
    objective, _ = run.objective(run.stages[0], recorded=False)
    for optimizer in objective.optimizers.values():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    for schedule in run.schedules.values():
        schedule.step()
    run.history.skipped = 3
    run.warn("careful")


def equal(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def test_a_restored_state_is_the_one_that_was_saved(tmp_path):
    run = built(tmp_path / "run")
    twin = built(tmp_path / "run")
    stepped(run)
    checkpoint.save(run.checkpoint("last"), run.state())
    state = checkpoint.load(run.checkpoint("last"), run.device, run.identity)
    assert not equal(run.state()["parts"], twin.state()["parts"])
    twin.restore(run.checkpoint("last"), state)
    assert equal(run.state()["parts"], twin.state()["parts"])
    assert vars(run.history) == vars(twin.history)
    assert twin.epoch == 1
    drawn = torch.rand(3)
    checkpoint.set_random_state(state["random"])
    assert torch.equal(torch.rand(3), drawn)


def test_a_state_of_other_processes_is_refused(tmp_path):
    run = built(tmp_path)
    state = run.state() | {"processes": 4}
    text = r"holds a run of 4 processes, not 1; resume it with torchrun --nproc-per-node 4 -m pml_ext train"
    with pytest.raises(ConfigError, match=text):
        run.restore(run.checkpoint("last"), state)


def test_model_states_have_the_networks_and_losses(tmp_path):
    run = built(tmp_path)
    twin = built(tmp_path, seed=0)
    stepped(run)
    checkpoint.save(run.checkpoint("best"), run.model_state(trunk=False))
    before = {name: value.clone() for name, value in twin.trunk.state_dict().items()}
    assert twin.load_model("best")["epoch"] == 1
    assert equal(dict(twin.embedder.state_dict()), dict(run.embedder.state_dict()))
    assert equal(dict(twin.stages[0].loss.state_dict()), dict(run.stages[0].loss.state_dict()))
    assert equal(dict(twin.trunk.state_dict()), before)  # a frozen trunk is not in it


def test_a_stage_sets_its_learning_rate_once(tmp_path):
    stage = 'stages=[{epochs=2, lr_factor=0.5, loss={name="cbml"}}]'
    run = built(tmp_path, stage, "schedule.name=constant", "schedule.milestones=[]", recipe="cbml/digits")
    (group,) = run.optimizers["trunk_optimizer"].param_groups
    rates = []
    first = group["lr"]
    for epoch in (1, 2, 3, 4):
        run.epoch = epoch
        run.enter_stage(run.stages.of(epoch))
        rates.append(group["lr"] / first)
    assert rates == [0.5, 0.5, 1, 1]


def test_a_warning_is_told_once(tmp_path):
    ear = Ear()
    run = built(tmp_path, listener=ear)
    before = len(ear.warnings)
    for text in ("one", "", "two", "one"):
        run.warn(text)
    assert ear.warnings[before:] == run.history.warnings[before:] == ["one", "two"]


class Watching(nn.Module):
    """A part of a loss that keeps what it is called with."""

    def after_step(self, run, indices, embeddings):
        self.seen = run, indices, embeddings


def test_parts_see_the_steps_that_were_taken(tmp_path):
    run = built(tmp_path)
    stage = run.stages[0]
    stage.loss.watching = Watching()
    indices = torch.tensor([4, 2])
    embeddings = torch.ones(2, 3)

    class Taken:
        skipped = False

    Taken.embeddings = embeddings
    run.call_after_step(stage, indices, Taken)
    assert stage.loss.watching.seen == (run, indices, embeddings)
    del stage.loss.watching.seen
    Taken.skipped = True
    run.call_after_step(stage, indices, Taken)
    assert not hasattr(stage.loss.watching, "seen")


def test_weights_of_no_run_or_another_trunk_are_refused(tmp_path):
    run = built(tmp_path / "run")
    with pytest.raises(
        ConfigError, match=r"model.init: .*none is no finished run \(no .*model.pt\); wanted the folder"
    ):
        run.start_from(tmp_path / "none")
    wide = built(tmp_path / "wide", "model.trunk.width=16")
    checkpoint.save(wide.checkpoint("model"), wide.model_state())
    with pytest.raises(ConfigError, match=r"model.init: the trunk of .*wide is another one .*trunk and image size"):
        run.start_from(tmp_path / "wide")


class Reading(nn.Module):
    """A part of a loss that computes the embeddings after each step."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def after_step(self, run, indices, embeddings):
        self.seen.append(run.embeddings("train").clone())


def test_embeddings_after_a_step_are_those_of_the_new_weights(tmp_path):
    run = built(tmp_path)
    reading = Reading()
    run.stages[0].loss.reading = reading
    run.epoch = 1
    train_epoch(run, None, Checkpointer(run))
    assert len(reading.seen) == run.stages[0].iterations > 1
    for before, after in itertools.pairwise(reading.seen):
        assert not torch.equal(before, after)


def test_views_of_a_frozen_trunk_are_computed_before_the_first_epoch(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    frozen = ["model.freeze=trunk", "model.trunk.weights=random", "model.views=2"]
    run = built(tmp_path / "run", *frozen, "data.augment.transforms=[{name='RandomRotation', degrees=15}]")
    run.compute_views()
    monkeypatch.setattr("pml_ext.training.features.FeatureCache.of", None)
    assert len(run.reader_of(run.stages[0]).views) == 2


def test_several_processes_join_the_batch_norms_of_the_head(tmp_path, monkeypatch):
    monkeypatch.setattr("pml_ext.training.view.num_processes", lambda: 2)
    run = built(tmp_path / "run", "model.hidden_sizes=[8]", "model.norm=batch")
    norms = [part for part in run.network.modules() if is_batch_norm(part)]
    assert any(part in norms for part in run.embedder.modules())
    assert all(isinstance(part, JoinedBatchNorm) for part in norms)
