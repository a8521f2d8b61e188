"""Pretrained trunks: weights from files, vision models of transformers, and the images that a model was trained on."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from ..errors import ConfigError, first_of, needs_extra, one_line
from . import bn_inception
from .efficientnet_lite import IMAGENET, VARIANTS
from .trunks import PREFIX, TIMM, RepeatedGray, timm_config, torchvision_models, unwrapped_trunk

HF = "hf/"
RANDOM = "random"  # weights of a trunk that is meant to stay untrained, as a frozen one
_CLASSIFIERS = ("fc", "head", "heads", "head_dist", "classifier", "last_linear", "pre_logits")
_COUNTER = "num_batches_tracked"  # batch norm buffer that old files lack


def add_lora(trunk: nn.Module, rank: int, targets: Sequence[str]) -> None:
    """Add low-rank adapters (LoRA, Hu et al. 2022) to linear layers of a trunk, in place, and freeze the rest.

    ConfigError if no layer's name ends with one of ``targets``.
    """
    with needs_extra("peft", "model.lora"):
        import peft
    config = peft.LoraConfig(r=rank, lora_alpha=rank, target_modules=list(targets))
    try:
        peft.inject_adapter_in_model(config, trunk)
    except ValueError as error:
        names = {name.rpartition(".")[2] for name, part in trunk.named_modules() if isinstance(part, nn.Linear)}
        known = ", ".join(sorted(names)) or "none"
        raise ConfigError(f"model.lora.targets: found {targets}; linear layers: {known} ({one_line(error)})") from None


def merged_lora(trunk: nn.Module) -> nn.Module:
    """Return a copy of a trunk with its adapters merged into its layers; the trunk itself if it has none."""
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
    bgr: bool = False  # whether the input is BGR; mean and std are in RGB order


def is_file(weights: object) -> bool:
    """Return whether a trunk's setting ``weights`` is a file, not a library's name of weights."""
    return isinstance(weights, str) and weights.endswith((".safetensors", ".pth", ".pt", ".bin"))


def is_pretrained(options: Mapping[str, Any]) -> bool:
    """Return whether a trunk's settings name weights, from a file or a library."""
    return options.get("weights") not in (None, RANDOM)


def load_weights(trunk: nn.Module, file: str) -> None:
    """Load a trunk's weights from a ``.safetensors`` or torch file, here or in torch hub's folder ``checkpoints``.

    No code in the file is executed. The file's classifier is ignored, as trunks have none. ConfigError for an
    unreadable file, or with the names of keys that are missing, unknown or of another shape.
    """
    path = _weights_file(file)
    state = _read_weights(path)
    inner = unwrapped_trunk(trunk)
    known = inner.state_dict()
    _check_fits(state, known, path)
    inner.load_state_dict({name: state.get(name, known[name]) for name in known})


def _weights_file(file: str) -> Path:
    """Return the path of a file of weights, here or in torch hub's folder."""
    path = Path(file).expanduser()
    if not path.exists():
        stored = Path(torch.hub.get_dir()) / "checkpoints" / file
        if stored.exists():
            return stored
    return path


def _read_weights(path: Path) -> Mapping[str, Tensor]:
    """Return the tensors of a file by name; ConfigError for another content."""
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            state: Any = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        places = f"{path}, nor in {torch.hub.get_dir()}/checkpoints"
        raise ConfigError(f"model.trunk.weights: no file {places}; put the weights into one of the two") from None
    except Exception as error:  # pickle, zip and safetensors raise many types
        advises_to_run_code = "weights_only" in str(error)
        if advises_to_run_code:
            reason = type(error).__name__
        else:
            reason = one_line(error)
        wanted = "wanted tensors alone, as torch.save(model.state_dict(), FILE) or safetensors writes them"
        raise ConfigError(f"model.trunk.weights: {path} cannot be read as weights ({reason}); {wanted}") from None

    for name in ("state_dict", "model", "trunk"):  # keys that may contain the weights
        if isinstance(state, Mapping) and isinstance(state.get(name), Mapping):
            state = state[name]
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ConfigError(
            f"model.trunk.weights: {path} holds no table of tensors by name; wanted a model's state_dict()"
        )
    return state


