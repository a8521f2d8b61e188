"""Reads recipes: a file, merged with what it extends, overridden by ``--set``, split by its sweep."""

from __future__ import annotations

import copy
import importlib.resources
import tomllib
from collections.abc import Iterable
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from ... import registry
from ...errors import ConfigError, PluginError, UnknownNameError, shortened, unknown
from ...files import toml_value
from .checking import validate
from .names import all_names, home_of, settled
from .papers import with_row
from .schema import Recipe
from .values import merged
from .variants import choices, combined

PIPELINES = "pipelines/"  # how their names begin


def load_recipes(name: str, overrides: Iterable[str] = ()) -> dict[str, Recipe]:
    """Reads a recipe and validates it whole.

    Args:
        name: a registered recipe (``"cbml/digits"``), one variant of a sweep (``"cbml/sweep@0.1"``), or the path of a
            ``.toml`` file.
        overrides: ``"key=value"`` pairs, ``loss.mvc_weight=0.1``; values in TOML, or else taken as text.

    Returns:
        ``{name: recipe}``: one entry, or one a variant where the recipe has a ``[sweep]``.

    Raises:
        ConfigError: naming the file, the key, what was found and what is wanted.
        UnknownNameError: no such recipe.
        PluginError: a run's recipe, and a plugin that it was trained with is not in use.
    """
    try:
        return _load(name, overrides)
    except (ConfigError, UnknownNameError) as error:
        raise type(error)(shortened(error)) from error.__cause__
    except RecursionError:
        raise ConfigError(shortened(f"{name}: nested too deep; wanted the tables of a recipe")) from None


def _load(name: str, overrides: Iterable[str]) -> dict[str, Recipe]:
    source, run, variants = _variants(name, overrides)
    recipes = {}
    for full_name, tables in variants.items():
        try:
            recipes[full_name] = validate(tables, source, quotes=not run)
        except ConfigError as error:
            if lacking := registry.lacking(run.get("plugins", {})):
                raise PluginError(f"{source}: {lacking} ({str(error).removeprefix(f'{source}: ')})") from None
            raise
    return recipes


def variant_tables(name: str) -> dict[str, dict[str, Any]]:
    """The tables of a recipe's variants, by their full names, merged and not validated.

    Args:
        name: as of :func:`load_recipes`.
    """
    return _variants(name, ())[2]


def _variants(name: str, overrides: Iterable[str]) -> tuple[str, dict[str, Any], dict[str, dict[str, Any]]]:
    """The file's name, what a run says of itself in it, and the tables of the variants by their full names."""
    base, variant = _without_variant(name)
    if name.endswith("@"):
        raise UnknownNameError(f"no variant {name!r}; all are {base!r}")
    source, tables, run = _read(base)
    home = home_of(base, run)
    sweep = tables.pop("sweep", {})
    given = [_parsed(override) for override in sorted(overrides, key=_names_something, reverse=True)]
    for key, value in given:
        _assign(tables, key, value, f"--set {key}", home)
        if isinstance(sweep, dict) and isinstance(sweep.get(key), list):
            del sweep[key]
    known = choices(sweep, source)
    variants = {f"{base}@{label}" if known else base: picked for label, picked in combined(known, source).items()}
    if variant:
        if name not in variants:
            raise UnknownNameError(f"no variant {name!r}; variants: {', '.join(variants)}")
        variants = {name: variants[name]}
    result = {}
    for full_name, picked in variants.items():
        mine = copy.deepcopy(tables)
        for key, value in picked:
            _assign(mine, key, value, f"{source}: [sweep]", home)
        if any(not key for key, _ in picked):  # tables of their own, which --set overrides as well
            for key, value in given:
                _assign(mine, key, value, f"--set {key}", home)
        if "paper" in mine:
            mine["paper"] = with_row(mine["paper"], full_name.removeprefix(f"{base}@"))
        result[full_name] = mine
    return source, run, result


def _parsed(override: str) -> tuple[str, Any]:
    """The key of a ``--set`` and its value."""
    key, separator, text = override.partition("=")
    if not separator or not key.strip():
        raise ConfigError(f"--set {override}: wanted KEY=VALUE, for example loss.name=pml/contrastive")
    return key.strip(), toml_value(text.strip())


def _names_something(override: str) -> bool:
    """Whether an override names what a table is about; those go first, since another name begins the table anew."""
    key = override.partition("=")[0].strip()
    return "." not in key or key.endswith((".name", ".trunk", ".miner", ".regularizer"))


def _without_variant(name: str) -> tuple[str, str]:
    """A recipe's name or path, and the variant after its ``@``; a path's folders may have an ``@`` of their own."""
    path, separator, variant = name.rpartition(".toml")
    if separator and (not variant or variant.startswith("@")):
        return path + separator, variant.removeprefix("@")
    base, _, variant = name.partition("@")
    return base, variant


