"""Models of the package transformers: image encoders as trunks, and the images that their weights were trained on."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal

from torch import Tensor, nn

from pml_ext.errors import ConfigError, first_of, needs_extra, one_line

from .trunks import RepeatedGray

HF = "hf/"
PROJECTED = "projected"  # the pooling whose features are in one space with those of texts
Pool = Literal["auto", "cls", "mean", "pooled", "projected"]


def transformers_library(name: str) -> Any:
    """Return the package transformers; if it is missing, raise :class:`MissingExtraError` that mentions ``name``."""
    with needs_extra("hf", f"the trunk {HF}{name}"):
        import transformers
    return transformers


def hf_trunk(
    in_channels: int,
    image_size: int,
    name: str = "",
    weights: str | None = None,
    pool: Pool = "auto",
) -> nn.Module:
    """Return a vision model of the package transformers; ``hf/ORG/NAME``, or ``hf/FOLDER`` for a saved one.

    For models with an image and a text encoder, such as CLIP and SigLIP, it is the image encoder. ConfigError for a
    model that cannot be downloaded, has no image encoder, or whose weights lack some of its tensors. No code of a
    model's folder is executed.

    Args:
        in_channels: 1 (the gray channel is repeated) or 3.
        image_size: height and width of the images, in pixels; most models require a fixed size.
        name: the model on the Hugging Face hub, or its folder.
        weights: ``"DEFAULT"``, the model's own, downloaded on first use; None: random initialization.
        pool: pooling of the tokens: ``"cls"``, the first token; ``"mean"`` over all tokens; ``"pooled"``, the model's
            own pooling; ``"projected"``, that of a pair of encoders, projected into the space of its texts; ``"auto"``,
            the model's own if its weights have one, else the first token.
    """
    if weights not in (None, "DEFAULT"):
        raise ConfigError(f"{HF}{name}: found weights = {weights!r}; wanted 'DEFAULT', or a file of weights")
    model, missing = load_model(name, weights)
    encoder = getattr(model, "vision_model", model)
    if getattr(encoder, "main_input_name", "pixel_values") != "pixel_values":
        raise ConfigError(f"{HF}{name}: {type(model).__name__} has no image encoder; wanted a model of images")
    projection = _projection_of(model, name) if pool == PROJECTED else None
    if encoder is not model:
        missing = _missing_of_encoder(missing, with_projection=projection is not None)

    trunk = _Pooled(encoder, pool, projection)
    without_pooling = trunk.remove_poolers(missing)
    if without_pooling and pool in ("pooled", PROJECTED):
        raise ConfigError(
            f"model.trunk.pool: found {pool!r}, and the weights of {HF}{name} have no pooling of their own; wanted "
            "'cls' or 'mean'"
        )
    random = sorted(missing - without_pooling)
    if random:
        raise ConfigError(
            f"{HF}{name}: its weights lack {len(random)} tensors of {type(model).__name__} ({first_of(random, 4)}), "
            "which would be random; wanted all of them, as model.save_pretrained(FOLDER) writes them"
        )
    return trunk if in_channels == 3 else nn.Sequential(RepeatedGray(), trunk)


def load_model(name: str, weights: str | None) -> tuple[nn.Module, set[str]]:
    """Return a model in float32, and the names of the tensors that its weights lack; ConfigError if it cannot be had.

    Without ``weights``, it is random, and nothing is lacking.
    """
    transformers = transformers_library(name)
    auto_model: Any = transformers.AutoModel
    missing: set[str] = set()
    try:
        with warnings.catch_warnings(), _quietly(transformers):
            warnings.simplefilter("ignore")  # about weights that are not loaded
            if weights is None:
                config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)
                model: nn.Module = auto_model.from_config(config)
            else:
                model, loaded = auto_model.from_pretrained(name, output_loading_info=True, trust_remote_code=False)
                missing = set(loaded["missing_keys"])
    except Exception as error:  # of files that are cut or of another kind, many types
        raise ConfigError(
            f"{HF}{name}: cannot be had ({one_line(error)}); without a network, save the model elsewhere by "
            f"model.save_pretrained(FOLDER), and type trunk = '{HF}FOLDER'"
        ) from None
    return model.float(), missing


@contextlib.contextmanager
def _quietly(transformers: Any) -> Iterator[None]:
    """Let transformers print neither progress bars nor reports of what it loads."""
    logging = transformers.utils.logging
    level = logging.get_verbosity()
    shows_bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shows_bars:
            logging.enable_progress_bar()


def is_pair(name: str) -> bool:
    """Return whether a model, on the hub or in a folder, has an image and a text encoder with features in one space.

    ConfigError if its configuration cannot be had.
    """
    transformers = transformers_library(name)
    config = _config_of(name)
    model_class = transformers.models.auto.modeling_auto.MODEL_MAPPING.get(type(config), None)
    has_both = hasattr(model_class, "get_text_features") and hasattr(model_class, "get_image_features")
    return has_both and hasattr(config, "vision_config") and hasattr(config, "text_config")


def image_size_of(name: str) -> int | None:
    """Return the height and width of the images that a model takes, in pixels; None where it does not say."""
    config = _config_of(name)
    size = getattr(getattr(config, "vision_config", config), "image_size", None)
    return size if isinstance(size, int) else None


def _config_of(name: str) -> Any:
    """Return the configuration of a model; ConfigError if it cannot be had."""
    transformers = transformers_library(name)
    try:
        return transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"{HF}{name}: cannot be had ({one_line(error)}); wanted a model's folder, as model.save_pretrained(FOLDER) "
            "writes it, or a name on the Hugging Face hub"
        ) from None


def _projection_of(model: nn.Module, name: str) -> nn.Module | None:
    """Return the last layer of the image encoder of a pair, None for one without; ConfigError for another model."""
    if hasattr(model, "vision_model") and hasattr(model, "get_text_features"):
        projection = getattr(model, "visual_projection", None)
        if isinstance(projection, nn.Module):
            return projection
        if "siglip" in model.config.model_type:  # type: ignore[union-attr, operator]
            return None  # its own pooling is in the space of the texts
    raise ConfigError(
        f"model.trunk.pool: found {PROJECTED!r}, and {HF}{name} ({type(model).__name__}) is no pair of encoders such "
        "as CLIP or SigLIP; wanted 'auto', 'cls', 'mean' or 'pooled'"
    )


def _missing_of_encoder(missing: Collection[str], with_projection: bool) -> set[str]:
    """Return the names of missing tensors of a pair's image encoder, without its prefix, and of its projection."""
    found = {name.removeprefix("vision_model.") for name in missing if name.startswith("vision_model.")}
    if with_projection:
        found |= {name for name in missing if name.startswith("visual_projection.")}
    return found


