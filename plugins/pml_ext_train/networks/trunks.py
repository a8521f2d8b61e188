"""Trunks: networks from images to features, by name."""

import functools
import itertools
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pml_ext.errors import ConfigError, needs_extra, one_line, unknown

from . import efficientnet_lite as lite
from .bn_inception import BNInception
from .modes import evaluation_mode

PREFIX = "torchvision/"
TIMM = "timm/"


def torchvision_models() -> Any:
    """The module ``torchvision.models``, which is slow to import."""
    with needs_extra("train", "a trunk of torchvision"):
        import torchvision.models
    return torchvision.models


def convnet(in_channels: int, image_size: int, blocks: int = 4, width: int = 64) -> nn.Module:
    """Blocks of 3 x 3 convolution to ``width`` channels, batch norm, ReLU and 2 x 2 max-pool."""
    if image_size < 2**blocks:
        raise ConfigError(
            f"convnet: {blocks} blocks halve images of {image_size} pixels to nothing; set blocks to at most "
            f"{image_size.bit_length() - 1}"
        )
    layers: list[nn.Module] = []
    for channels in (in_channels, *[width] * (blocks - 1)):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten())


def mlp(in_channels: int, image_size: int, hidden_sizes: Sequence[int] = (256,)) -> nn.Module:
    """A multilayer perceptron over the pixels, with ReLU after layers of ``hidden_sizes``."""
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in itertools.pairwise([in_channels * image_size**2, *hidden_sizes]):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers)


def identity(in_channels: int, image_size: int) -> nn.Module:
    """The trunk of ``vectors:FILE``, which leaves vectors unchanged."""
    raise ConfigError(
        "identity is the trunk of vectors, data.name = 'vectors:FILE'; for images, choose convnet or another"
    )


def freeze(trunk: nn.Module, patterns: Sequence[str]) -> list[nn.Module]:
    """Freeze the parts of a trunk that match a pattern.

    Patterns are ``"layer1"``, ``"blocks.*"`` or ``"*"``. All other parameters become trainable. Returns the frozen
    parts, which must stay in evaluation mode.
    """
    frozen = parts_named(trunk, patterns)
    trunk.requires_grad_(True)
    for part in frozen:
        part.requires_grad_(False)
    return frozen


def parts_named(trunk: nn.Module, patterns: Sequence[str]) -> list[nn.Module]:
    """Parts of a trunk that match a pattern; ConfigError for a pattern without a match."""
    named = dict(unwrapped_trunk(trunk).named_modules(remove_duplicate=False))
    found: list[nn.Module] = []
    for pattern in patterns:
        fitting = [part for name, part in named.items() if fnmatch(name, pattern)]
        if pattern == "*":
            fitting = [trunk]
        if not fitting:
            raise ConfigError(f"model.freeze: {unknown('part of the trunk', pattern, filter(None, named))}")
        found += fitting
    return found


def torchvision_trunk(
    name: str, in_channels: int, image_size: int, weights: str | None = None, dropout: bool = True
) -> nn.Module:
    """A classification model of torchvision without its last linear layer and auxiliary heads.

    Args:
        name: torchvision's name, such as ``"resnet50"``.
        in_channels: 1 (the gray channel is repeated) or 3.
        image_size: height and width of the images, in pixels; some models need a fixed size.
        weights: torchvision's name of weights, such as ``"IMAGENET1K_V1"``, downloaded on first use; ``"DEFAULT"``
            depends on the release of torchvision. None: random initialization.
        dropout: whether to keep the model's dropout.
    """
    model = _torchvision_model(name, weights)
    _remove_auxiliary_heads(model)
    _remove_last_layer(model, name)
    return _adapted(model, in_channels, dropout)


