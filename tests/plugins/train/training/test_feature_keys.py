"""What features depend on."""

import pytest
import torch
from torch import nn

from pml_ext_train.training.batch_norm import synchronize_batch_norm
from pml_ext_train.training.feature_keys import trunk_digest


def batch_norms():
    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.BatchNorm2d(4), nn.Flatten())


def timm_batch_norms():
    layers = pytest.importorskip("timm.layers", reason="the extra timm is not installed")
    return nn.Sequential(layers.BatchNormAct2d(4), nn.Flatten())


@pytest.mark.parametrize("build", [batch_norms, timm_batch_norms])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_features_are_found_after_a_run_of_several_processes(build, device):
    trunk = build()
    plain = trunk_digest(trunk, "steps")
    joined = synchronize_batch_norm(trunk, torch.device(device))
    assert "Sync" in str(joined) or "Joined" in str(joined)
    assert trunk_digest(joined, "steps") == plain
    assert trunk_digest(joined, "other steps") != plain
