"""What checkpoints hold of a run."""

import pytest

from pml_ext.errors import ConfigError
from pml_ext_train.training.state import restore, state_of

from .built_runs import built


def test_a_state_of_other_processes_is_refused(tmp_path):
    run = built(tmp_path)
    state = state_of(run) | {"processes": 4}
    text = r"holds a run of 4 processes, not 1; resume it with torchrun --nproc-per-node 4 -m pml_ext train"
    with pytest.raises(ConfigError, match=text):
        restore(run, run.checkpoint("last"), state)