class _NoPooling(nn.Module):
    """Pooling of a model whose weights have none: its output has no pooled features."""

    def forward(self, *args: Any) -> None:
        """Return None."""


class _Pooled(nn.Module):
    def __init__(self, model: nn.Module, pool: str, projection: nn.Module | None) -> None:
        super().__init__()
        self.model = model
        self.pool = pool
        self.projection = projection

    def extra_repr(self) -> str:
        """Return the setting that no parameter shows."""
        return f"pool={self.pool!r}"

    def remove_poolers(self, missing: Collection[str]) -> set[str]:
        """Remove the model's own pooling where its weights are missing; return the names of its missing weights.

        transformers adds a pooling with random weights to the weights of a classifier.
        """
        removed = set()
        for name, part in list(self.model.named_modules()):
            parent, _, child = name.rpartition(".")
            of_part = {f"{name}.{weight}" for weight in part.state_dict()}.intersection(missing)
            if child.endswith("pooler") and of_part:
                setattr(self.model.get_submodule(parent), child, _NoPooling())
                removed |= of_part
        if removed and self.pool == "auto":
            self.pool = "cls"
        return removed

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        """Load weights; the weights of a trunk that was trained without the model's own pooling have none."""
        if self.pool not in ("pooled", PROJECTED):
            missing = {name for name in self.model.state_dict() if f"{prefix}model.{name}" not in state_dict}
            self.remove_poolers(missing)
        super()._load_from_state_dict(state_dict, prefix, *args)  # type: ignore[no-untyped-call]

    def forward(self, images: Tensor) -> Tensor:
        output = self.model(pixel_values=images)
        pooled = getattr(output, "pooler_output", None)
        if self.pool in ("auto", "pooled", PROJECTED) and pooled is not None:
            features: Tensor = pooled.flatten(1)
            return features if self.projection is None else self.projection(features)
        if self.pool in ("pooled", PROJECTED):
            raise ConfigError(f"model.trunk.pool: found {self.pool!r}, and this model has none; wanted 'cls' or 'mean'")
        tokens: Tensor = output.last_hidden_state
        if tokens.ndim == 4:  # convolutional network, [B, F, H, W]
            return tokens.mean((2, 3))
        if self.pool == "mean":
            return tokens.mean(1)
        return tokens[:, 0]


def images_of_processor(name: str) -> Mapping[str, Any] | None:
    """Return what the image processor of a model does, by the names of its settings; None for a model without one."""
    transformers = transformers_library(name)
    try:
        found, _ = transformers.ImageProcessingMixin.get_image_processor_dict(os.path.expanduser(name))
    except (OSError, ValueError):  # the model has no preprocessor config
        return None
    return found  # type: ignore[no-any-return]
