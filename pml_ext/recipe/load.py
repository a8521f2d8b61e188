"""Recipes that are read, overridden, expanded to the variants of ``[sweep]``, and checked."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..errors import ConfigError, PluginError, RecipeWarning, UnknownNameError, needs_extra, shortened
from .check import check_names, check_weights
from .names import missing_plugins
from .override import Override, Overrides, naming_option, overrides_of
from .papers import quoted
from .read import Variants, read_recipe, read_variants
from .schema import Recipe, TuneTable, problem_of
from .sweep import Tables, without_variant

with needs_extra("train", "a recipe"):
    from pydantic import ValidationError


def load_recipes(
    name: str, overrides: Overrides = (), check: bool = True, begins_first: bool = False
) -> dict[str, Recipe]:
    """Read and validate a recipe; return it by its name, or one entry for each variant of its ``[sweep]``.

    The name is that of a registered recipe (``"cbml/digits"``) or of one variant of a sweep (``"cbml/sweep@0.1"``), or
    the path of a ``.toml`` file; ``overrides`` are values by dotted key, ``{"loss.margin": 0.1}``.
    Without ``check``, names and settings of components are not looked up, since that imports torch. With
    ``begins_first``, a run of the first recipe begins at once: its losses and optimizers are not built here.
    ConfigError names the file, the key, the value found and the value wanted; PluginError a plugin that is not in use.
    """
    overrides = overrides_of(overrides)
    of_named_keys = [override for override in overrides if not override.sets_unnamed_key]
    quoted_overrides = overrides
    source = name
    run: Tables = {}
    recipes: dict[str, Recipe] = {}
    try:
        variants = read_variants(name, overrides)
        source = variants.source
        run = variants.run
        if len(of_named_keys) < len(overrides):
            quoted_overrides = of_named_keys
            _check_tables(read_variants(name, of_named_keys))
            quoted_overrides = overrides
        for full_name, tables in variants.tables.items():
            with _naming(source):
                recipe = Recipe.model_validate(tables)
                if check:
                    is_first = not recipes
                    check_names(recipe, build=not (begins_first and is_first))
                if not run:  # the recipe of a run that exists keeps its weights and rows, whatever there is now
                    recipe.check_effects()
                    if check:
                        check_weights(recipe)
                    quoted(recipe.paper, recipe.data.name)
            recipes[full_name] = recipe
    except (ConfigError, UnknownNameError) as error:
        missing = missing_plugins(run.get("plugins", {}))
        if missing:
            reason = str(error).removeprefix(f"{source}: ")
            raise PluginError(f"{source}: {missing} ({reason})") from None
        raise type(error)(shortened(naming_option(str(error), quoted_overrides))) from error.__cause__
    except RecursionError:
        raise ConfigError(shortened(f"{name}: nested too deep; wanted the tables of a recipe")) from None
    for line in variants.dropped:
        warnings.warn(shortened(line), RecipeWarning, stacklevel=2)
    return recipes


def load_recipe(name: str, overrides: Overrides = ()) -> Recipe:
    """Return the recipe of :func:`load_recipes`; ConfigError for one with several variants."""
    recipes = load_recipes(name, overrides)
    first_name, first = next(iter(recipes.items()))
    if len(recipes) > 1:
        raise ConfigError(f"{name} has {len(recipes)} variants; wanted one of them, for example {first_name}")
    return first


def ranges_of(name: str, overrides: Overrides = ()) -> dict[str, dict[str, TuneTable]]:
    """Return the ranges of ``[tune]`` for each variant of a recipe.

    A key that an override sets, or the choice of ``[sweep]`` that makes the variant, has no range.
    """
    return {full_name: recipe.tune for full_name, recipe in load_recipes(name, overrides, check=False).items()}


def validate(tables: Mapping[str, Any], source: str) -> Recipe:
    """Return the recipe of plain tables, which was loaded before, with every name and setting checked.

    ``source`` is for errors. The recipe may be that of a run that exists, so that rows of papers and weights are not
    looked for again.
    """
    with _naming(source):
        recipe = Recipe.model_validate(tables)
        check_names(recipe)
    return recipe


@contextlib.contextmanager
def naming_settings(name: str, overrides: Iterable[Override]) -> Iterator[None]:
    """Name the file of a recipe, or the option, in errors of the losses and optimizers that a run builds."""
    try:
        yield
    except ConfigError as error:
        text = str(error)
        if not re.match(r"(stages\.\d+\.)?(loss|optimizer)\b", text):
            raise
        source = read_recipe(without_variant(name)).source
        raise ConfigError(shortened(naming_option(f"{source}: {text}", overrides))) from error.__cause__


@contextlib.contextmanager
def _naming(source: str) -> Iterator[None]:
    """Name the file of a recipe in errors of its tables."""
    try:
        yield
    except ValidationError as error:
        raise ConfigError(shortened(f"{source}: {problem_of(error)}")) from None
    except ConfigError as error:
        raise ConfigError(shortened(f"{source}: {error}")) from None


def _check_tables(variants: Variants) -> None:
    """Check values that options such as ``--quick`` go over, whose user does not name their keys."""
    for tables in variants.tables.values():
        with _naming(variants.source):
            Recipe.model_validate(tables)
