"""What a run has built, and its state in checkpoints."""

import itertools

import torch
from torch import nn

from pml_ext.training.checkpointing import Checkpointer
from pml_ext.training.loop import train_epoch

from .built_runs import built
from .whole_runs import Ear


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


def test_parts_see_indices_and_embeddings(tmp_path):
    run = built(tmp_path)
    stage = run.stages[0]
    stage.loss.watching = Watching()
    indices = torch.tensor([4, 2])
    embeddings = torch.ones(2, 3)

    watching = stage.parts_with("after_step")
    assert watching == [stage.loss.watching]
    run.call_after_step(watching, indices, embeddings)
    assert stage.loss.watching.seen == (run, indices, embeddings)


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
