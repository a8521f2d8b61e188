"""The files of a finished run that its network is in: ``recipe.toml``, ``network.json`` and ``model.pt``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import torch
from pydantic import Field, ValidationError
from torch import nn

from ..errors import ConfigError, DataError, shortened
from ..experiment import checkpoint
from ..experiment.recipe import Recipe, build_network, load_recipes
from ..files import DamagedError, read_json, read_toml, sha256_of
from ..models import builtin_trunk
from ..network import Network, Preprocessing
from ..sums import check_unchanged
from .checks import reason_of

_WEIGHTS = "checkpoints/model.pt"


class NetworkFacts(Preprocessing):
    """What stands in ``network.json``: what the network was made for.

    Args:
        features: length of the trunk's feature vectors.
        classes: the labels of the training images.
        class_names: the names of these classes.
    """

    features: int = Field(ge=1)
    classes: list[int]
    class_names: list[str] = Field(default_factory=list)


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
                again = name == "network.json" and (folder / "metrics.json").is_file()
                remedy = f"report {folder}" if again else f"train RECIPE --out {folder}"
                raise DataError(f"{folder}: no finished run (no {name} in it); type: pml-ext {remedy}")
        self.recipe = self._read_recipe()
        self.facts = self._read_facts()
        digest, self._state = self._read_weights(device)
        self.identity = digest[:16]
        for name in ("recipe.toml", "network.json"):
            check_unchanged(folder, name)
        check_unchanged(folder, _WEIGHTS, digest)

    def _read_recipe(self) -> Recipe:
        """The recipe; no plugin is imported to look up its names where the network is of ours, which takes a second."""
        try:
            tables = read_toml(self.folder / "recipe.toml", "run")
        except DamagedError as error:
            raise self._damaged("recipe.toml", str(error)) from None
        tables.pop("run")
        try:
            recipe = Recipe.model_validate(tables)
        except ValidationError:
            return self.checked_recipe()
        return recipe if builtin_trunk(recipe.model.trunk.name) is not None else self.checked_recipe()

    def checked_recipe(self) -> Recipe:
        """The recipe with every name looked up.

        Raises:
            ConfigError: naming the key, what was found and what is wanted.
            PluginError: a plugin that the run was trained with is not in use.
        """
        return next(iter(load_recipes(str(self.folder / "recipe.toml")).values()))

    def _read_facts(self) -> NetworkFacts:
        try:
            return NetworkFacts.model_validate(read_json(self.folder / "network.json"))
        except (DamagedError, ValidationError) as error:
            raise self._damaged("network.json", reason_of(error)) from None

    def _read_weights(self, device: torch.device) -> tuple[str, dict[str, Any]]:
        """The SHA-256 of ``model.pt``, and what is in it."""
        return sha256_of(self.folder / _WEIGHTS), checkpoint.load(self.folder / _WEIGHTS, device)

    def network(self) -> Network:
        """The trained network; can be had once.

        Raises:
            DataError: the weights are of another network.
        """
        try:
            network = build_network(self.recipe.model, self.facts, self.facts.features, trained=True)
        except ConfigError as error:
            self.checked_recipe()  # what is wrong with the recipe is told of the recipe
            raise self._damaged("network.json", str(error)) from None
        self.load(network.trunk, "trunk")
        self.load(network.embedder, "embedder")
        # the rest is in the network now, and needs no memory twice
        self._state = {key: self._state.get(key) for key in ("loss", "versions")}
        return network

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
            return DataError(
                f"{self.folder / name}: empty, cut or changed ({shortened(reason, 200)}); delete "
                f"{self.folder / 'metrics.json'} and type: pml-ext train RECIPE --out {self.folder} "
                "--resume"
            )
        again = shlex.join(
            ["pml-ext", "train", str(self.folder / "recipe.toml"), "--out", str(self.folder), "--resume"]
        )
        return DataError(
            f"{self.folder / 'network.json'}: empty, cut or of another run ({reason}); delete "
            f"{self.folder / 'metrics.json'} and type: {again}"
        )