def _torchvision_model(name: str, weights: str | None) -> nn.Module:
    zoo = torchvision_models()
    tags = ["DEFAULT"] + [tag.name for tag in zoo.get_model_weights(name)]
    if weights is not None and weights not in tags:
        raise ConfigError(f"{PREFIX}{name}: {unknown('weights', weights, tags)}")
    options: dict[str, Any] = {"weights": weights}
    if name in ("googlenet", "inception_v3") and weights is None:  # weights come with the auxiliary heads
        options |= {"aux_logits": False, "init_weights": False}
    try:
        model: nn.Module = zoo.get_model(name, **options)
    except (OSError, RuntimeError) as error:
        raise ConfigError(
            f"{PREFIX}{name}: its weights {weights} cannot be downloaded ({error}); put the file into "
            f"{torch.hub.get_dir()}/checkpoints, or leave out weights"
        ) from None
    return model


def _remove_auxiliary_heads(model: nn.Module) -> None:
    if hasattr(model, "aux_logits"):
        model.aux_logits = False  # type: ignore[assignment]
        for head in ("aux1", "aux2", "AuxLogits"):
            setattr(model, head, None)


def _remove_last_layer(model: nn.Module, name: str) -> None:
    path, last = list(model.named_modules())[-1]
    if not isinstance(last, nn.Linear):
        raise ConfigError(
            f"{PREFIX}{name}: its last module is {type(last).__name__}, not a linear layer; choose another model"
        )
    parent, _, child = path.rpartition(".")
    setattr(model.get_submodule(parent), child, nn.Identity())


def bn_inception(in_channels: int, image_size: int, pooling: Literal["mean", "max"] = "mean") -> nn.Module:
    """BN-Inception without its last linear layer: 1,024 features.

    Weights from a file, such as Cadene's ``bn_inception-52deb4733.pth``, need ``extends = "pipelines/bn-inception"``:
    BGR channels from 0 to 255. ``pooling="max"`` is that of CBML's code. Other arguments as in
    :func:`torchvision_trunk`.
    """
    model = BNInception(pooling=pooling)
    model.last_linear = nn.Identity()
    return _adapted(model, in_channels, dropout=True)


def efficientnet_lite(
    name: str, in_channels: int, image_size: int, weights: Literal["imagenet"] | None = None
) -> nn.Module:
    """EfficientNet-Lite without its classifier: 1,280 features; needs the extra ``photos``.

    Args:
        name: ``"efficientnet-lite0"``, ``"efficientnet-lite1"`` or ``"efficientnet-lite2"``.
        in_channels: 1 (the gray channel is repeated) or 3.
        image_size: height and width of the images, in pixels; any size.
        weights: ``"imagenet"``, from the installed package; None: random initialization.
    """
    return _adapted(lite.build(name, weights), in_channels, dropout=True)


def timm_trunk(
    in_channels: int, image_size: int, name: str = "", weights: str | None = None, dropout: bool = True
) -> nn.Module:
    """The trunk ``timm/NAME``: a model of timm without its classifier.

    ``weights`` is a tag of timm, such as ``"a1_in1k"``; other arguments as in :func:`torchvision_trunk`.
    """
    timm = timm_library(name)
    full = name if weights is None else f"{name}.{weights}"
    options: dict[str, Any] = {"pretrained": weights is not None, "num_classes": 0}
    if getattr(timm_config(name, weights), "fixed_input_size", False):
        options["img_size"] = image_size
    try:
        model: nn.Module = timm.create_model(full, **options)
    except (OSError, RuntimeError, ImportError) as error:
        raise ConfigError(
            f"{TIMM}{full}: the model cannot be built, or its weights not downloaded ({one_line(error)})"
        ) from None
    return _adapted(model, in_channels, dropout)


def timm_library(name: str) -> Any:
    """The package timm; MissingExtraError that mentions ``name`` without it."""
    with needs_extra("timm", f"the trunk {TIMM}{name}"):
        import timm
    return timm


