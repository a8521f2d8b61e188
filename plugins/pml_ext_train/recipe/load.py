"""Loading of recipes: read, overridden, expanded and checked."""

import contextlib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pml_ext.errors import ConfigError, PluginError, RecipeWarning, UnknownNameError, needs_extra, shortened

from .check import check_names, check_weights
from .names import missing_plugins
from .override import Override, Overrides, culprit, overrides_of
from .papers import quoted
from .read import read_recipe, read_variants
from .schema import Recipe, TuneTable, wrong_setting
from .sweep import Tables, without_variant

with needs_extra("train", "a recipe"):
    from pydantic import ValidationError


def load_recipes(
    name: str, overrides: Overrides = (), check: bool = True, begins_first: bool = False
) -> dict[str, Recipe]:
    """Return a recipe, or all variants of its ``[sweep]``, validated, by full name.

    ``name`` is a registered recipe (``"cbml/digits"``), a variant (``"cbml/sweep@0.1"``) or a ``.toml`` file. Without
    ``check``, components are not looked up, which would import torch; ``begins_first`` skips building the first
    recipe's losses. Raises ConfigError with file, key and value, or PluginError for a missing plugin.
    """
    overrides = overrides_of(overrides)
    try:
        recipes, dropped = _load(name, overrides, check, begins_first)
    except (ConfigError, UnknownNameError) as error:
        error.option = culprit(error, overrides, lambda some: _load(name, some, check))
        raise
    except RecursionError:
        raise ConfigError("nested too deep; wanted the tables of a recipe", source=shortened(name)) from None
    for line in dropped:
        warnings.warn(shortened(line), RecipeWarning, stacklevel=2)
    return recipes


def _load(
    name: str, overrides: list[Override], check: bool = True, begins_first: bool = False
) -> tuple[dict[str, Recipe], list[str]]:
    """Return the recipes, and lines about settings that overrides drop."""
    file, variants = read_variants(name, overrides)
    run = file.run
    named = [override for override in overrides if not override.sets_unnamed_key]
    recipes: dict[str, Recipe] = {}
    with _naming(file.source, run):
        if len(named) < len(overrides):  # a value that an option such as --quick replaces is checked as well
            _, checked = read_variants(name, named)
            for tables in checked.tables.values():
                Recipe.model_validate(tables)
        for full_name, tables in variants.tables.items():
            recipe = Recipe.model_validate(tables)
            if check:
                check_names(recipe, build=not begins_first or bool(recipes))
            if not run:  # the recipe of a run that exists keeps its weights and rows, whatever there is now
                recipe.check_effects()
                if check:
                    check_weights(recipe)
                quoted(recipe.paper, recipe.data.name)
            recipes[full_name] = recipe
    return recipes, variants.dropped


def load_recipe(name: str, overrides: Overrides = ()) -> Recipe:
    """Return one recipe; ConfigError for several variants."""
    recipes = load_recipes(name, overrides)
    first_name, first = next(iter(recipes.items()))
    if len(recipes) > 1:
        raise ConfigError(f"{name} has {len(recipes)} variants; wanted one of them, for example {first_name}")
    return first


def ranges_of(name: str, overrides: Overrides = ()) -> dict[str, dict[str, TuneTable]]:
    """Return the ranges of ``[tune]`` by variant, without keys that are fixed elsewhere."""
    return {full_name: recipe.tune for full_name, recipe in load_recipes(name, overrides, check=False).items()}


def validate(tables: Mapping[str, Any], source: str) -> Recipe:
    """Return the checked recipe of tables, without looking up weights and papers again."""
    with _naming(source):
        recipe = Recipe.model_validate(tables)
        check_names(recipe)
    return recipe


@contextlib.contextmanager
def naming_settings(name: str, overrides: Iterable[Override]) -> Iterator[None]:
    """Name the recipe's file, or the option, in errors of what a run builds."""
    try:
        yield
    except ConfigError as error:
        if not error.key:
            raise
        error.source = read_recipe(without_variant(name)).source
        error.option = culprit(error, overrides, lambda some: _load(name, some))
        raise


@contextlib.contextmanager
def _naming(source: str, run: Tables | None = None) -> Iterator[None]:
    """Name the recipe's file and missing plugins in errors."""
    try:
        yield
    except (ValidationError, ConfigError, UnknownNameError) as error:
        found = wrong_setting(error) if isinstance(error, ValidationError) else error
        missing = missing_plugins((run or {}).get("plugins", {}))
        if missing:
            raise PluginError(f"{missing} ({found})", source=source) from None
        raise type(found)(shortened(found.args[0]), key=found.key, source=source) from None
