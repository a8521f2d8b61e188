"""Trunks cut in two before a block, for the families that people use, and their last blocks."""

import pytest
import torch
import torchvision
from torch import nn

from pml_ext.errors import ConfigError
from pml_ext_train.networks.blocks import SHARE, last_blocks, operations_of
from pml_ext_train.networks.cut import activation_shape, cut_before, frozen_stem
from pml_ext_train.networks.trunks import RepeatedGray, convnet, timm_trunk, torchvision_trunk

TIMM = {
    "resnet18": ("layer3", 64),
    "efficientnet_b0": ("blocks.4.1", 64),
    "convnext_atto": ("stages.2.blocks.1", 64),
    "vit_tiny_patch16_224": ("blocks.8", 224),
    "mobilenetv3_small_100": ("blocks.3", 64),
}


def assert_parts_are_the_trunk(trunk, block, size, channels=3):
    """Compare in evaluation, and in training with the same random numbers."""
    parts = cut_before(trunk, block)
    images = torch.randn(4, channels, size, size, generator=torch.Generator().manual_seed(0))
    for training in (False, True):
        trunk.train(training)
        torch.manual_seed(1)
        whole = trunk(images)
        torch.manual_seed(1)
        activations = parts.stem(images)
        assert activations.shape[1:] == activation_shape(parts.stem, channels, size, torch.device("cpu"))
        assert torch.equal(parts.rest(activations), whole)
    assert {*parts.stem.parameters(), *parts.rest.parameters()} == set(trunk.parameters())


def test_the_head_follows_the_whole_trunk():
    trunk = convnet(1, 8, blocks=2, width=4)
    assert_parts_are_the_trunk(trunk, "head", 8, channels=1)
    assert frozen_stem(trunk, "head").stem is trunk
    assert not any(parameter.requires_grad for parameter in trunk.parameters())


@pytest.mark.parametrize(
    ("name", "block", "channels"),
    [
        ("resnet18", "layer4", 3),
        ("resnet18", "layer3.1", 3),
        ("resnet18", "layer2", 1),
        ("efficientnet_b0", "features.6", 3),
        ("convnext_tiny", "features.5", 3),
    ],
)
def test_torchvision_trunks_are_equal_in_parts(name, block, channels):
    assert_parts_are_the_trunk(torchvision_trunk(name, channels, 64), block, 64, channels)


def test_other_trunks_are_equal_in_parts():
    settings = {"image_size": 32, "patch_size": 8, "num_layers": 3, "num_heads": 2, "hidden_dim": 16, "mlp_dim": 32}
    trunk = torchvision.models.VisionTransformer(**settings, dropout=0.1)
    trunk.heads = nn.Identity()
    assert_parts_are_the_trunk(trunk, "encoder.layers.encoder_layer_1", 32)
    assert_parts_are_the_trunk(convnet(1, 28), "8", 28, channels=1)
    assert_parts_are_the_trunk(EffectBefore(), "second", 8)


@pytest.mark.parametrize("name", TIMM)
def test_timm_trunks_are_equal_in_parts(timm, name):
    block, size = TIMM[name]
    assert_parts_are_the_trunk(timm.create_model(name, num_classes=0), block, size)


def test_the_stem_is_frozen_the_rest_trains():
    trunk = convnet(3, 32, blocks=2)
    parts = frozen_stem(trunk, "4")
    trains = {name: parameter.requires_grad for name, parameter in trunk.named_parameters()}
    assert trains == {name: name.startswith(("4.", "5.")) for name in trains}
    parts.rest(parts.stem(torch.randn(2, 3, 32, 32))).sum().backward()
    assert [trunk[number].weight.grad is None for number in (0, 4)] == [True, False]


# What cannot be cut


class TwoPaths(nn.Module):
    """A trunk whose first activations are used again at the end."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 1)
        self.second = nn.Conv2d(4, 4, 1)
        self.third = nn.Conv2d(4, 4, 1)

    def forward(self, images):
        first = self.first(images)
        return (first + self.third(self.second(first))).mean((2, 3))


class LooksAtValues(TwoPaths):
    def forward(self, images):
        return super().forward(-images if images.sum() > 0 else images)


class DropsItself(TwoPaths):
    def forward(self, images):
        features = self.third(self.second(self.first(images)))
        return nn.functional.dropout(features.mean((2, 3)), 0.5, self.training)


class Twice(TwoPaths):
    def forward(self, images):
        return self.second(self.second(self.first(images))).mean((2, 3))


class EffectBefore(TwoPaths):
    """A trunk with calls that only have an effect."""

    def __init__(self):
        super().__init__()
        self.relu = nn.ReLU(inplace=True)
        self.bias = nn.Parameter(torch.randn(4, 1, 1, generator=torch.Generator().manual_seed(0)))

    def forward(self, images):
        x = self.first(images)
        self.relu(x)
        x.add_(self.bias)
        return self.third(self.second(x)).mean((2, 3))


class EffectAndUse(EffectBefore):
    def forward(self, images):
        return super().forward(images) * self.bias.flatten()


def with_shared_weights():
    trunk = convnet(3, 32, blocks=3, width=8)
    trunk[8].weight = trunk[4].weight
    return trunk


@pytest.mark.parametrize(
    ("trunk", "block", "text"),
    [
        (TwoPaths(), "third", r"TwoPaths cannot be cut before third: 2 values reach it \(.*\), not one tensor"),
        (TwoPaths(), "first", "it is the first of the trunk, so nothing would be frozen"),
        (TwoPaths(), "thrid", "no block of the trunk 'thrid'"),
        (LooksAtValues(), "second", "LooksAtValues cannot be cut before second: its forward cannot be traced"),
        (DropsItself(), "second", "outside its blocks, differs in training"),
        (Twice(), "second", "second is not called once for a batch of images"),
        (EffectAndUse(), "third", "the parts before and after it share parameters"),
        (with_shared_weights(), "8", "the parts before and after it share parameters"),
    ],
)
def test_a_trunk_without_a_cut_is_refused(trunk, block, text):
    with pytest.raises(ConfigError, match=text):
        cut_before(trunk, block)


# Last blocks


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
