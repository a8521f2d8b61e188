"""Image encoders of the package transformers as trunks, and their preprocessing."""

import contextlib
import os
import warnings
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal

from torch import Tensor, nn

from pml_ext.errors import ConfigError, first_of, needs_extra, one_line

from .trunks import RepeatedGray

HF = "hf/"
PROJECTED = "projected"  # the pooling into the space of texts
Pool = Literal["auto", "cls", "mean", "pooled", "projected"]


def transformers_library(name: str) -> Any:
    """The package transformers; MissingExtraError that mentions ``name`` without it."""
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
    """A vision model of transformers: ``hf/ORG/NAME``, or ``hf/FOLDER`` for a saved one.

    Of a pair such as CLIP or SigLIP, it is the image encoder. No code of a model's folder is run. ConfigError for a
    model that cannot be loaded, has no image encoder, or whose weights are incomplete.

    Args:
        in_channels: 1 (the gray channel is repeated) or 3.
        image_size: height and width of the images, in pixels; most models require a fixed size.
        name: the model on the Hugging Face hub, or its folder.
        weights: ``"DEFAULT"``, the model's own, downloaded on first use; None: random initialization.
        pool: pooling of the tokens: ``"cls"``, the first token; ``"mean"`` over all tokens; ``"pooled"``, the model's
            own; ``"projected"``, a pair's own, projected into the space of its texts; ``"auto"``, the model's own if
            its weights have one, else the first token.
    """
    if weights not in (None, "DEFAULT"):
        raise ConfigError(f"{HF}{name}: unknown weights = {weights!r}; type 'DEFAULT', or a file of weights")
    model, missing = load_model(name, weights)
    encoder = getattr(model, "vision_model", model)
    if getattr(encoder, "main_input_name", "pixel_values") != "pixel_values":
        raise ConfigError(f"{HF}{name}: {type(model).__name__} has no image encoder; choose a model of images")
    projection = _projection_of(model, name) if pool == PROJECTED else None
    if encoder is not model:  # of a pair
        prefixes = ("vision_model.",) if projection is None else ("vision_model.", "visual_projection.")
        missing = {name.removeprefix("vision_model.") for name in missing if name.startswith(prefixes)}

    trunk = _Pooled(encoder, pool, projection)
    without_pooling = trunk.remove_poolers(missing)
    if without_pooling and pool in ("pooled", PROJECTED):
        raise ConfigError(
            f"model.trunk.pool: {pool!r} is impossible, because the weights of {HF}{name} have no pooling; type 'cls' "
            "or 'mean'"
        )
    random = sorted(missing - without_pooling)
    if random:
        raise ConfigError(
            f"{HF}{name}: its weights lack {len(random)} tensors of {type(model).__name__} ({first_of(random, 4)}), "
            "which would be random; save them all: model.save_pretrained(FOLDER)"
        )
    return trunk if in_channels == 3 else nn.Sequential(RepeatedGray(), trunk)


def load_model(name: str, weights: str | None) -> tuple[nn.Module, set[str]]:
    """A model in float32, and the names of tensors that its weights lack.

    It is random without ``weights``. ConfigError if it cannot be loaded.
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
    except Exception as error:  # truncated or foreign files raise many types
        raise ConfigError(
            f"{HF}{name}: cannot be loaded ({one_line(error)}). If there is no network, save the model elsewhere with "
            f"model.save_pretrained(FOLDER), and type trunk = '{HF}FOLDER'"
        ) from None
    return model.float(), missing


@contextlib.contextmanager
def _quietly(transformers: Any) -> Iterator[None]:
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
    """Whether a model has an image and a text encoder with one space of features."""
    config = _config_of(name)
    model_class = transformers_library(name).models.auto.modeling_auto.MODEL_MAPPING.get(type(config), None)
    has_both = hasattr(model_class, "get_text_features") and hasattr(model_class, "get_image_features")
    return has_both and hasattr(config, "vision_config") and hasattr(config, "text_config")


def image_size_of(name: str) -> int | None:
    """Height and width of a model's images, in pixels, or None if its configuration lacks them."""
    config = _config_of(name)
    size = getattr(getattr(config, "vision_config", config), "image_size", None)
    return size if isinstance(size, int) else None


def _config_of(name: str) -> Any:
    transformers = transformers_library(name)
    try:
        return transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"{HF}{name}: cannot be loaded ({one_line(error)}). Type the name of a model on the Hugging Face hub, or a "
            "folder written by model.save_pretrained(FOLDER)"
        ) from None


def _projection_of(model: nn.Module, name: str) -> nn.Module | None:
    """The projection of a pair's image encoder, or None; ConfigError unless it is a pair."""
    if hasattr(model, "vision_model") and hasattr(model, "get_text_features"):
        projection = getattr(model, "visual_projection", None)
        if isinstance(projection, nn.Module):
            return projection
        if "siglip" in model.config.model_type:  # type: ignore[union-attr, operator]
            return None  # its own pooling is in the space of the texts
    raise ConfigError(
        f"model.trunk.pool: {PROJECTED!r} needs a pair of encoders such as CLIP or SigLIP, but {HF}{name} is "
        f"{type(model).__name__}; type 'auto', 'cls', 'mean' or 'pooled'"
    )


class _NoPooling(nn.Module):
    """Stands for the pooling of a model whose weights have none."""

    def forward(self, *args: Any) -> None:
        """Return nothing, so that the output has no pooled features."""


class _Pooled(nn.Module):
    def __init__(self, model: nn.Module, pool: str, projection: nn.Module | None) -> None:
        super().__init__()
        self.model = model
        self.pool = pool
        self.projection = projection

    def extra_repr(self) -> str:
        """The setting that no parameter shows."""
        return f"pool={self.pool!r}"

    def remove_poolers(self, missing: Collection[str]) -> set[str]:
        """Remove pooling layers whose weights are missing, and return the names of these weights.

        transformers adds a random pooling layer to the weights of a classifier.
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
        """Load weights, which lack the model's pooling if the trunk was trained without it."""
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
            raise ConfigError(f"model.trunk.pool: this model has no {self.pool!r} features; type 'cls' or 'mean'")
        tokens: Tensor = output.last_hidden_state
        if tokens.ndim == 4:  # convolutional network, [B, F, H, W]
            return tokens.mean((2, 3))
        if self.pool == "mean":
            return tokens.mean(1)
        return tokens[:, 0]


def images_of_processor(name: str) -> Mapping[str, Any] | None:
    """Settings of a model's image processor, or None without one."""
    transformers = transformers_library(name)
    try:
        found, _ = transformers.ImageProcessingMixin.get_image_processor_dict(os.path.expanduser(name))
    except (OSError, ValueError):  # the model has no preprocessor config
        return None
    return found  # type: ignore[no-any-return]
