"""``fit`` of data without labels: features, perhaps whitened, and their collection.

Nothing is trained, and nothing can be tested. Features are computed once, and used by the whitening and the collection.
"""

import shlex
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from pml_ext.distributed import choose_device, keep_freed_memory, num_processes
from pml_ext.errors import ConfigError, UnwritableError, one_line
from pml_ext.registry import service
from pml_ext_train.data import DataSplits, Exclusion, is_vector_file, read_vectors, visible_entries
from pml_ext_train.launch import check_folder, default_folder, train
from pml_ext_train.recipe import build_dataset, load_recipe, overrides_of, preprocessing_of
from pml_ext_train.records import RECIPE, tables_of_run
from pml_ext_train.retrieval import EmbeddingListener, SearchService
from pml_ext_train.training import Features

from . import folder_runs
from .closed_forms import WHITENED
from .fit_options import FitOptions
from .framing import SQUASH
from .images import is_table
from .one_pass import keep_features
from .resume import begun_folder
from .settings import Settings
from .trunk import Trunk, check_resumed
from .unlabeled_whitening import shrinkage_without_labels, whitening_helps

IMAGES = "fit/unlabeled"
VECTORS = "fit/unlabeled-vectors"
DATA = "unlabeled"
WHITENED_FROM = 500  # images; whitening made retrieval of fewer worse


def has_no_labels(place: Path, exclude: Sequence[str] = ()) -> bool:
    """Whether data lack classes: a folder without sub-folders, or vectors without labels.

    Sub-folders that match a pattern of ``exclude`` do not count.
    """
    if place.is_dir():
        exclusion = Exclusion(place, exclude)
        entries = visible_entries(place, [])
        return bool(entries) and not any(
            entry.is_dir() and not exclusion.covers(name, is_folder=True) for name, entry in entries.items()
        )
    if not (place.is_file() and is_vector_file(place)) or is_table(place):
        return False
    return read_vectors(place).labels is None


def fit_unlabeled(
    place: Path, options: FitOptions, listener: EmbeddingListener, indexes: bool = True
) -> list[dict[str, Any]]:
    """Make a run of a folder of images or a file of vectors, and their collection if it ``indexes``.

    Returns the contents of ``metrics.json`` in a list.
    """
    if num_processes() > 1:
        raise ConfigError("one process fits data without labels; leave out torchrun")
    check_folder(options.out, options.resume)
    place = place.expanduser().resolve()
    out = options.out or default_folder(place.stem, options.seed)
    name, settings = _recipe_of(place, out, options)
    splits, features = _splits_of(out, name, settings, options, listener)
    if name in (IMAGES, VECTORS):
        settings |= _closed_form(splits, features, name, settings, options, listener)
    results = train(
        name,
        out=out,
        seed=options.seed,
        device=options.device,
        overrides=[*overrides_of(settings), *options.overrides],
        resume=out.exists(),
        listener=listener,
        splits=splits,
    )
    if indexes:
        index_run(out, place, options)
    if place.is_dir():
        folder_runs.remember(place, out)
    return results


def _recipe_of(place: Path, out: Path, options: FitOptions) -> tuple[str, Settings]:
    """Return the recipe, and the settings that name the data; an earlier run in ``out`` keeps its own."""
    if (out / RECIPE).is_file():
        tables = tables_of_run(out)
        found = tables["data"]
        if (found.get("name"), found.get("path")) != (DATA, str(place)):
            raise ConfigError(
                f"{out} holds a run of {found.get('path') or found.get('name')}, not of {place} without labels; "
                "choose another --out"
            )
        check_resumed(out, tables["model"]["trunk"], options.trunk)
        return str(out / RECIPE), {}
    settings: Settings = {"data.path": str(place)}
    if place.is_file():
        return VECTORS, settings | {"model.embedding_size": read_vectors(place).embeddings.shape[1]}
    if options.trunk is not None:
        settings |= unlabeled_settings(options.trunk)
    return IMAGES, settings


def unlabeled_settings(trunk: Trunk) -> Settings:
    """Settings of a trunk, with the framing of its weights; empty for the recipe's own."""
    if not trunk.settings:
        return {}
    framing = trunk.framing.settings | {SQUASH: trunk.framing.squash}
    return trunk.settings | framing | {"model.embedding_size": trunk.features}


def _splits_of(
    out: Path, name: str, settings: Settings, options: FitOptions, listener: EmbeddingListener
) -> tuple[DataSplits, Features | Tensor]:
    """Return the readable data and their features; a note names files that cannot be read."""
    recipe = load_recipe(name, [*overrides_of(settings), *options.overrides])
    splits = build_dataset(recipe.data, None)
    if splits.vector_size is not None:
        return splits, cast(Tensor, splits.train.images)
    preprocessing, _ = preprocessing_of(recipe, splits)
    device = choose_device(options.device)
    keep_freed_memory(device)
    with begun_folder(out, lambda again: f"while features were computed, which are kept; {again}"):
        found = keep_features(recipe, splits.train, preprocessing, device, listener.step, listener.embedding)
    return replace(splits, train=found.readable, note=found.note), found.features


def _closed_form(
    splits: DataSplits,
    features: Features | Tensor,
    name: str,
    settings: Settings,
    options: FitOptions,
    listener: EmbeddingListener,
) -> Settings:
    """Return settings of whitening; empty if it is not expected to help or the user chose a head."""
    count = len(splits.train)
    noun = "images" if splits.vector_size is None else "vectors"
    if any(override.key.startswith("model.") for override in options.overrides):
        return {}
    if count < WHITENED_FROM:
        listener.step(f"uses unwhitened features: whitening needs {WHITENED_FROM} {noun}, found {count}")
        return {}
    size = load_recipe(name, overrides_of(settings)).model.embedding_size
    shrinkage = shrinkage_without_labels(count, size)
    if not whitening_helps(features, shrinkage):
        listener.step("uses unwhitened features: whitening would not keep their groups apart")
        return {}
    listener.step(
        f"whitens the features by the covariance of all {count:,} {noun}, shrinkage {shrinkage:g}; to turn this off: "
        "--set model.embedder=none"
    )
    return WHITENED.settings(size) | {"model.shrinkage": shrinkage}


def next_commands(run: Path, place: Path) -> str:
    """A line with the commands that search a run's collection."""
    shown = shlex.quote(str(run))
    if place.is_dir():
        where = shlex.quote(str(place))
        return f"ready to search: pml-ext query {where} IMAGE, pml-ext cluster {where}, pml-ext browse {where}"
    return f"ready to search: pml-ext query {shown} ID"


def index_run(run: Path, place: Path, options: FitOptions) -> None:
    """Index a folder of images, or a file of vectors, with a finished run."""
    search: SearchService = service("search", "pml-ext fit without labels")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="skipped ")  # the run has warned of these files
        search.load_run(run, options.device, exclude=options.exclude).index(place)


def run_of_folder(folder: Path, device: str, listener: EmbeddingListener, exclude: Sequence[str] | None = None) -> Path:
    """Return the run of a folder of images; the first call makes one in the user's cache."""
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
        overrides = overrides_of({"data.exclude": list(exclude)} if exclude else {})
        options = FitOptions(overrides, [], out, resume=out.exists(), seed=0, device=device)
        fit_unlabeled(folder, options, listener, indexes=False)
    except OSError as error:  # includes UnwritableError
        reason = getattr(error.__cause__ or error, "strerror", None) or one_line(error)
        raise UnwritableError(f"the cache cannot be written ({reason}); {elsewhere}", source=str(out)) from error
    return out
