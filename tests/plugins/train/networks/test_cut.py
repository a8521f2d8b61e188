"""Trunks cut in two before a block: both parts together are the trunk, for the families that people use."""

import pytest
import torch
import torchvision
from torch import nn

from pml_ext.errors import ConfigError
from pml_ext_train.networks.cut import activation_shape, cut_before, frozen_stem
from pml_ext_train.networks.trunks import convnet, torchvision_trunk

SMALL_TRANSFORMER = {
    "image_size": 32,
    "patch_size": 8,
    "num_layers": 3,
    "num_heads": 2,
    "hidden_dim": 16,
    "mlp_dim": 32,
}
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
    in_parts = {*parts.stem.parameters(), *parts.rest.parameters()}
    assert in_parts == set(trunk.parameters())


def test_before_the_head_lies_the_whole_trunk():
    trunk = convnet(1, 8, blocks=2, width=4)
    assert_parts_are_the_trunk(trunk, "head", 8, channels=1)
    parts = frozen_stem(trunk, "head")
    assert parts.stem is trunk
    assert not any(parameter.requires_grad for parameter in trunk.parameters())


@pytest.mark.parametrize(
    ("name", "block"),
    [
        ("resnet18", "layer4"),
        ("resnet18", "layer3.1"),
        ("efficientnet_b0", "features.6"),
        ("convnext_tiny", "features.5"),
    ],
)
def test_torchvision_trunks(name, block):
    assert_parts_are_the_trunk(torchvision_trunk(name, 3, 64), block, 64)


def test_torchvision_vision_transformer():
    trunk = torchvision.models.VisionTransformer(**SMALL_TRANSFORMER, dropout=0.1)
    trunk.heads = nn.Identity()
    assert_parts_are_the_trunk(trunk, "encoder.layers.encoder_layer_1", 32)


def test_convnet_with_gray_images():
    assert_parts_are_the_trunk(convnet(1, 28), "8", 28, channels=1)
    assert_parts_are_the_trunk(torchvision_trunk("resnet18", 1, 32), "layer2", 32, channels=1)


@pytest.mark.parametrize("name", TIMM)
def test_timm_trunks(name):
    timm = pytest.importorskip("timm")
    block, size = TIMM[name]
    assert_parts_are_the_trunk(timm.create_model(name, num_classes=0), block, size)


def test_the_stem_is_frozen_and_the_rest_is_not():
    trunk = convnet(3, 32, blocks=2)
    parts = frozen_stem(trunk, "4")
    trains = {name: parameter.requires_grad for name, parameter in trunk.named_parameters()}
    assert trains == {name: name.startswith(("4.", "5.")) for name in trains}
    parts.rest(parts.stem(torch.randn(2, 3, 32, 32))).sum().backward()
    assert trunk[0].weight.grad is None
    assert trunk[4].weight.grad is not None


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
        if images.sum() > 0:
            images = -images
        return super().forward(images)


class DropsItself(TwoPaths):
    def forward(self, images):
        features = self.third(self.second(self.first(images)))
        return nn.functional.dropout(features.mean((2, 3)), 0.5, self.training)


class Twice(TwoPaths):
    def forward(self, images):
        first = self.first(images)
        return self.second(self.second(first)).mean((2, 3))


@pytest.mark.parametrize(
    ("trunk", "block", "text"),
    [
        (TwoPaths(), "third", "TwoPaths cannot be cut before third: 2 values are passed on before it"),
        (TwoPaths(), "first", "it is the first of the trunk, so nothing would be frozen"),
        (TwoPaths(), "thrid", "no block of the trunk 'thrid'"),
        (LooksAtValues(), "second", "LooksAtValues cannot be cut before second: its forward cannot be traced"),
        (DropsItself(), "second", "outside of its blocks, does something else in training"),
        (Twice(), "second", "second is not called once for a batch of images"),
    ],
)
def test_a_trunk_that_cannot_be_cut_is_named(trunk, block, text):
    with pytest.raises(ConfigError, match=text):
        cut_before(trunk, block)


def test_parts_that_share_parameters_are_refused():
    trunk = convnet(3, 32, blocks=3, width=8)
    trunk[8].weight = trunk[4].weight
    with pytest.raises(ConfigError, match="the parts before and after it share parameters"):
        cut_before(trunk, "8")


class ChangesInPlace(TwoPaths):
    """A trunk with calls for their effect alone."""

    def __init__(self):
        super().__init__()
        self.relu = nn.ReLU(inplace=True)
        self.bias = nn.Parameter(torch.randn(4, 1, 1, generator=torch.Generator().manual_seed(0)))

    def forward(self, images):
        x = self.first(images)
        self.relu(x)
        x.add_(self.bias)
        x = self.second(x)
        return (self.third(x) * self.bias[0]).mean((2, 3))


class EffectBefore(ChangesInPlace):
    def forward(self, images):
        x = self.first(images)
        self.relu(x)
        x.add_(self.bias)
        return self.third(self.second(x)).mean((2, 3))


def test_calls_for_their_effect_stay_before_the_cut():
    assert_parts_are_the_trunk(EffectBefore(), "second", 8)
    with pytest.raises(ConfigError, match="share parameters"):
        cut_before(ChangesInPlace(), "third")
