"""The last blocks of trunks of several architectures."""

import pytest
import torch
from torch import nn

from pml_ext_train.networks.blocks import SHARE, last_blocks, operations_of
from pml_ext_train.networks.trunks import RepeatedGray, timm_trunk, torchvision_trunk


@pytest.mark.parametrize(
    ("name", "size", "first"),
    [
        ("timm/tf_efficientnet_lite0", 224, "blocks.5"),  # as in our recipes
        ("timm/vit_tiny_patch16_224", 224, "blocks.8"),
        ("torchvision/resnet18", 64, "layer4"),
        ("torchvision/convnext_tiny", 64, "features.6"),
    ],
)
def test_trunks_are_cut_before_their_last_blocks(name, size, first):
    library, _, model = name.partition("/")
    if library == "timm":
        pytest.importorskip("timm", reason="the extra timm is not installed")
    trunk = timm_trunk(3, size, model) if library == "timm" else torchvision_trunk(model, 3, size)
    found = last_blocks(trunk, 3, size)
    assert found.first == first
    assert found.share <= SHARE


def test_a_large_last_block_is_the_only_one():
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Linear(8, 100), nn.Linear(100, 2000))
    gray = nn.Sequential(RepeatedGray(), model)
    found = last_blocks(gray, 1, 2)
    assert (found.first, gray.training) == ("3", True)
    assert found.share == pytest.approx(100 * 2000 / (12 * 8 + 8 * 100 + 100 * 2000))
    assert operations_of(model, torch.zeros(1, 3, 2, 2)) == 2 * (12 * 8 + 8 * 100 + 100 * 2000)


class Branching(nn.Sequential):
    def forward(self, images):
        return super().forward(images) if images.mean() >= 0 else images


def test_a_trunk_without_trace_has_no_blocks():
    assert last_blocks(Branching(*(nn.Conv2d(3, 3, 1) for _ in range(3)), nn.Flatten()), 3, 2) is None
