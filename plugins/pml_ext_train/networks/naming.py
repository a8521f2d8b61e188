"""Pretrained trunks as options of commands name them: ``NAME``, ``NAME=WEIGHTS``, a file, a model's folder."""

from __future__ import annotations

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
    """Return the table ``[model] trunk`` of a trunk with weights that an option names.

    Args:
        text: ``"timm/NAME"``, ``"torchvision/NAME"`` or ``"efficientnet-lite0"``, with the library's own choice of
            weights, which the table states; ``"NAME=WEIGHTS"`` with a name of weights, a file, or ``"random"``;
            ``"hf/NAME"`` or ``"hf/FOLDER"``; a file of weights, or a model's folder, whose architecture ``config.json``
            beside it or torchvision's name of the file tells. Names without known weights stay alone.

    ConfigError for an unknown name, and for a file or folder that does not tell its architecture.
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
    """Raise ConfigError for a name that timm or torchvision does not have, with those that are nearest."""
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
    """Return a trunk with the weights that its library takes by default; alone, if it has none."""
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
                f"{name}: timm has no weights of it, so that its features would be random; wanted another model, or a "
                f"file: {name}=FILE.safetensors"
            )
        tag = found.tag
    return {"name": f"{TIMM}{architecture}", "weights": tag}


def _of_transformers(name: str) -> dict[str, Any]:
    """Return a model of transformers with its own weights; of a pair, the part whose space its texts share."""
    path = Path(name).expanduser()
    if path.is_dir():
        name = _absolute(name)
    elif name.startswith((".", "/", "~", os.sep)) or name.count("/") > 1:
        raise ConfigError(
            f"{HF}{name}: no such folder; wanted one that model.save_pretrained(FOLDER) has written, or the name of a "
            f"model on the Hugging Face hub, {HF}ORGANIZATION/NAME"
        )
    table = {"name": f"{HF}{name}", "weights": "DEFAULT"}
    if path.is_dir() and not read_config(path):
        raise ConfigError(
            f"{HF}{name}: found no config.json in the folder; wanted one that model.save_pretrained(FOLDER) has written"
        )
    if is_pair(name):
        table["pool"] = PROJECTED
    return table


def _of_folder(folder: Path) -> dict[str, Any]:
    """Return the trunk of a folder as transformers or timm write it."""
    about = read_config(folder)
    if "model_type" in about:
        return _of_transformers(str(folder))
    for name in _IN_FOLDER:
        if "architecture" in about and (folder / name).is_file():
            return _of_file(folder / name)
    raise ConfigError(
        f"{folder}: found no model of timm or transformers, a config.json with weights beside it; wanted its folder, "
        f"or {TIMM}NAME, {PREFIX}NAME, {HF}FOLDER or NAME=FILE"
    )


def _of_file(file: Path) -> dict[str, Any]:
    """Return the trunk of a file of weights, which tells its architecture by what is beside it, or by its own name."""
    if not file.is_file():
        raise ConfigError(f"{file}: no such file; wanted weights, a .safetensors or .pth file, or the name of a trunk")
    if not is_file(str(file)):
        is_program = file.suffix in _PROGRAMS
        kind = "a program, which is not loaded, since it could do anything" if is_program else "no weights"
        raise ConfigError(
            f"{file}: found {kind}; wanted the model's weights: torch.save(model.state_dict(), 'FILE.pth'), and type "
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
        f"{file}: weights alone do not tell their architecture; wanted its name before them, {TIMM}NAME={file} or "
        f"{PREFIX}NAME={file}, or a config.json of timm beside the file"
    )


def _absolute(path: str | Path) -> str:
    """Return a path that holds in any working folder; of a name in torch hub's folder, the name."""
    path = Path(path).expanduser()
    return os.path.abspath(path) if path.exists() else str(path)
