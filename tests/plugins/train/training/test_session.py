"""A finished run, opened: its network on its data."""

import json
import shutil

import pytest

from pml_ext.errors import DataError
from pml_ext_train.training.evaluation import nearest
from pml_ext_train.training.session import open_run


def test_a_finished_run_is_opened_with_its_weights(runs):
    metrics = json.loads((runs[1] / "metrics.json").read_text())
    view = open_run(runs[1], metrics["seed"], "cpu")
    right = nearest(view, view.queries).right[:, 0]
    assert right.double().mean().item() == pytest.approx(metrics["after"]["recall_at_1"])


def test_a_run_of_another_seed_or_without_weights_is_refused(runs, tmp_path):
    with pytest.raises(DataError, match="it belongs to a run with another recipe or seed"):
        open_run(runs[1], 0, "cpu")
    (tmp_path / "run").mkdir()
    shutil.copy(runs[0] / "recipe.toml", tmp_path / "run")
    with pytest.raises(DataError, match="no such checkpoint"):
        open_run(tmp_path / "run", 0, "cpu")
