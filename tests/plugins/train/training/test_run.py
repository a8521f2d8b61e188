"""What a run has built, and its state in checkpoints."""

import itertools

import torch
from torch import nn

from pml_ext_train.training import Checkpointer
from pml_ext_train.training.loop import train_epoch

from .whole_runs import built


class Reading(nn.Module):
    """A part of a loss that computes the embeddings after each step."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def after_step(self, run, indices, embeddings):
        self.seen.append(run.embeddings("train").clone())


def test_embeddings_follow_the_weights_of_a_step(tmp_path):
    run = built(tmp_path)
    reading = Reading()
    run.stages[0].loss.reading = reading
    run.epoch = 1
    train_epoch(run, None, Checkpointer(run))
    assert len(reading.seen) == run.stages[0].iterations > 1
    for before, after in itertools.pairwise(reading.seen):
        assert not torch.equal(before, after)
