"""What checkpoints hold of a run."""

import pytest
import torch

from pml_ext.errors import ConfigError
from pml_ext.training import checkpoint
from pml_ext.training.state import load_model, model_state, restore, state_of

from .built_runs import built, equal, stepped


def test_a_restored_state_is_the_one_that_was_saved(tmp_path):
    run = built(tmp_path / "run")
    twin = built(tmp_path / "run")
    stepped(run)
    checkpoint.save(run.checkpoint("last"), state_of(run))
    state = checkpoint.load(run.checkpoint("last"), run.device, run.identity)
    assert not equal(state_of(run)["parts"], state_of(twin)["parts"])
    restore(twin, run.checkpoint("last"), state)
    assert equal(state_of(run)["parts"], state_of(twin)["parts"])
    assert vars(run.history) == vars(twin.history)
    assert twin.epoch == 1
    drawn = torch.rand(3)
    checkpoint.set_random_state(state["random"])
    assert torch.equal(torch.rand(3), drawn)


def test_a_state_of_other_processes_is_refused(tmp_path):
    run = built(tmp_path)
    state = state_of(run) | {"processes": 4}
    text = r"holds a run of 4 processes, not 1; resume it with torchrun --nproc-per-node 4 -m pml_ext train"
    with pytest.raises(ConfigError, match=text):
        restore(run, run.checkpoint("last"), state)


def test_model_states_have_the_networks_and_losses(tmp_path):
    run = built(tmp_path)
    twin = built(tmp_path, seed=0)
    stepped(run)
    checkpoint.save(run.checkpoint("best"), model_state(run, trunk=False))
    before = {name: value.clone() for name, value in twin.trunk.state_dict().items()}
    assert load_model(twin, "best")["epoch"] == 1
    assert equal(dict(twin.embedder.state_dict()), dict(run.embedder.state_dict()))
    assert equal(dict(twin.stages[0].loss.state_dict()), dict(run.stages[0].loss.state_dict()))
    assert equal(dict(twin.trunk.state_dict()), before)  # a frozen trunk is not in it
