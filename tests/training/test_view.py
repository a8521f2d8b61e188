"""The view of a finished run: its data, and the network that was tested."""

import json
import shutil

import pytest
import torch

from pml_ext.errors import DataError
from pml_ext.training.evaluation import nearest
from pml_ext.training.launch import train
from pml_ext.training.view import open_run

from ..overrides import typed


def test_a_finished_run_is_opened_with_its_weights(runs):
    metrics = json.loads((runs[1] / "metrics.json").read_text())
    view = open_run(runs[1], metrics["seed"], "cpu")
    right = nearest(view, view.queries).right[:, 0]
    assert right.double().mean().item() == pytest.approx(metrics["after"]["recall_at_1"])


def test_a_run_of_another_seed_or_without_weights_is_refused(runs, tmp_path):
    with pytest.raises(DataError, match="it is of another run, of another recipe or seed"):
        open_run(runs[1], 0, "cpu")
    (tmp_path / "run").mkdir()
    shutil.copy(runs[0] / "recipe.toml", tmp_path / "run")
    with pytest.raises(DataError, match="no such checkpoint"):
        open_run(tmp_path / "run", 0, "cpu")


@pytest.mark.parametrize(("setting", "expected"), [(None, True), ("true", True), ("false", False)])
def test_a_trunk_on_a_cpu_is_in_channels_last(tmp_path, without_report, setting, expected):
    overrides = ["schedule.epochs=1", "schedule.milestones=[]", "schedule.name=constant", "sampler.iterations=1"]
    if setting is not None:
        overrides.append(f"engine.channels_last={setting}")
    train("cbml/digits", out=tmp_path / "run", overrides=typed(overrides), device="cpu")
    view = open_run(tmp_path / "run", 0, "cpu")
    weights = [parameter for parameter in view.trunk.parameters() if parameter.ndim == 4 and parameter.shape[1] > 1]
    assert weights
    for weight in weights:
        assert weight.is_contiguous(memory_format=torch.channels_last) == expected
