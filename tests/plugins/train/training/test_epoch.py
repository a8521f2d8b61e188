"""An epoch that trains, and one that goes on after an interruption."""

import pytest
import torch

from pml_ext_train.training import checkpoint
from pml_ext_train.training.checkpointing import Checkpointer
from pml_ext_train.training.epoch import begin_epoch
from pml_ext_train.training.loop import train_epoch
from pml_ext_train.training.state import model_state, state_of

from .built_runs import built, equal

HEAD = ("sampler.iterations=6", "model.hidden_sizes=[16]", "model.dropout=0.5")


@pytest.mark.parametrize("freeze", ["model.freeze=none", "model.freeze=trunk"])
def test_an_interrupted_epoch_goes_on_with_the_same_random_numbers(tmp_path, monkeypatch, freeze):
    """Dropout draws from torch's generator in each step."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    settings = [*HEAD, freeze, "model.trunk.weights=random"]
    run = built(tmp_path / "run", *settings)
    run.epoch = 1
    at_start = state_of(run)
    epoch = begin_epoch(run, Checkpointer(run), recorded=False)
    for _ in epoch.steps():
        if len(epoch.losses) == 3:
            within = state_of(run) | {"losses": [*epoch.losses], "ranks": [checkpoint.random_state()]}
            checkpoint.save(run.checkpoint("within"), within)

    again = built(tmp_path / "run", *settings)
    checkpoint.set_random_state(at_start["random"])
    checkpointer = Checkpointer(again)
    checkpointer.find_unfinished_epoch()
    again.epoch = 1
    torch.manual_seed(7)  # another process has drawn other numbers
    losses = train_epoch(again, None, checkpointer)
    assert losses == epoch.losses
    assert equal(model_state(again)["embedder"], model_state(run)["embedder"])
