"""What a run has built, and its state in checkpoints."""

import itertools

import torch
from torch import nn

from pml_ext_train.training.checkpointing import Checkpointer
from pml_ext_train.training.loop import train_epoch

from .built_runs import built


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
