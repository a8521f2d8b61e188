"""Pretrained trunks: weights from files, adapters, and preprocessing."""

import copy
import json
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from pml_ext.errors import ConfigError, first_of, needs_extra, one_line, shortened

from . import bn_inception
from .efficientnet_lite import IMAGENET, VARIANTS
from .hf import HF, images_of_processor
from .trunks import PREFIX, TIMM, timm_config, torchvision_models, unwrapped_trunk

RANDOM = "random"  # weights of a trunk that stays untrained on purpose
_CLASSIFIERS = ("fc", "head", "heads", "head_dist", "classifier", "last_linear", "pre_logits")
_COUNTER = "num_batches_tracked"  # batch norm buffer that old files lack


def add_lora(trunk: nn.Module, rank: int, targets: Sequence[str]) -> None:
    """Add low-rank adapters (LoRA, Hu et al. 2022) to a trunk in place.

    All other parameters are frozen. ConfigError if no layer's name ends with one of ``targets``.
    """
    with needs_extra("peft", "model.lora"):
        import peft
    config = peft.LoraConfig(r=rank, lora_alpha=rank, target_modules=list(targets))
    try:
        peft.inject_adapter_in_model(config, trunk)
    except ValueError as error:
        names = {name.rpartition(".")[2] for name, part in trunk.named_modules() if isinstance(part, nn.Linear)}
        known = ", ".join(sorted(names)) or "none"
        raise ConfigError(
            f"model.lora.targets: {targets} are not linear layers ({one_line(error)}); choose from {known}"
        ) from None


def merged_lora(trunk: nn.Module) -> nn.Module:
    """A copy of a trunk with adapters merged into its layers; the trunk itself without adapters."""
    if not any(name.endswith("base_layer") for name, _ in trunk.named_modules()):
        return trunk
    trunk = copy.deepcopy(trunk)
    for name, part in list(trunk.named_modules()):
        if hasattr(part, "base_layer"):
            part.merge()
            parent, _, child = name.rpartition(".")
            setattr(trunk.get_submodule(parent), child, part.base_layer)
    return trunk


class PretrainedImages(NamedTuple):
    """The preprocessing that a pretrained model expects; None for unknown values."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    image_size: int | None = None
    interpolation: Literal["bilinear", "bicubic"] | None = None
    bgr: bool = False  # whether the input is BGR; mean and std are RGB
    resize: int | None = None  # pixels of the shorter side before the crop; None: 256 / 224 of the size
    squash: bool = False  # whether images are resized to squares, of ``resize`` pixels


def is_file(weights: object) -> bool:
    """Whether ``weights`` of a trunk is a file, not a library's name."""
    return isinstance(weights, str) and weights.endswith((".safetensors", ".pth", ".pt", ".bin"))


def is_pretrained(options: Mapping[str, Any]) -> bool:
    """Whether a trunk's settings name weights, from a file or a library."""
    return options.get("weights") not in (None, RANDOM)


def load_weights(trunk: nn.Module, file: str) -> None:
    """Load a trunk's weights from a ``.safetensors`` or torch file.

    It may be in torch hub's folder ``checkpoints``. No code in the file is run, and its classifier is ignored.
    ConfigError for an unreadable file, or with the names of keys that are missing, unknown or of another shape.
    """
    path = Path(file).expanduser()
    stored = Path(torch.hub.get_dir()) / "checkpoints" / file
    if not path.exists() and stored.exists():
        path = stored
    state = _read_weights(path)
    inner = unwrapped_trunk(trunk)
    known = inner.state_dict()
    _check_fits(state, known, path)
    inner.load_state_dict({name: state.get(name, known[name]) for name in known})


def _read_weights(path: Path) -> Mapping[str, Tensor]:
    """Tensors of a file by name; ConfigError for other content."""
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            state: Any = load_file(path)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about programs, which are refused
                state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise ConfigError(
            f"model.trunk.weights: {path} exists neither here nor in {torch.hub.get_dir()}/checkpoints; put the file "
            "into one of the two"
        ) from None
    except Exception as error:  # pickle, zip and safetensors raise many types
        reason = shortened(one_line(error), 100)
        if "TorchScript" in str(error):
            reason = "a TorchScript program, whose code is not run"
        elif "weights_only" in str(error):  # advises to run code
            reason = type(error).__name__
        raise ConfigError(
            f"model.trunk.weights: {path} cannot be read as weights ({reason}). Save only tensors: "
            "torch.save(model.state_dict(), FILE)"
        ) from None

    for name in ("state_dict", "model", "trunk"):  # keys that may contain the weights
        if isinstance(state, Mapping) and isinstance(state.get(name), Mapping):
            state = state[name]
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ConfigError(f"model.trunk.weights: {path} has no tensors by name; save a model's state_dict()")
    return state


def _check_fits(state: Mapping[str, Tensor], known: Mapping[str, Tensor], path: Path) -> None:
    missing = [name for name in known if name not in state and not name.endswith(_COUNTER)]
    unknown = [name for name in state if name not in known and name.partition(".")[0] not in _CLASSIFIERS]
    other_shapes = [
        f"{name} {list(state[name].shape)} for {list(tensor.shape)}"
        for name, tensor in known.items()
        if name in state and state[name].shape != tensor.shape
    ]

    problems = [
        f"{len(names)} {problem} ({first_of(names, 4)})"
        for problem, names in (("missing", missing), ("unknown", unknown), ("of another shape", other_shapes))
        if names
    ]
    if problems:
        raise ConfigError(f"model.trunk.weights: {path} does not fit the trunk: {'; '.join(problems)}")