def read_tables(name: str) -> dict[str, Any]:
    """A recipe's tables, merged with what it extends, not validated.

    Args:
        name: a registered recipe or the path of a ``.toml`` file.
    """
    return _read(name)[1]


def names_in(recipe: str) -> set[tuple[str, str]]:
    """Everything that a registered recipe names; nothing, if its file cannot be read.

    Args:
        recipe: a registered recipe.

    Returns:
        What each is, and its name: ``("loss", "cbml")``, ``("data set", "digits")``.
    """
    try:
        return all_names(read_tables(recipe))
    except (ConfigError, UnknownNameError):
        return set()


def _read(name: str, children: tuple[str, ...] = ()) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """The file's name, its tables, merged into those that it extends, and what a run says of itself in it."""
    if name in children:
        raise ConfigError(f"{name}: extends itself: {' -> '.join((*children, name))}")
    file = _file(name)
    try:
        tables = tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror})") from None
    except ValueError as error:  # no UTF-8 and integers of thousands of digits too
        raise ConfigError(f"{file}: not valid TOML: {error}") from None
    run = tables.pop("run", {})
    run = run if isinstance(run, dict) else {}
    parents = tables.pop("extends", [])
    tables = settled(tables, home_of(name, run))
    sweep = tables.get("sweep")
    for named in sweep.values() if isinstance(sweep, dict) else ():  # what a choice extends goes over the recipe's own
        for label, choice in named.items() if isinstance(named, dict) else ():
            if isinstance(choice, dict):
                more = choice.pop("extends", [])
                named[label] = _extended(choice, more, file, (*children, name), f"sweep: {label}: ")
                named[label].pop("sweep", None)
    return str(file), _extended(tables, parents, file, (*children, name)), run


def _extended(
    tables: dict[str, Any], parents: Any, file: Traversable, children: tuple[str, ...], where: str = ""
) -> dict[str, Any]:
    """Tables over those that they extend.

    Args:
        tables: of a recipe, or of a choice in its sweep.
        parents: the name of a recipe or pipeline, or a list of them.
        file: where they stand.
        children: the recipes on whose behalf they are read.
        where: their place in the file, for texts.
    """
    base: dict[str, Any] = {}
    images: dict[str, Any] = {}  # of pipelines, which hold for any data set
    for parent in parents if isinstance(parents, list) else [parents]:
        if not isinstance(parent, str):
            raise ConfigError(f"{file}: {where}extends: found {parent!r}, wanted the name of a recipe, or several")
        if parent.endswith(".toml") and isinstance(file, Path) and not Path(parent).is_absolute():
            parent = str(file.parent / parent)
        try:
            more = variant_tables(parent)[parent] if _without_variant(parent)[1] else _read(parent, children)[1]
        except UnknownNameError as error:
            raise ConfigError(f"{file}: {where}extends: {error}") from None
        more.pop("paper", None)  # what a paper reports belongs to the settings of the recipe that says so
        if parent.startswith(PIPELINES):
            images = merged(images, more["data"]["images"])
        else:
            base = merged(base, more)
    result = merged(base, tables)
    if images:
        own = tables["data"].get("images", {}) if isinstance(tables.get("data"), dict) else {}
        result["data"] = {**result.get("data", {}), "images": merged(images, own)}
    return result


def _file(name: str) -> Traversable:
    """The file of a recipe, or of a pipeline, which is a part of one."""
    if name.endswith(".toml"):
        try:
            known = Path(name).is_file()
        except OSError as error:  # a name that is too long
            raise ConfigError(f"{name}: no recipe file ({error.strerror})") from None
        if not known:
            raise ConfigError(f"{name}: no such recipe file")
        return Path(name)
    if name.startswith(PIPELINES):
        files = pipelines()
        if name not in files:
            raise UnknownNameError(unknown("pipeline", name, files))
        return files[name]
    return registry.recipe(name)


def pipelines() -> dict[str, Traversable]:
    """The packaged pipelines by name: files with ``[data.images]`` alone, which recipes extend."""
    files = (importlib.resources.files("pml_ext") / "pipelines").iterdir()
    return {PIPELINES + file.name.removesuffix(".toml"): file for file in sorted(files, key=lambda file: file.name)}


def _assign(tables: dict[str, Any], key: str, value: Any, source: str, home: str) -> None:
    nested: Any = value
    for part in reversed(key.split(".") if key else ()):
        nested = {part: nested}
    nested = settled(nested, home)
    try:
        updated = merged(tables, nested)
    except (AttributeError, TypeError):
        raise ConfigError(f"{source}: {key!r} is not a key of a recipe") from None
    tables.clear()
    tables.update(updated)
