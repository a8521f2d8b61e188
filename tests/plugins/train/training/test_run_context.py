import pytest
import torch

from pml_ext_train.launch.launch import train
from pml_ext_train.networks.modes import is_batch_norm
from pml_ext_train.training.batch_norm import JoinedBatchNorm
from pml_ext_train.training.state import open_run

from ....overrides import typed
from .built_runs import built


def test_processes_join_batch_norms_of_heads(tmp_path, monkeypatch):
    monkeypatch.setattr("pml_ext_train.training.view.num_processes", lambda: 2)
    run = built(tmp_path / "run", "model.hidden_sizes=[8]", "model.norm=batch")
    norms = [part for part in run.network.modules() if is_batch_norm(part)]
    assert any(part in norms for part in run.embedder.modules())
    assert all(isinstance(part, JoinedBatchNorm) for part in norms)


@pytest.mark.parametrize(("setting", "expected"), [(None, True), ("true", True), ("false", False)])
def test_trunks_on_cpus_use_channels_last(tmp_path, without_report, setting, expected):
    overrides = ["schedule.epochs=1", "schedule.milestones=[]", "schedule.name=constant", "sampler.iterations=1"]
    if setting is not None:
        overrides.append(f"engine.channels_last={setting}")
    train("cbml/digits", out=tmp_path / "run", overrides=typed(overrides), device="cpu")
    view = open_run(tmp_path / "run", 0, "cpu")
    weights = [parameter for parameter in view.trunk.parameters() if parameter.ndim == 4 and parameter.shape[1] > 1]
    assert weights
    for weight in weights:
        assert weight.is_contiguous(memory_format=torch.channels_last) == expected
