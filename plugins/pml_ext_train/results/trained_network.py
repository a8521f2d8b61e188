"""A finished run loaded from its folder."""

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from pydantic import BaseModel, Field, ValidationError

from pml_ext.errors import ConfigError, DataError, one_line, shortened

from ..files import DamagedError, check_writable, read_json, reading
from ..files.checksums import read_sums, sha256_of
from ..networks.network import By, Network, Preprocessing, VectorInput
from ..networks.trunks import builtin_trunk
from ..recipe import Recipe, build_loss, build_network, load_recipe, loss_context
from ..records.run_files import (
    METRICS,
    MODEL,
    NETWORK,
    RECIPE,
    check_unchanged,
    how_to_redo,
    no_finished_run,
    tables_of_run,
)
from ..training import checkpoint

if TYPE_CHECKING:  # seconds to import, not needed for a query
    from pml_ext.pml import BaseDistance


class _Description(BaseModel):
    """The part of ``network.json`` besides the input."""

    features: int = Field(ge=1)
    classes: list[int]
    class_names: list[str] = Field(default_factory=list)


class NetworkDescription(Preprocessing, _Description):
    """``network.json`` of a network for images."""


class HeadDescription(VectorInput, _Description):
    """``network.json`` of a head on vectors."""


class LoadedRun:
    """A trained network with the preprocessing of its run.

    DataError if the folder has no finished run, or a damaged or foreign file.
    """

    def __init__(self, folder: Path, device: str) -> None:
        self.folder = folder
        self.device = torch.device(device)
        self._check_files()
        self.recipe = self._read_recipe()
        self.description = self._read_description()
        """The content of ``network.json``."""
        with reading(folder / MODEL):
            digest = sha256_of(folder / MODEL)
        for name in (RECIPE, NETWORK):
            check_unchanged(folder, name)
        self._digest = digest
        self.identity = digest[:16]
        """The start of the SHA-256 of ``model.pt``."""
        if read_sums(folder).get(MODEL) != digest:  # damaged, or without a checksum: loading decides
            _ = self.network

    @functools.cached_property
    def network(self) -> Network:
        """The trained network, built on first use."""
        with reading(self.folder / MODEL):
            digest = sha256_of(self.folder / MODEL)
        if digest != self._digest:
            raise DataError(f"{self.folder / MODEL}: changed since the run was loaded; load it again")
        state = checkpoint.load(self.folder / MODEL, self.device, digest=digest)
        self._loss_state: dict[str, Any] = {key: state.get(key) for key in ("loss", "versions")}
        return self._build_network(state)

    def _check_files(self) -> None:
        for name in (RECIPE, NETWORK, MODEL):
            if (self.folder / name).is_file():
                continue
            if (self.folder / METRICS).is_file():
                raise DataError(f"{self.folder / name} is missing; {how_to_redo(self.folder, name)}")
            raise no_finished_run(self.folder, name)

    def _read_recipe(self) -> Recipe:
        """Read the recipe; importing plugins, for their trunks, takes a second."""
        tables = tables_of_run(self.folder)
        tables.pop("run")
        try:
            recipe = Recipe.model_validate(tables)
        except ValidationError:
            return self._checked_recipe()
        return recipe if builtin_trunk(recipe.model.trunk.name) is not None else self._checked_recipe()

    def _checked_recipe(self) -> Recipe:
        return load_recipe(str(self.folder / RECIPE))

    def _read_description(self) -> NetworkDescription | HeadDescription:
        schema = HeadDescription if self.recipe.model.takes_vectors else NetworkDescription
        try:
            return schema.model_validate(read_json(self.folder / NETWORK))
        except (DamagedError, ValidationError) as error:
            raise self._damaged(NETWORK, error) from None

    def _build_network(self, state: dict[str, Any]) -> Network:
        try:
            network = build_network(self.recipe.model, self.description, self.description.features, trained=True)
        except ConfigError as error:
            self._checked_recipe()  # raises the recipe's own error, if it has one
            raise self._damaged(NETWORK, error) from None
        with checkpoint.errors_with_path(self.folder / MODEL, state):
            network.trunk.load_state_dict(state["trunk"])
            network.embedder.load_state_dict(state["embedder"])
        return network.to(self.device).eval()

    def _damaged(self, name: str, error: Exception) -> DataError:
        reason = f"empty, truncated or from another run ({shortened(one_line(error), 200)})"
        return DataError(f"{self.folder / name}: {reason}; {how_to_redo(self.folder, name)}")

    @functools.cached_property
    def metric(self) -> "BaseDistance | None":
        """The learned metric of the run's loss, in evaluation mode, or None."""
        from pml_ext.evaluation import learned_metric

        _ = self.network  # whose checkpoint has the loss's state
        recipe = self._checked_recipe()
        context = loss_context(recipe, self.description.classes, self.description.class_names)
        loss, _ = build_loss(recipe.loss, context)
        with checkpoint.errors_with_path(self.folder / MODEL, self._loss_state):
            loss.load_state_dict(self._loss_state["loss"])
        metric: BaseDistance | None = learned_metric(loss.modules())
        if metric is not None:
            metric.to(self.device).eval()
        return metric

    def network_by(self, by: By) -> Network:
        """Return the whole network, or without its head for ``"features"``."""
        return self.network.without_head() if by == "features" else self.network

    def export(self, out: str | Path, onnx: bool = False, by: By = "embeddings") -> Path:
        """Write weights, ``preprocess.json``, a model card and checksums; return the folder.

        ``by="features"`` leaves out the head. ``onnx`` adds ``model.onnx`` for batches of any size; ConfigError
        if torch cannot write it, or embeddings of 100 noise images differ by more than 1e-4.
        """
        from .export import write_export

        place = Path(out)
        check_writable("-o", place)
        write_export(place, self.folder, self.recipe, self.network_by(by), onnx, by)
        return place
