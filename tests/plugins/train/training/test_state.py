"""What checkpoints hold of a run, weights of other runs, and finished runs opened from them."""

import json
import shutil

import pytest

from pml_ext.errors import ConfigError, DataError
from pml_ext_train.training import checkpoint
from pml_ext_train.training.evaluation import nearest
from pml_ext_train.training.state import model_state, open_run, restore, start_from, state_of

from .built_runs import built


def test_a_state_of_other_processes_is_refused(tmp_path):
    run = built(tmp_path)
    state = state_of(run) | {"processes": 4}
    text = r"holds a run of 4 processes, not 1; resume it with torchrun --nproc-per-node 4 -m pml_ext train"
    with pytest.raises(ConfigError, match=text):
        restore(run, run.checkpoint("last"), state)


def test_a_finished_run_is_opened_with_its_weights(runs):
    metrics = json.loads((runs[1] / "metrics.json").read_text())
    view = open_run(runs[1], metrics["seed"], "cpu")
    right = nearest(view, view.queries).right[:, 0]
    assert right.double().mean().item() == pytest.approx(metrics["after"]["recall_at_1"])


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
    checkpoint.save(wide.checkpoint("model"), model_state(wide))
    with pytest.raises(
        ConfigError, match=r"model.init: the trunk differs from that of .*wide .*trunk and the image size"
    ):
        start_from(run, tmp_path / "wide")