def timm_config(name: str, weights: str | None) -> Any:
    """Timm's description of a model with weights, or None; ConfigError for unknown weights."""
    timm = timm_library(name)
    full = name if weights is None else f"{name}.{weights}"
    try:
        return timm.get_pretrained_cfg(full, allow_unregistered=True)
    except RuntimeError:
        architecture, _, tag = full.partition(".")
        known = [each.partition(".")[2] for each in timm.models.get_arch_pretrained_cfgs(architecture)]
        raise ConfigError(f"{TIMM}{name}: {unknown('weights', tag, known)}") from None


def _adapted(model: nn.Module, in_channels: int, dropout: bool) -> nn.Module:
    """The model for images of ``in_channels``, without dropout unless it is kept."""
    if not dropout:
        for module in model.modules():
            if isinstance(module, nn.Dropout | nn.Dropout2d):
                module.p = 0.0
    return model if in_channels == 3 else nn.Sequential(RepeatedGray(), model)


class RepeatedGray(nn.Module):
    """Repeats the channel of gray images ``[B, 1, S, S]`` three times."""

    def forward(self, images: Tensor) -> Tensor:
        """Map ``[B, 1, S, S]`` to ``[B, 3, S, S]``."""
        return images.expand(-1, 3, -1, -1)


def unwrapped_trunk(trunk: nn.Module) -> nn.Module:
    """A trunk's model without a preceding :class:`RepeatedGray`."""
    if isinstance(trunk, nn.Sequential) and isinstance(trunk[0], RepeatedGray):
        return trunk[1]
    return trunk


def _named(family: Callable[..., nn.Module], name: str) -> Callable[..., nn.Module]:
    """The factory of one model of a family, with the family's docstring."""
    factory = functools.partial(family, name)
    factory.__doc__ = family.__doc__
    factory.__module__ = __name__
    return factory


_BUILTIN: dict[str, Callable[..., nn.Module]] = {
    "convnet": convnet,
    "mlp": mlp,
    "bn-inception": bn_inception,
    "identity": identity,
}
for _name in lite.VARIANTS:
    _BUILTIN[_name] = _named(efficientnet_lite, _name)


def builtin_trunk(name: str) -> Callable[..., nn.Module] | None:
    """The factory of a core trunk, whose name no plugin can use; None for other names."""
    return builtin_trunks().get(name) if name.startswith(PREFIX) else _BUILTIN.get(name)


def builtin_trunks() -> dict[str, Callable[..., nn.Module]]:
    """The core's trunks by name; unsupported models of torchvision raise an error when built."""
    zoo = torchvision_models()
    factories = dict(_BUILTIN)
    for name in zoo.list_models(module=zoo):
        factories[PREFIX + name] = _named(torchvision_trunk, name)
    return factories


def check_packages(name: str, weights: object) -> None:
    """Raise MissingExtraError unless the packages of a core trunk and its weights are installed."""
    if name in lite.VARIANTS:
        lite.check_packages(name, weights)


def output_size(trunk: nn.Module, in_channels: int, image_size: int) -> int:
    """Length of a trunk's features, measured on images of zeros; ConfigError without vectors."""
    shape = (in_channels, image_size, image_size)
    named = f"model.trunk ({type(trunk).__module__}.{type(trunk).__qualname__})"
    try:
        with evaluation_mode(trunk), torch.no_grad():
            images = torch.zeros(2, *shape)
            output = trunk(images)
    except (RuntimeError, AssertionError, ValueError) as error:
        size = " x ".join(map(str, shape))
        raise ConfigError(f"{named} fails on images of {size}: {error}") from None
    if not isinstance(output, Tensor):
        raise ConfigError(f"{named} must return vectors, [B, F]; two images gave {type(output).__name__}")
    if output.ndim != 2 or len(output) != 2:
        raise ConfigError(f"{named} must return vectors, [B, F]; two images gave {tuple(output.shape)}")
    if images._version:
        raise ConfigError(f"{named} changes its images in place, but tests use them too; clone() them first")
    if output.dtype != torch.float32:
        raise ConfigError(f"{named} must return float32 for float32 images, not {output.dtype}")
    return int(output.shape[1])
