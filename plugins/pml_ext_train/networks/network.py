"""A network: preprocessing, trunk and embedder."""

import dataclasses
from typing import Any, Literal

from torch import Tensor, nn

from pml_ext.errors import ConfigError, needs_extra

from ..data import Pipeline, Steps, build_transforms
from . import trunks as models
from .embedders import embedder

with needs_extra("train", "a network"):
    from pydantic import BaseModel, ConfigDict, Field

NO_CUTS = Pipeline()
By = Literal["embeddings", "features"]  # what images are compared by


class Normalization(BaseModel):
    """Means and standard deviations per channel."""

    model_config = ConfigDict(strict=True)

    mean: list[float]
    std: list[float]


class Preprocessing(BaseModel):
    """Steps from an image to a network's input, without augmentation."""

    model_config = ConfigDict(strict=True)

    image_size: int = Field(ge=1)  # height and width of the network's input, in pixels
    channels: Literal[1, 3]  # gray or color
    crop: bool  # whether to center-crop a square
    normalize: Normalization | None
    resize: int | None = Field(None, ge=1)  # pixels of the shorter side before the crop, or of both; None: 256 / 224
    squash: bool = False  # whether images are resized to squares before the crop, ignoring aspect ratio
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"  # for resizing
    bgr: bool = False  # whether the channel order is blue, green, red
    value_range: Literal[1, 255] = 1  # the greatest value before normalization

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of an input, ``[C, S, S]``."""
        return (self.channels, self.image_size, self.image_size)

    def features_of(self, trunk: nn.Module) -> int:
        """Length of a trunk's features, measured."""
        return models.output_size(trunk, self.channels, self.image_size)

    @property
    def resized_to(self) -> int | list[int] | None:
        """Size before the crop, for ``v2.Resize``: the shorter side, or both; None without a crop."""
        if self.squash:
            return [self.resize or self.image_size] * 2
        if self.resize is not None or not self.crop:
            return self.resize
        return round(self.image_size * 256 / 224)

    @property
    def keeps_exact_size(self) -> bool:
        """Whether an image that has the input's size is used unchanged."""
        return self.crop and self.resize is None and not self.squash

    def transforms(self, cuts: Pipeline = NO_CUTS, **augment: Any) -> tuple[Steps, Steps]:
        """Transforms of training images, with ``cuts`` and ``augment``, and of all others."""
        normalize = (tuple(self.normalize.mean), tuple(self.normalize.std)) if self.normalize is not None else None
        shared = {"resize", "squash", "interpolation", "bgr", "value_range"}
        pipeline = dataclasses.replace(cuts, **self.model_dump(include=shared))
        return build_transforms(self.image_size, self.channels, self.crop, normalize, **augment, pipeline=pipeline)


class VectorInput(BaseModel):
    """Replaces preprocessing: vectors enter the embedder unchanged."""

    model_config = ConfigDict(strict=True)

    vector_size: int = Field(ge=1)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of an input, ``[D]``."""
        return (self.vector_size,)

    def features_of(self, trunk: nn.Module) -> int:
        """Length of the vectors."""
        return self.vector_size


class Network(nn.Module):
    """A network from images, or from vectors with the identity as trunk, to embeddings.

    ``trunk`` maps images ``[B, C, S, S]`` to features ``[B, F]``; F is measured unless given. ``hidden_sizes``,
    ``norm`` and ``dropout`` are as in :func:`.embedders.embedder`; with ``hidden_sizes = None``, features are the
    embeddings.
    """

    def __init__(
        self,
        preprocessing: Preprocessing | VectorInput,
        trunk: nn.Module,
        embedding_size: int,
        hidden_sizes: list[int] | None,
        features: int | None = None,
        norm: str = "none",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.preprocessing = preprocessing
        self.embedding_size = embedding_size
        self.trunk = trunk
        self.features = features or preprocessing.features_of(trunk)
        if hidden_sizes is None and self.features != embedding_size:
            raise ConfigError(
                f"model.embedder = 'none' leaves the trunk's {self.features} features unchanged; "
                f"wanted embedding_size = {self.features}, not {embedding_size}"
            )
        self.embedder: nn.Module = nn.Identity()
        if hidden_sizes is not None:
            self.embedder = embedder(self.features, embedding_size, hidden_sizes, norm, dropout)

    def forward(self, images: Tensor) -> Tensor:
        """Embeddings ``[B, D]``, not normalized, of images ``[B, C, S, S]`` or vectors."""
        return self.embedder(self.trunk(images))  # type: ignore[no-any-return]

    def without_head(self) -> "Network":
        """A network with the same trunk, whose embeddings are the trunk's features."""
        network = Network(self.preprocessing, self.trunk, self.features, None, self.features)
        return network.train(self.training)