def _check_fits(state: Mapping[str, Tensor], known: Mapping[str, Tensor], path: Path) -> None:
    """Raise ConfigError with the names of weights that are missing, unknown or of another shape."""
    missing = [name for name in known if name not in state and not name.endswith(_COUNTER)]
    unknown = [name for name in state if name not in known and name.partition(".")[0] not in _CLASSIFIERS]
    other_shapes = []
    for name, tensor in known.items():
        if name in state and state[name].shape != tensor.shape:
            other_shapes.append(f"{name} {list(state[name].shape)} for {list(tensor.shape)}")

    problems = []
    for problem, names in (("missing", missing), ("unknown", unknown), ("of another shape", other_shapes)):
        if names:
            problems.append(f"{len(names)} {problem} ({first_of(names, 4)})")
    if problems:
        raise ConfigError(f"model.trunk.weights: {path} does not fit the trunk: {'; '.join(problems)}")


def hf_trunk(
    in_channels: int,
    image_size: int,
    name: str = "",
    weights: str | None = None,
    pool: Literal["auto", "cls", "mean", "pooled"] = "auto",
) -> nn.Module:
    """Return a vision model of the package transformers; ``hf/ORG/NAME``, or ``hf/FOLDER`` for a saved one.

    For models with an image and a text encoder, such as CLIP and SigLIP, it is the image encoder. ConfigError for a
    model that cannot be downloaded or has no image encoder.

    Args:
        in_channels: 1 (the gray channel is repeated) or 3.
        image_size: height and width of the images, in pixels; most models require a fixed size.
        name: the model on the Hugging Face hub, or its folder.
        weights: ``"DEFAULT"``, the model's own, downloaded on first use; None: random initialization.
        pool: pooling of the tokens: ``"cls"``, the first token; ``"mean"`` over all tokens; ``"pooled"``, the model's
            own pooling; ``"auto"``, the model's own if its weights have one, else the first token.
    """
    with needs_extra("hf", f"the trunk {HF}{name}"):
        import transformers
    if weights not in (None, "DEFAULT"):
        raise ConfigError(f"{HF}{name}: found weights = {weights!r}; wanted 'DEFAULT', or a file of weights")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about weights that are not loaded
            auto_model: Any = transformers.AutoModel
            if weights is None:
                config = transformers.AutoConfig.from_pretrained(name)
                model = auto_model.from_config(config)
                missing = set()
            else:
                model, loaded = auto_model.from_pretrained(name, output_loading_info=True)
                missing = {weight.removeprefix("vision_model.") for weight in loaded["missing_keys"]}
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{HF}{name}: cannot be had ({one_line(error)}); without a network, save the model elsewhere by "
            f"model.save_pretrained(FOLDER), and type trunk = '{HF}FOLDER'"
        ) from None
    trunk = _Pooled(getattr(model, "vision_model", model), pool)
    if trunk.remove_poolers(missing) and pool == "pooled":
        raise ConfigError(
            f"model.trunk.pool: found 'pooled', and the weights of {HF}{name} have no pooling of their own; wanted "
            "'cls' or 'mean'"
        )
    if in_channels == 3:
        return trunk
    return nn.Sequential(RepeatedGray(), trunk)


class _NoPooling(nn.Module):
    """Pooling of a model whose weights have none: its output has no pooled features."""

    def forward(self, *args: Any) -> None:
        """Return None."""


