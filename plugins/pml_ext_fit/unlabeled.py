"""``pml-ext fit`` of images or vectors without labels: pretrained features, whitened, and the collection of them.

Nothing is trained, and nothing is tested, since what is right is not known. The features are computed once: the
whitening is fitted to them, and the collection is made of them.
"""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pml_ext.distributed import choose_device, keep_freed_memory, num_processes
from pml_ext.errors import ConfigError, UnwritableError, one_line
from pml_ext.registry import service
from pml_ext_train.data import DataSplits, is_vector_file, read_vectors, visible_entries
from pml_ext_train.launch import check_folder, default_folder, train
from pml_ext_train.recipe import Override, build_dataset, load_recipe, overrides_of, preprocessing_of
from pml_ext_train.records import RECIPE, tables_of_run
from pml_ext_train.retrieval import SearchService

from . import folder_runs
from .closed_forms import WHITENED
from .framing import SQUASH
from .one_pass import keep_features
from .resume import begun_folder
from .settings import Settings
from .trunk import Trunk, check_resumed
from .unlabeled_whitening import shrinkage_without_labels, whitening_helps

if TYPE_CHECKING:
    from torch import Tensor

    from pml_ext_train.retrieval import EmbeddingListener
    from pml_ext_train.training import Features

IMAGES = "fit/unlabeled"
VECTORS = "fit/unlabeled-vectors"
DATA = "unlabeled"
# Fewer images are not whitened: whitening made their retrieval worse
WHITENED_FROM = 500


@dataclass(frozen=True)
class UnlabeledFit:
    """What is fitted without labels, where and how."""

    place: Path  # a folder of images, or a file of vectors
    out: Path | None
    overrides: Sequence[Override]
    seed: int
    device: str
    resume: bool
    listener: EmbeddingListener
    indexes: bool = True  # whether the collection is made at once
    trunk: Trunk | None = None  # another one than that of the recipe


def has_no_labels(place: Path) -> bool:
    """Return whether data say nothing of classes: a folder whose images are all in itself, or vectors alone."""
    if place.is_dir():
        return _is_flat(place)
    if not (place.is_file() and is_vector_file(place)):
        return False
    from .images import is_table

    return not is_table(place) and read_vectors(place).labels is None


def _is_flat(folder: Path) -> bool:
    """Return whether a folder has files, and no visible folder in it: nothing in it can be a class."""
    entries = visible_entries(folder, [])
    return bool(entries) and not any(entry.is_dir() for entry in entries.values())


def fit_unlabeled(asked: UnlabeledFit) -> list[dict[str, Any]]:
    """Make a run of images or vectors without labels, and their collection; return its ``metrics.json`` in a list."""
    if num_processes() > 1:
        raise ConfigError("one process fits data without labels; leave out torchrun")
    check_folder(asked.out, asked.resume)
    place = asked.place.expanduser().resolve()
    out = asked.out or default_folder(place.stem, asked.seed)
    asked = replace(asked, place=place, out=out)
    name, settings = _recipe_of(asked, out)
    splits, features = _splits_of(asked, out, name, settings)
    if name in (IMAGES, VECTORS):
        settings |= _closed_form(splits, features, name, settings, asked)
    results = train(
        name,
        out=out,
        seed=asked.seed,
        device=asked.device,
        overrides=[*overrides_of(settings), *asked.overrides],
        resume=out.exists(),
        listener=asked.listener,
        splits=splits,
    )
    if asked.indexes:
        index_run(out, place, asked.device)
    if place.is_dir():
        folder_runs.remember(place, out)
    return results


def _recipe_of(asked: UnlabeledFit, out: Path) -> tuple[str, Settings]:
    """Return the recipe, and the settings that say where the data are; those of a run that was begun are its own."""
    if (out / RECIPE).is_file():
        tables = tables_of_run(out)
        found = tables["data"]
        if (found.get("name"), found.get("path")) != (DATA, str(asked.place)):
            raise ConfigError(
                f"{out} holds a run of {found.get('path') or found.get('name')}, not of {asked.place} without labels; "
                "choose another --out"
            )
        check_resumed(out, tables["model"]["trunk"], asked.trunk)
        return str(out / RECIPE), {}
    settings: Settings = {"data.path": str(asked.place)}
    if asked.place.is_file():
        size = read_vectors(asked.place).embeddings.shape[1]
        return VECTORS, settings | {"model.embedding_size": size}
    if asked.trunk is not None:
        settings |= unlabeled_settings(asked.trunk)
    return IMAGES, settings


