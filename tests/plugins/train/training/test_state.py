"""What checkpoints hold of a run, weights of other runs, and finished runs opened from them."""

import shutil

import pytest

from pml_ext.errors import ConfigError, DataError
from pml_ext_train.training import Checkpointer, open_run
from pml_ext_train.training.state import restore, start_from, state_of

from .whole_runs import built


def test_a_state_of_other_processes_is_refused(tmp_path):
    run = built(tmp_path)
    state = state_of(run) | {"processes": 4}
    text = r"holds a run of 4 processes, not 1; resume it with torchrun --nproc-per-node 4 -m pml_ext train"
    with pytest.raises(ConfigError, match=text):
        restore(run, run.checkpoint("last"), state)


def test_foreign_or_missing_weights_are_refused(runs, tmp_path):
    with pytest.raises(DataError, match="it belongs to a run with another recipe or seed"):
        open_run(runs[1], 0, "cpu")
    (tmp_path / "run").mkdir()
    shutil.copy(runs[0] / "recipe.toml", tmp_path / "run")
    with pytest.raises(DataError, match="no such checkpoint"):
        open_run(tmp_path / "run", 0, "cpu")


def test_weights_of_other_trunks_are_refused(tmp_path):
    run = built(tmp_path / "run")
    with pytest.raises(
        ConfigError, match=r"model.init: .*none is not a finished run \(.*model.pt is missing\); give the folder"
    ):
        start_from(run, tmp_path / "none")
    wide = built(tmp_path / "wide", "model.trunk.width=16")
    Checkpointer(wide).save_model()
    with pytest.raises(
        ConfigError, match=r"model.init: the trunk differs from that of .*wide .*trunk and the image size"
    ):
        start_from(run, tmp_path / "wide")