def weights_to_choose(name: str) -> list[str]:
    """What ``weights`` of a trunk may be besides a file, in words."""
    if name in VARIANTS:
        return [repr(IMAGENET)]
    if name.startswith(TIMM):
        return ["a tag of timm"]
    if name.startswith((PREFIX, HF)):
        return ["'DEFAULT'"]
    return []


def pretrained_images(name: str, options: Mapping[str, Any]) -> PretrainedImages | None:
    """Preprocessing for a trunk's ``weights``, or None if it is unknown."""
    if not is_pretrained(options):
        return None
    weights = options["weights"]
    if name == "bn-inception":
        blue, green, red = bn_inception.MEAN
        return PretrainedImages(mean=(red / 255, green / 255, blue / 255), std=(1 / 255, 1 / 255, 1 / 255), bgr=True)
    if name in VARIANTS:
        half = (0.5, 0.5, 0.5)
        return PretrainedImages(mean=half, std=half, image_size=VARIANTS[name].image_size, interpolation="bicubic")
    if name.startswith(TIMM):
        return _of_timm(name.rpartition("/")[2], weights)
    if name.startswith(PREFIX):
        return _of_torchvision(name.rpartition("/")[2], weights)
    if name.startswith(HF):
        return _of_transformers(name.removeprefix(HF))
    return None


def _of_timm(name: str, weights: str) -> PretrainedImages | None:
    if is_file(weights):
        wanted = _config_beside(Path(weights).expanduser(), name) or timm_config(name, None)
    else:
        wanted = timm_config(name, weights)
    if wanted is None:
        return None
    size = int(wanted.input_size[-1])
    resize = math.floor(size / (wanted.crop_pct or 0.875))
    return _images(wanted.mean, wanted.std, size, wanted.interpolation, resize, wanted.crop_mode == "squash")


def _config_beside(file: Path, name: str) -> Any:
    """Timm's description of a file of weights, from ``config.json`` beside it; None without one."""
    about = read_config(file.parent)
    if about.get("architecture") != name or not isinstance(about.get("pretrained_cfg"), dict):
        return None
    from timm.models import PretrainedCfg

    known = set(PretrainedCfg.__dataclass_fields__)
    return PretrainedCfg(**{key: value for key, value in about["pretrained_cfg"].items() if key in known})


def read_config(folder: Path) -> dict[str, Any]:
    """Content of ``config.json`` in a folder of timm or transformers; {} without one."""
    try:
        about = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return about if isinstance(about, dict) else {}


def torchvision_tag_of(name: str, file: str) -> str | None:
    """Torchvision's name of weights, found by the name of their file; None for another name."""
    for weights in torchvision_models().get_model_weights(name):
        if weights.url.rpartition("/")[2] == Path(file).name:
            return str(weights.name)
    return None


def _of_torchvision(name: str, weights: str) -> PretrainedImages | None:
    known = torchvision_models().get_model_weights(name)
    tag = torchvision_tag_of(name, weights) or "DEFAULT" if is_file(weights) else weights
    if tag not in known.__members__:  # building the trunk raises an error that lists the tags
        return None
    wanted = known[tag].transforms()
    return _images(
        wanted.mean, wanted.std, wanted.crop_size[0], wanted.interpolation.value, wanted.resize_size[0], squash=False
    )


def _of_transformers(name: str) -> PretrainedImages | None:
    wanted = images_of_processor(name)
    if wanted is None:
        return None
    mean = wanted.get("image_mean")
    std = wanted.get("image_std")
    if wanted.get("do_normalize") is False:
        mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    if not (mean and std):
        return None
    shorter, is_square = _side_of(wanted.get("size"))
    cropped, _ = _side_of(wanted.get("crop_size"))
    resize = size = shorter
    squash = False
    if wanted.get("do_center_crop") or (cropped is not None and "do_center_crop" not in wanted):
        size = cropped or shorter
    elif "crop_pct" in wanted and shorter is not None and shorter < 384 and wanted["crop_pct"]:  # ConvNeXt's
        resize = int(shorter / wanted["crop_pct"])
    else:
        squash = is_square
    mode = "bicubic" if wanted.get("resample") == 3 else "bilinear"  # Pillow's BICUBIC
    return _images(mean, std, size, mode, resize, squash)


def _side_of(size: Any) -> tuple[int | None, bool]:
    """The side in a size of transformers, and whether the size is a square."""
    if isinstance(size, int):
        return size, True
    if not isinstance(size, Mapping):
        return None, False
    if size.get("shortest_edge"):
        return int(size["shortest_edge"]), False
    return size.get("height"), True


def _images(
    mean: Sequence[float], std: Sequence[float], size: int | None, mode: str, resize: int | None, squash: bool
) -> PretrainedImages:
    interpolation: Literal["bilinear", "bicubic"] = "bicubic" if mode == "bicubic" else "bilinear"
    if size is not None and resize == round(size * 256 / 224) and not squash:
        resize = None  # the usual one
    return PretrainedImages(tuple(mean), tuple(std), size, interpolation, resize=resize, squash=squash)
