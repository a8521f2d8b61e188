"""Recipes from files, merged over what they extend; not validated."""

import importlib.resources
import os
import tomllib
from collections.abc import Iterable
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, NamedTuple

from pml_ext import registry
from pml_ext.errors import ConfigError, UnknownNameError, unknown

from .override import DEEP_KEY, Override
from .sweep import Tables, Variants, expanded, without_variant
from .tables import INHERITED, flat, merged

PIPELINES = "pipelines/"  # prefix of the names of pipelines


class RecipeFile(NamedTuple):
    """A recipe's file, merged over what it extends."""

    source: str  # path of the file, for messages
    tables: Tables  # all but ``[run]``
    run: Tables  # ``[run]``, which the recipe of a run has


def read_tables(name: str) -> Tables:
    """Return a recipe's merged tables, not validated."""
    return read_recipe(name).tables


def variant_tables(name: str) -> dict[str, Tables]:
    """Return the merged tables of a recipe's variants by full name, not validated."""
    _, variants = read_variants(name)
    return variants.tables


def read_variants(name: str, overrides: Iterable[Override] = ()) -> tuple[RecipeFile, Variants]:
    """Read a recipe and expand its ``[sweep]``, with overrides."""
    file = read_recipe(without_variant(name))
    return file, expanded(name, file.tables, overrides, file.source)


def pipelines() -> dict[str, Traversable]:
    """Return the packaged pipelines by name: partial recipes of preprocessing or a trunk."""
    folder = importlib.resources.files(__package__) / "pipelines"
    files = sorted(folder.iterdir(), key=lambda file: file.name)
    return {PIPELINES + file.name.removesuffix(".toml"): file for file in files if file.name.endswith(".toml")}


def read_recipe(name: str, children: tuple[str, ...] = ()) -> RecipeFile:
    """Read a recipe and merge it over what it extends; ``children`` extend it."""
    if name in children:
        raise ConfigError(f"extends itself: {' -> '.join((*children, name))}", source=name)
    children = (*children, name)
    file = _file(name)
    tables = _parsed(file)

    run = tables.pop("run", {})
    sweep = tables.get("sweep")
    if isinstance(sweep, dict):
        for choices in sweep.values():
            if isinstance(choices, dict):
                _extend_choices(choices, tables.get("origin", {}), file, children)
    return RecipeFile(str(file), _extended(tables, file, children), run if isinstance(run, dict) else {})


def _parsed(file: Traversable) -> Tables:
    try:
        text = file.read_text("utf-8")
        if DEEP_KEY.search(text):  # tomllib's time grows with the square of the parts
            raise ValueError("a key is nested too deep; wanted the tables of a recipe")
        return tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"cannot be read ({error.strerror})", source=str(file)) from None
    except ValueError as error:  # also of bytes that are not UTF-8, and of integers of thousands of digits
        raise ConfigError(f"not valid TOML: {error}", source=str(file)) from None


def _extend_choices(choices: Tables, origins: Any, file: Traversable, children: tuple[str, ...]) -> None:
    for label, choice in choices.items():
        if isinstance(choice, dict) and "extends" in choice:
            # The file's own origins override the origins of what the choice extends.
            with_origins = merged({"origin": origins}, choice)
            extended = _extended(with_origins, file, children, f"sweep: {label}: ")
            extended.pop("sweep", None)
            extended[INHERITED] = sorted(flat(extended).keys() - flat(choice).keys())
            choices[label] = extended


def _extended(tables: Tables, file: Traversable, children: tuple[str, ...], where: str = "") -> Tables:
    """Merge tables of a file over what they extend: recipes, variants and pipelines."""
    parents = tables.pop("extends", [])
    if not isinstance(parents, list):
        parents = [parents]

    base: Tables = {}
    pipeline_images: Tables = {}  # [data.images] of pipelines, valid for any data set
    for parent in parents:
        if not isinstance(parent, str):
            raise ConfigError(
                f"{where}extends: found {parent!r}, wanted the name of a recipe, or several", source=str(file)
            )
        if without_variant(parent).endswith(".toml") and isinstance(file, Path):
            parent = str(file.parent / parent)
        try:
            inherited = _tables_of_parent(parent, children)
        except UnknownNameError as error:
            raise ConfigError(f"{where}extends: {error}", source=str(file)) from None
        if parent.startswith(PIPELINES):
            images = inherited.pop("data", {}).get("images", {})
            pipeline_images = merged(pipeline_images, images)
        base = merged(base, inherited)

    result = merged(base, tables)
    if pipeline_images:  # merged drops them where the file names another data set than its parents
        data = tables.get("data")
        images_of_file = data.get("images", {}) if isinstance(data, dict) else {}
        images = merged(pipeline_images, images_of_file)
        result["data"] = {**result.get("data", {}), "images": images}
    return result


def _tables_of_parent(name: str, children: tuple[str, ...]) -> Tables:
    is_variant = without_variant(name) != name
    tables = variant_tables(name)[name] if is_variant else read_recipe(name, children).tables
    tables.pop("paper", None)  # a paper's results belong to the settings of the recipe that names them
    return tables


def _file(name: str) -> Traversable:
    if name.endswith(".toml"):
        if not os.path.isfile(name):
            raise ConfigError("no such recipe file", source=name)
        return Path(name)
    if not name.startswith(PIPELINES):
        _, file = registry.find("recipe", name)
        return file  # type: ignore[no-any-return]
    files = pipelines()
    if name not in files:
        raise UnknownNameError(unknown("pipeline", name, files))
    return files[name]