def unlabeled_settings(trunk: Trunk) -> Settings:
    """Return the settings of a trunk that sees images as its weights did; none for that of the recipe."""
    if not trunk.settings:
        return {}
    framing = trunk.framing.settings | {SQUASH: trunk.framing.squash}
    return trunk.settings | framing | {"model.embedding_size": trunk.features}


def _splits_of(asked: UnlabeledFit, out: Path, name: str, settings: Settings) -> tuple[DataSplits, Features | Tensor]:
    """Return the readable data and their features; a note names files that cannot be read."""
    recipe = load_recipe(name, [*overrides_of(settings), *asked.overrides])
    splits = build_dataset(recipe.data, None)
    if splits.vector_size is not None:
        vectors: Tensor = splits.train.images
        return splits, vectors
    preprocessing, _ = preprocessing_of(recipe, splits)
    device = choose_device(asked.device)
    keep_freed_memory(device)
    with begun_folder(out, lambda again: f"while features were computed, which are kept; {again}"):
        found = keep_features(
            recipe, splits.train, preprocessing, device, asked.listener.step, asked.listener.embedding
        )
    return replace(splits, train=found.readable, note=found.note), found.features


def _closed_form(
    splits: DataSplits, features: Features | Tensor, name: str, settings: Settings, asked: UnlabeledFit
) -> Settings:
    """Return the settings of whitening, or none if it is not expected to help or the user chose a head."""
    count = len(splits.train)
    noun = "images" if splits.vector_size is None else "vectors"
    if any(override.key.startswith("model.") for override in asked.overrides):
        return {}
    if count < WHITENED_FROM:
        asked.listener.step(f"uses unwhitened features: whitening needs {WHITENED_FROM} {noun}, found {count}")
        return {}
    size = load_recipe(name, overrides_of(settings)).model.embedding_size
    shrinkage = shrinkage_without_labels(count, size)
    if not whitening_helps(features, shrinkage):
        asked.listener.step("uses unwhitened features: whitening would not keep their groups apart")
        return {}
    asked.listener.step(
        f"whitens the features by the covariance of all {count:,} {noun}, shrinkage {shrinkage:g}; to turn this off: "
        "--set model.embedder=none"
    )
    return WHITENED.settings(size) | {"model.shrinkage": shrinkage}


def next_commands(run: Path, place: Path) -> str:
    """Return a line that says what to type to search a run's collection."""
    shown = shlex.quote(str(run))
    if place.is_dir():
        where = shlex.quote(str(place))
        return f"ready to search: pml-ext query {where} IMAGE, pml-ext cluster {where}, pml-ext browse {where}"
    return f"ready to search: pml-ext query {shown} ID"


def index_run(run: Path, place: Path, device: str) -> None:
    """Index a folder of images, or a file of vectors, by a finished run; features that are kept are not computed."""
    search: SearchService = service("search", "pml-ext fit without labels")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="skipped ")  # which the run has warned of
        search.load_run(run, device).index(place)


def run_of_folder(folder: Path, device: str, listener: EmbeddingListener) -> Path:
    """Return the run that a folder of images has; without one, make one in the user's cache, and say so in a line."""
    known = folder_runs.remembered(folder)
    if known is not None:
        listener.step(f"uses the run of {folder}: {known}")
        return known
    home = folder_runs.home_of(folder)
    out = home / (folder.resolve().name or "folder")
    elsewhere = f"type: pml-ext fit {shlex.quote(str(folder))} --no-labels --out RUN"
    listener.step(
        f"{folder} has no run yet: makes one of it in {out}, without labels; to choose its folder, {elsewhere}"
    )
    try:
        home.mkdir(parents=True, exist_ok=True)
        fit_unlabeled(UnlabeledFit(folder, out, [], 0, device, out.exists(), listener, indexes=False))
    except OSError as error:  # UnwritableError is one
        reason = getattr(error.__cause__ or error, "strerror", None) or one_line(error)
        raise UnwritableError(f"the cache cannot be written ({reason}); {elsewhere}", source=str(out)) from error
    return out
