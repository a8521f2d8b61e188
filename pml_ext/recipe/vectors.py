"""Settings for a user's own vectors: the split, the batches and the head that fit a file of embeddings and labels."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from ..data import LabeledImages, VectorFile, read_vectors
from ..errors import DataError
from .build import VECTORS
from .merge import read_tables
from .override import Overrides, overrides_of
from .own_data import (
    dataset_options,
    describe_split,
    fitting_batch,
    fitting_split,
    items_per_class,
    parts_of,
    range_of,
    sampler_of,
    takes_fitting_batches,
)
from .schema import IDENTITY

RECIPE = "pml/vectors"
BATCH = 128  # vectors, at most
LARGEST_EMBEDDING = 128
FEWEST_ITERATIONS = 20  # of an epoch
MOST_ITERATIONS = 500
_OF_A_TRUNK = {"freeze": "none", "views": "1", "freeze_batch_norm": "false"}  # settings of recipes for images


class OwnVectors(NamedTuple):
    """What a file of vectors is like, and the settings that fit it, as ``KEY=VALUE``."""

    name: str  # of the data set
    data: list[str]  # the data set, its split, and the validation vectors that choose the epoch
    head: list[str]
    batches: list[str]
    description: list[str]  # a line each
    sampler: str  # that the options name; "" for the recipe's


def describe_vectors(place: str | Path, overrides: Overrides = (), root: Path | None = None) -> OwnVectors:
    """Look at a file of vectors; DataError if it is not as wanted, or has too few vectors.

    The ``overrides`` of ``data`` are followed.
    """
    path = _without_kind(place)
    overrides = overrides_of(overrides)
    name = f"{VECTORS}{path}"
    file = read_vectors((root or Path()) / path.expanduser())
    if file.labels is None:
        raise DataError(f"{file.path}: no labels; training wants the key 'labels', [N], integers or texts")
    options = dataset_options(overrides)
    data = [f"data.name={name}"]
    split_is_chosen = file.split is not None or "split" in options
    if not split_is_chosen:
        whole = LabeledImages(torch.from_numpy(file.embeddings), file.labels, file.class_names)
        split = fitting_split(file.path, [whole])
        options["split"] = split
        data.append(f"data.split={split}")
    parts = parts_of(name, options, root)
    if file.split is not None and (file.split == "validation").any():
        data += ["evaluation.select=map_at_r", "evaluation.select_on=split"]

    trained = items_per_class(parts[:1])
    in_batch, per_class = fitting_batch(len(trained), float(np.median(trained)), BATCH)
    batch = in_batch * per_class
    iterations = min(max(FEWEST_ITERATIONS, len(parts[0]) // batch), MOST_ITERATIONS)
    batches = [f"sampler.m={per_class}", f"sampler.batch_size={batch}", f"sampler.iterations={iterations}"]

    vectors = file.embeddings.shape[1]
    size = min(vectors, LARGEST_EMBEDDING)
    trained_labels = set(parts[0].labels.tolist())
    embedder = "mlp" if trained_labels & set(parts[-1].labels.tolist()) else "linear"
    per_class_in_file = items_per_class(parts)
    counts = f"{len(file.embeddings):,} vectors of {vectors} numbers"
    description = [
        f"{file.path}: {counts}, {len(per_class_in_file)} classes of {range_of(per_class_in_file)}",
        _split_of_file(file) if file.split is not None else describe_split(parts, split_is_chosen),
        f"{_HEADS[embedder]}, {vectors} to {size} numbers; otherwise: --set model.embedder={_OTHER[embedder]}",
        f"batches of {in_batch} classes x {per_class} vectors, {iterations} in an epoch; longer training: "
        "--set schedule.epochs=40",
    ]
    head = [f"model.embedder={embedder}", f"model.embedding_size={size}"]
    return OwnVectors(name, data, head, batches, description, sampler_of(overrides))


_HEADS = {
    "linear": "a linear head, since the tested classes are new",
    "mlp": "a head with a hidden layer of 512, since the tested classes train",
}
_OTHER = {"linear": "mlp", "mlp": "linear"}


def settings_for_vectors(recipe: str, vectors: OwnVectors) -> list[str]:
    """Return the settings of a recipe for vectors; a recipe of images loses its trunk, and keeps its head."""
    tables = read_tables(recipe)
    settings = [*vectors.data, f"model.trunk={IDENTITY}"]
    if recipe == RECIPE:
        settings += vectors.head
    for key, default in _OF_A_TRUNK.items():
        if key in tables.get("model", {}):
            settings.append(f"model.{key}={default}")
    for key, default in (("workers", "0"), ("unreadable", "stop")):
        if key in tables.get("data", {}):
            settings.append(f"data.{key}={default}")
    if takes_fitting_batches(tables.get("sampler", {}), vectors.sampler):
        settings += vectors.batches
    return settings


def _without_kind(place: str | Path) -> Path:
    """Return the path of a file, also of one written as in a recipe, ``vectors:FILE``."""
    if str(place).startswith(VECTORS) and not Path(place).exists():
        return Path(str(place).removeprefix(VECTORS))
    return Path(place)


def _split_of_file(file: VectorFile) -> str:
    """Return a line about the file's own split."""
    assert file.split is not None
    assert file.labels is not None
    texts = []
    for part in ("train", "validation", "test"):
        rows = file.split == part
        if rows.any():
            texts.append(f"{part} {int(rows.sum()):,} of {len(np.unique(file.labels[rows]))} classes")
    return f"the file's split: {', '.join(texts)}"
