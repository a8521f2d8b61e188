"""The view of a run: its network, and embeddings that are not finite."""

import math

import pytest
import torch

from pml_ext.errors import TrainingError
from pml_ext_train.networks.modes import is_batch_norm
from pml_ext_train.training import evaluate_split
from pml_ext_train.training.batch_norm import JoinedBatchNorm

from .whole_runs import built


def test_embeddings_that_are_not_finite_are_not_ranked(tmp_path):
    run = built(tmp_path)
    torch.nn.init.constant_(run.embedder.bias, math.nan)
    with pytest.raises(TrainingError, match="the network gives nan for test images"):
        evaluate_split(run, "test")


def test_processes_join_batch_norms_of_heads(tmp_path, monkeypatch):
    monkeypatch.setattr("pml_ext_train.training.view.num_processes", lambda: 2)
    run = built(tmp_path / "run", "model.hidden_sizes=[8]", "model.norm=batch")
    norms = [part for part in run.network.modules() if is_batch_norm(part)]
    assert any(part in norms for part in run.embedder.modules())
    assert all(isinstance(part, JoinedBatchNorm) for part in norms)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [([], True), (["engine.channels_last=true"], True), (["engine.channels_last=false"], False)],
)
def test_trunks_on_cpus_use_channels_last(tmp_path, settings, expected):
    run = built(tmp_path, *settings)
    weights = [parameter for parameter in run.trunk.parameters() if parameter.ndim == 4 and parameter.shape[1] > 1]
    assert weights
    assert all(weight.is_contiguous(memory_format=torch.channels_last) == expected for weight in weights)
