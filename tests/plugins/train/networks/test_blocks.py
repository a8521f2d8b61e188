"""The last blocks of trunks of several architectures."""

import pytest
import torch
from torch import nn

from pml_ext_train.networks.blocks import SHARE, last_blocks, operations_of
from pml_ext_train.networks.trunks import RepeatedGray, timm_trunk, torchvision_trunk


def test_our_trunk_is_cut_where_our_recipes_cut_it():
    pytest.importorskip("timm", reason="the extra timm is not installed")
    found = last_blocks(timm_trunk(3, 224, "tf_efficientnet_lite0"), 3, 224)
    assert found.first == "blocks.5"
    assert found.share == pytest.approx(0.366, abs=1e-3)


@pytest.mark.parametrize(("name", "first"), [("resnet18", "layer4"), ("convnext_tiny", "features.6")])
def test_trunks_of_torchvision(name, first):
    found = last_blocks(torchvision_trunk(name, 3, 64), 3, 64)
    assert found.first == first
    assert found.share <= SHARE


def test_a_vision_transformer_is_cut_before_a_third_of_its_blocks():
    pytest.importorskip("timm", reason="the extra timm is not installed")
    trunk = timm_trunk(3, 224, "vit_tiny_patch16_224")
    assert last_blocks(trunk, 3, 224).first == "blocks.8"


def test_a_last_block_that_takes_more_is_the_only_one():
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Linear(8, 100), nn.Linear(100, 2000))
    gray = nn.Sequential(RepeatedGray(), model)
    found = last_blocks(gray, 1, 2)
    assert found.first == "3"
    assert found.share == pytest.approx(100 * 2000 / (12 * 8 + 8 * 100 + 100 * 2000))
    assert operations_of(model, torch.zeros(1, 3, 2, 2)) == 2 * (12 * 8 + 8 * 100 + 100 * 2000)
    assert gray.training


def test_a_trunk_that_cannot_be_traced_has_none():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([nn.Linear(12, 12) for _ in range(3)])

        def forward(self, images):
            for block in self.blocks if images.mean() >= 0 else self.blocks[:1]:
                images = block(images.flatten(1))
            return images

    assert last_blocks(Branching(), 3, 2) is None
