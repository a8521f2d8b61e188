"""Data, label relation and network of a recipe, built on a device."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from pml_ext.distributed import num_processes
from pml_ext.relations import Relation

from ..data import DataSplits
from ..networks import Network, VectorInput, use_channels_last
from ..recipe import Recipe, build_network, build_relation
from . import checkpoint
from .batch_norm import synchronize_batch_norm
from .run_data import RunData, load_run_data


@dataclass(frozen=True)
class Built:
    """The data and the network of a recipe on a device, returned by :func:`build`."""

    recipe: Recipe
    seed: int
    device: torch.device
    data: RunData
    relation: Relation | None  # of labels, if the recipe names one
    network: Network
    memory_format: torch.memory_format  # of images

    @property
    def identity(self) -> str:
        """Digest of recipe and seed for checkpoints; excludes epochs and trackers, which may change."""
        tables = self.recipe.as_dict()
        del tables["schedule"]["epochs"]
        del tables["track"]
        text = json.dumps([tables, self.seed], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def build(
    recipe: Recipe,
    seed: int = 0,
    device: str = "cpu",
    root: Path | None = None,
    tell: Callable[[str], None] = lambda text: None,
    splits: DataSplits | None = None,
) -> Built:
    """Seed all generators, load the data, and build the network.

    ``root`` is the data folder. ``tell`` receives a line before a long step. ``splits`` replace the splits of the data
    set.
    """
    place = torch.device(device)
    checkpoint.seed_all(seed)
    data = load_run_data(recipe, seed, root, tell, splits)
    relation = build_relation(recipe.data, data.training_images.class_names)
    network = build_network(recipe.model, data.preprocessing)
    if num_processes() > 1:
        network.trunk = synchronize_batch_norm(network.trunk, place)
        network.embedder = synchronize_batch_norm(network.embedder, place)
    network.to(place)
    return Built(
        recipe=recipe,
        seed=seed,
        device=place,
        data=data,
        relation=None if relation is None else relation.to(place),
        network=network,
        memory_format=_choose_memory_format(recipe, data, network, place),
    )


def _choose_memory_format(recipe: Recipe, data: RunData, network: Network, device: torch.device) -> torch.memory_format:
    """Return the memory format of images, after converting the trunk to it."""
    wanted = recipe.engine.channels_last
    preprocessing = data.preprocessing
    if isinstance(preprocessing, VectorInput):
        return torch.contiguous_format
    if wanted is None and device.type == "cpu":
        return use_channels_last(network.trunk, preprocessing.channels, preprocessing.image_size)
    if not wanted:
        return torch.contiguous_format
    network.trunk.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return torch.channels_last
