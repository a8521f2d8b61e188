"""Pretrained trunks in options: ``NAME``, ``NAME=WEIGHTS``, a file, or a folder."""

import os
from pathlib import Path
from typing import Any

from pml_ext.errors import ConfigError, unknown

from .efficientnet_lite import IMAGENET, VARIANTS
from .hf import HF, PROJECTED, is_pair
from .pretrained import is_file, read_config, torchvision_tag_of
from .trunks import PREFIX, TIMM, timm_library, torchvision_models

_IN_FOLDER = ("model.safetensors", "pytorch_model.bin")  # files of weights beside a config.json of timm
_PROGRAMS = (".pt2", ".onnx", ".ts", ".torchscript", ".h5", ".keras")


def named_trunk(text: str) -> dict[str, Any]:
    """The table ``[model] trunk`` for an option.

    Args:
        text: ``"timm/NAME"``, ``"torchvision/NAME"`` or ``"efficientnet-lite0"``, with the library's default weights;
            ``"NAME=WEIGHTS"`` with a name of weights, a file, or ``"random"``; ``"hf/NAME"`` or ``"hf/FOLDER"``; a file
            of weights or a model's folder, whose architecture is in ``config.json`` or in torchvision's file name.

    Raises:
        ConfigError: unknown name, or a file or folder without an architecture.
    """
    text = text.strip()
    if text.startswith(HF):
        return _of_transformers(text.removeprefix(HF))
    path = Path(text).expanduser()
    if path.is_dir():
        return _of_folder(path)
    if path.is_file() or ("=" not in text and is_file(text)):
        return _of_file(path)
    name, _, weights = text.partition("=")
    check_name(name)
    if weights:
        if is_file(weights):
            weights = _absolute(weights)
        return {"name": name, "weights": weights}
    return _with_own_weights(name)


def check_name(name: str) -> None:
    """Raise ConfigError, with the nearest names, for a model that timm or torchvision lacks."""
    if name.startswith(TIMM):
        short = name.removeprefix(TIMM).partition(".")[0]
        known = timm_library(short).list_models()
        if short not in known:
            raise ConfigError(unknown("model of timm", short, known))
    elif name.startswith(PREFIX):
        zoo = torchvision_models()
        known = zoo.list_models(module=zoo)
        if name.removeprefix(PREFIX) not in known:
            raise ConfigError(unknown("model of torchvision", name.removeprefix(PREFIX), known))


def _with_own_weights(name: str) -> dict[str, Any]:
    """A trunk with its library's default weights, if there are any."""
    if name in VARIANTS:
        return {"name": name, "weights": IMAGENET}
    if name.startswith(PREFIX):
        default = torchvision_models().get_model_weights(name.removeprefix(PREFIX)).DEFAULT
        return {"name": name, "weights": default.name}
    if not name.startswith(TIMM):
        return {"name": name}
    architecture, _, tag = name.removeprefix(TIMM).partition(".")
    if not tag:
        timm = timm_library(architecture)
        found = timm.get_pretrained_cfg(architecture)
        if found is None or not found.has_weights:
            raise ConfigError(
                f"{name}: timm has no weights for it, so its features would be random. Choose another model, or type "
                f"{name}=FILE.safetensors"
            )
        tag = found.tag
    return {"name": f"{TIMM}{architecture}", "weights": tag}


def _of_transformers(name: str) -> dict[str, Any]:
    """A model of transformers with its own weights, and for a pair with its projection."""
    path = Path(name).expanduser()
    if path.is_dir():
        name = _absolute(name)
    elif name.startswith((".", "/", "~", os.sep)) or name.count("/") > 1:
        raise ConfigError(
            f"{HF}{name}: no such folder. Write it with model.save_pretrained(FOLDER), or name a model on the Hugging "
            f"Face hub, {HF}ORGANIZATION/NAME"
        )
    table = {"name": f"{HF}{name}", "weights": "DEFAULT"}
    if path.is_dir() and not read_config(path):
        raise ConfigError(f"{HF}{name}: the folder has no config.json; write it with model.save_pretrained(FOLDER)")
    if is_pair(name):
        table["pool"] = PROJECTED
    return table


def _of_folder(folder: Path) -> dict[str, Any]:
    about = read_config(folder)
    if "model_type" in about:
        return _of_transformers(str(folder))
    for name in _IN_FOLDER:
        if "architecture" in about and (folder / name).is_file():
            return _of_file(folder / name)
    raise ConfigError(
        f"{folder}: no model of timm or transformers, because config.json and weights are not both there; type its "
        f"folder, {TIMM}NAME, {PREFIX}NAME or NAME=FILE"
    )


def _of_file(file: Path) -> dict[str, Any]:
    """The trunk of a file of weights, known by config.json beside it or by its name."""
    if not file.is_file():
        raise ConfigError(f"{file}: no such file; type a .safetensors or .pth file, or the name of a trunk")
    if not is_file(str(file)):
        is_program = file.suffix in _PROGRAMS
        kind = "a program, which is never run" if is_program else "not a file of weights"
        raise ConfigError(
            f"{file}: {kind}. Save the weights with torch.save(model.state_dict(), 'FILE.pth'), and type "
            f"NAME=FILE.pth, for example {TIMM}resnet50=FILE.pth"
        )
    about = read_config(file.parent)
    if "model_type" in about:
        return _of_transformers(str(file.parent))
    if "architecture" in about:
        name = f"{TIMM}{about['architecture']}"
        check_name(name)
        return {"name": name, "weights": _absolute(file)}
    for name in torchvision_models().list_models(module=torchvision_models()):
        if torchvision_tag_of(name, file.name) is not None:
            return {"name": f"{PREFIX}{name}", "weights": _absolute(file)}
    raise ConfigError(
        f"{file}: the architecture of these weights is unknown; type {TIMM}NAME=FILE or {PREFIX}NAME=FILE, or put "
        "timm's config.json beside the file"
    )


def _absolute(path: str | Path) -> str:
    """The absolute path of a file; the text itself for a name in torch hub's folder."""
    path = Path(path).expanduser()
    return os.path.abspath(path) if path.exists() else str(path)