class _Pooled(nn.Module):
    def __init__(self, model: nn.Module, pool: str) -> None:
        super().__init__()
        self.model = model
        self.pool = pool

    def extra_repr(self) -> str:
        """Return the setting that no parameter shows."""
        return f"pool={self.pool!r}"

    def remove_poolers(self, missing: Collection[str]) -> bool:
        """Remove the model's own pooling where its weights are missing; return whether there was one.

        transformers adds a pooling with random weights to the weights of a classifier.
        """
        removed = False
        for name, part in list(self.model.named_modules()):
            parent, _, child = name.rpartition(".")
            if child.endswith("pooler") and any(f"{name}.{weight}" in missing for weight in part.state_dict()):
                setattr(self.model.get_submodule(parent), child, _NoPooling())
                removed = True
        if removed and self.pool == "auto":
            self.pool = "cls"
        return removed

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        """Load weights; those of a trunk that was trained without the model's own pooling have none."""
        if self.pool != "pooled":
            missing = {name for name in self.model.state_dict() if f"{prefix}model.{name}" not in state_dict}
            self.remove_poolers(missing)
        super()._load_from_state_dict(state_dict, prefix, *args)  # type: ignore[no-untyped-call]

    def forward(self, images: Tensor) -> Tensor:
        output = self.model(pixel_values=images)
        pooled = getattr(output, "pooler_output", None)
        if self.pool in ("auto", "pooled") and pooled is not None:
            return pooled.flatten(1)  # type: ignore[no-any-return]
        if self.pool == "pooled":
            raise ConfigError("model.trunk.pool: found 'pooled', which this model has not; wanted 'cls' or 'mean'")
        tokens: Tensor = output.last_hidden_state
        if tokens.ndim == 4:  # convolutional network, [B, F, H, W]
            return tokens.mean((2, 3))
        if self.pool == "mean":
            return tokens.mean(1)
        return tokens[:, 0]


def weights_to_choose(name: str) -> list[str]:
    """Return what ``weights`` of a trunk may be beside a file, in words; [] for a trunk that has none."""
    if name in VARIANTS:
        return [repr(IMAGENET)]
    if name.startswith(TIMM):
        return ["a tag of timm"]
    if name.startswith((PREFIX, HF)):
        return ["'DEFAULT'"]
    return []


def pretrained_images(name: str, options: Mapping[str, Any]) -> PretrainedImages | None:
    """Return the preprocessing for a trunk's ``weights``; None without weights or if no library provides them."""
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
    wanted = timm_config(name, None if is_file(weights) else weights)
    if wanted is None:
        return None
    return _images(wanted.mean, wanted.std, int(wanted.input_size[-1]), wanted.interpolation)


def _of_torchvision(name: str, weights: str) -> PretrainedImages | None:
    known = torchvision_models().get_model_weights(name)
    tag = "DEFAULT" if is_file(weights) else weights
    if tag not in known.__members__:  # building the trunk raises an error that lists the tags
        return None
    wanted = known[tag].transforms()
    return _images(wanted.mean, wanted.std, wanted.crop_size[0], wanted.interpolation.value)


def _of_transformers(name: str) -> PretrainedImages | None:
    with needs_extra("hf", f"the trunk {HF}{name}"):
        import transformers
    try:
        wanted, _ = transformers.ImageProcessingMixin.get_image_processor_dict(name)
    except (OSError, ValueError):  # the model has no preprocessor config
        return None
    if not (wanted.get("image_mean") and wanted.get("image_std")):
        return None
    pixels = wanted.get("crop_size") or wanted.get("size") or {}
    if not isinstance(pixels, int):
        pixels = pixels.get("height") or pixels.get("shortest_edge")
    mode = "bicubic" if wanted.get("resample") == 3 else "bilinear"  # Pillow's BICUBIC
    return _images(wanted["image_mean"], wanted["image_std"], pixels, mode)


def _images(mean: Sequence[float], std: Sequence[float], size: int | None, mode: str) -> PretrainedImages:
    interpolation: Literal["bilinear", "bicubic"] = "bicubic" if mode == "bicubic" else "bilinear"
    return PretrainedImages(tuple(mean), tuple(std), size, interpolation)
