"""The files of a finished run that its network is in: ``recipe.toml``, ``network.json`` and ``model.pt``."""

from __future__ import annotations

import hashlib
import shlex
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import nn

from .. import models
from ..errors import ConfigError, DataError, shortened
from ..experiment import checkpoint
from ..experiment.recipe import Recipe, build_trunk, load_recipes
from ..files import DamagedError, read_json, read_toml
from .checks import reason_of

_WEIGHTS = "checkpoints/model.pt"


class _Normalization(BaseModel):
    mean: list[float]
    std: list[float]


class NetworkFacts(BaseModel):
    """What stands in ``network.json``: what the network was made for.

    Args:
        image_size: height and width of what it gets, in pixels.
        channels: 1 (gray) or 3 (color).
        crop: whether a square is cut from the middle of an image.
        normalize: means and standard deviations per channel, if values are normalized.
        features: length of the trunk's feature vectors.
        classes: the labels of the training images.
    """

    model_config = ConfigDict(strict=True)

    image_size: int = Field(ge=1)
    channels: Literal[1, 3]
    crop: bool
    normalize: _Normalization | None
    features: int = Field(ge=1)
    classes: list[int]


class RunFiles:
    """A finished run as it lies on the disk, read and checked.

    Args:
        folder: of the run.
        device: where its weights go.

    Raises:
        DataError: a file is missing, empty or cut.
    """

    def __init__(self, folder: Path, device: torch.device) -> None:
        self.folder = folder
        for name in ("recipe.toml", "network.json", _WEIGHTS):
            if not (folder / name).is_file():
                raise DataError(f"{folder}: no finished run (no {name} in it); pml-ext train RECIPE --out {folder}")
        try:
            read_toml(folder / "recipe.toml", "run")
        except DamagedError as error:
            raise self._damaged("recipe.toml", str(error)) from None
        self.recipe: Recipe = next(iter(load_recipes(str(folder / "recipe.toml")).values()))
        self.network = self._read_network()
        self.identity, self._state = self._read_weights(device)

    def _read_network(self) -> NetworkFacts:
        try:
            return NetworkFacts.model_validate(read_json(self.folder / "network.json"))
        except (DamagedError, ValidationError) as error:
            raise self._damaged("network.json", reason_of(error)) from None

    def _read_weights(self, device: torch.device) -> tuple[str, dict[str, Any]]:
        """A number of the weights, the start of the SHA-256 of ``model.pt``; and what is in it."""
        with (self.folder / _WEIGHTS).open("rb") as file:
            identity = hashlib.file_digest(file, "sha256").hexdigest()[:16]
        return identity, checkpoint.load(self.folder / _WEIGHTS, device)

    def networks(self) -> tuple[nn.Module, nn.Module]:
        """The trunk and the embedder, trained; can be had once.

        Raises:
            DataError: the weights are of another network.
        """
        network, model = self.network, self.recipe.model
        try:
            trunk = build_trunk(model.trunk, network.channels, network.image_size, trained=True)
        except ConfigError as error:
            raise self._damaged("network.json", str(error)) from None
        embedder = models.embedder(network.features, model.embedding_size, model.hidden_sizes)
        self.load(trunk, "trunk")
        self.load(embedder, "embedder")
        # the others are in the networks now, and need no memory twice
        self._state = {key: self._state.get(key) for key in ("loss", "versions")}
        return trunk, embedder

    def load(self, module: nn.Module, part: str) -> None:
        """Gives a module its trained weights.

        Args:
            module: what the run trained.
            part: ``"trunk"``, ``"embedder"`` or ``"loss"``.

        Raises:
            DataError: the weights are of another module.
        """
        with checkpoint.taking(self.folder / _WEIGHTS, self._state), checkpoint.part(f"the {part}"):
            module.load_state_dict(self._state[part])

    def _damaged(self, name: str, reason: str) -> DataError:
        """A file of the run that cannot be used, and what writes it again."""
        if name == "recipe.toml":
            return DataError(f"{self.folder / name}: empty, cut or changed ({shortened(reason, 200)}); delete "
                             f"{self.folder / 'metrics.json'} and type: pml-ext train RECIPE --out {self.folder} "
                             "--resume")  # fmt: skip
        again = shlex.join(
            ["pml-ext", "train", str(self.folder / "recipe.toml"), "--out", str(self.folder), "--resume"]
        )
        return DataError(f"{self.folder / 'network.json'}: empty, cut or of another run ({reason}); delete "
                         f"{self.folder / 'metrics.json'} and type: {again}")  # fmt: skip
