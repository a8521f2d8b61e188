"""Trunks: shapes, errors, torchvision's models without their heads."""

import pytest
import torch
import torchvision
from torch import nn

from pml_ext import registry
from pml_ext.errors import ConfigError
from pml_ext_train.networks import pretrained_images, trunks as models


def test_convnet_and_mlp_have_their_features():
    trunk = models.convnet(1, 28)
    assert [type(layer).__name__ for layer in trunk][:4] == ["Conv2d", "BatchNorm2d", "ReLU", "MaxPool2d"]
    before = trunk[1].running_mean.clone()
    assert models.output_size(trunk, 1, 28) == 64
    assert trunk.training
    assert torch.equal(trunk[1].running_mean, before)
    assert models.output_size(models.convnet(3, 8, blocks=2, width=5), 3, 8) == 5 * 2 * 2
    assert models.output_size(models.mlp(1, 8, hidden_sizes=[12, 7]), 1, 8) == 7
    with pytest.raises(ConfigError, match="4 blocks halve images of 8 pixels to nothing; set blocks to at most 3"):
        models.convnet(1, 8)
    with pytest.raises(ConfigError, match="fails on images of 3 x 28 x 28"):
        models.output_size(trunk, 3, 28)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda x: x, r"must return vectors, \[B, F\]; two images gave \(2, 1, 28, 28\)"),
        (lambda x: x.flatten(1)[:1], r"two images gave \(1, 784\)"),
        (lambda x: x.flatten(1).half(), r"must return float32 for float32 images, not torch\.float16"),
        (lambda x: x.add_(1).flatten(1), "changes its images in place"),
        (lambda x: [x], "two images gave list"),
    ],
)
def test_a_trunk_must_return_vectors(function, text):
    trunk = nn.Identity()
    trunk.forward = function
    with pytest.raises(ConfigError, match=rf"model.trunk \(torch.nn.modules.linear.Identity\).*{text}"):
        models.output_size(trunk, 1, 28)


SIZES = {"resnet18": (64, 512), "mobilenet_v3_small": (64, 1024), "googlenet": (96, 1024), "inception_v3": (139, 2048)}
SIZES |= {"densenet121": (64, 1024), "swin_t": (64, 768)}  # of images, and of features


@pytest.mark.parametrize("name", SIZES)
def test_torchvision_models_lose_their_last_layer(name):
    size, features = SIZES[name]
    trunk = registry.factory("trunk", f"torchvision/{name}")(3, size)
    assert models.output_size(trunk, 3, size) == features
    trunk.train()
    assert isinstance(trunk(torch.zeros(2, 3, size, size)), torch.Tensor)  # auxiliary heads are off


@pytest.mark.parametrize(
    ("name", "weights", "text"),
    [
        ("squeezenet1_0", None, "squeezenet1_0: its last module is AdaptiveAvgPool2d, not a linear layer"),
        ("resnet18", "BEST", "resnet18: no weights 'BEST'; known: DEFAULT, IMAGENET1K_V1"),
    ],
)
def test_unsupported_models_and_weights_are_refused(name, weights, text):
    with pytest.raises(ConfigError, match=text):
        models.torchvision_trunk(name, 3, 64, weights)


def test_weights_may_be_in_the_cache(monkeypatch, tmp_path):
    def fail(*_args, **_kwargs):
        raise OSError("no network")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(torch.hub, "download_url_to_file", fail)
    name = "shufflenet_v2_x0_5"
    with pytest.raises(ConfigError, match=r"cannot be downloaded \(no network\); put the file into .*checkpoints"):
        models.torchvision_trunk(name, 3, 64, "DEFAULT")
    weights = torchvision.models.get_model_weights(name)["DEFAULT"]
    state = torchvision.models.get_model(name).state_dict()
    state["conv1.0.weight"].fill_(0.125)
    torch.save(state, tmp_path / "hub" / "checkpoints" / weights.url.rsplit("/", 1)[-1])
    assert (models.torchvision_trunk(name, 3, 64, "DEFAULT").conv1[0].weight == 0.125).all()


def test_the_dropout_of_trunks_is_optional(monkeypatch):
    monkeypatch.setattr(
        torchvision.models, "get_model", lambda *_, **__: nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(48, 2))
    )
    images = torch.rand(2, 3, 4, 4)
    for dropout in (True, False):
        trunk = models.torchvision_trunk("vgg11", 3, 4, dropout=dropout).train()
        assert torch.equal(trunk(images), images.flatten(1)) is not dropout


def test_normalization_follows_the_pretrained_weights():
    name = "torchvision/resnet18"
    assert pretrained_images(name, {}) is None
    assert pretrained_images("convnet", {"weights": "DEFAULT"}) is None
    mean, std, *_ = pretrained_images(name, {"weights": "DEFAULT"})
    assert mean == pytest.approx((0.485, 0.456, 0.406))
    assert len(std) == 3
