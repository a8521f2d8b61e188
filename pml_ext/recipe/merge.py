"""Recipes from files: merged with their bases, overridden by ``--set``, expanded to the variants of ``[sweep]``."""

from __future__ import annotations

import contextlib
import importlib.resources
import itertools
import json
import math
import os
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, NamedTuple

from .. import registry
from ..errors import ConfigError, PluginError, PmlExtError, UnknownNameError, needs_extra, shortened, unknown
from .check import check_names, check_weights
from .override import DEEP_KEY, Override, Overrides, naming_option, overrides_of
from .papers import Printed, PrintedTable, is_full, papers, quoted
from .schema import NO_SETTINGS, Recipe, TuneTable, problem_of
from .tables import INHERITED, NAMES_ALONE, flat, inside, merged, name_or_value, nested, overridden

with needs_extra("train", "a recipe"):
    from pydantic import ValidationError

PIPELINES = "pipelines/"  # prefix of the names of pipelines
_MOST_VARIANTS = 10_000
# tables with another name than the kind that they name
_KINDS_OF_TABLES = {"data": "data set", "track": "tracker", "transforms": "transform"}
Tables = dict[str, Any]


class _RecipeFile(NamedTuple):
    """A recipe's file, merged with what it extends."""

    source: str  # path of the file, for messages
    tables: Tables  # all but ``[run]``
    run: Tables  # ``[run]``, which the recipe of a run has


class _Variants(NamedTuple):
    """The variants of a recipe, overridden, not validated."""

    source: str
    run: Tables
    tables: dict[str, Tables]  # by the variant's full name


class _Choice(NamedTuple):
    """One value of a key of ``[sweep]``, or one of its named tables."""

    label: str  # its part of the variant's name
    key: str  # dotted; "" if the value is tables
    value: Any
    inherited: frozenset[str] = frozenset()  # dotted keys of the tables that they extend, and do not set themselves

    def fixed_keys(self) -> set[str]:
        """Return the dotted keys that this choice itself sets, except those for which it gives a range."""
        keys = flat(nested(self.key, self.value)).keys() - self.inherited
        return {key for key in keys if not any(inside(each, [f"tune.{key}"]) for each in keys)}


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
    source = name
    run: Tables = {}
    recipes: dict[str, Recipe] = {}
    try:
        variants = _read_variants(name, overrides)
        source = variants.source
        run = variants.run
        for full_name, tables in variants.tables.items():
            with _naming(source):
                recipe = Recipe.model_validate(tables)
                if check:
                    is_first = not recipes
                    check_names(recipe, build=not (begins_first and is_first))
                if not run:  # the recipe of a run that exists keeps its weights and rows, whatever there is now
                    _check_new(recipe, check)
            recipes[full_name] = recipe
    except (ConfigError, UnknownNameError) as error:
        missing = registry.missing_plugins(run.get("plugins", {}))
        if missing:
            reason = str(error).removeprefix(f"{source}: ")
            raise PluginError(f"{source}: {missing} ({reason})") from None
        raise type(error)(shortened(naming_option(str(error), overrides))) from error.__cause__
    except RecursionError:
        raise ConfigError(shortened(f"{name}: nested too deep; wanted the tables of a recipe")) from None
    return recipes


@contextlib.contextmanager
def naming_settings(name: str, overrides: Iterable[Override]) -> Iterator[None]:
    """Name the file of a recipe, or the option, in errors of the losses and optimizers that a run builds."""
    try:
        yield
    except ConfigError as error:
        text = str(error)
        if not re.match(r"(stages\.\d+\.)?(loss|optimizer)\b", text):
            raise
        source = _read(without_variant(name)).source
        raise ConfigError(shortened(naming_option(f"{source}: {text}", overrides))) from error.__cause__


def load_recipe(name: str, overrides: Overrides = ()) -> Recipe:
    """Return the recipe of :func:`load_recipes`; ConfigError for one with several variants."""
    recipes = load_recipes(name, overrides)
    first_name, first = next(iter(recipes.items()))
    if len(recipes) > 1:
        raise ConfigError(f"{name} has {len(recipes)} variants; wanted one of them, for example {first_name}")
    return first


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
def _naming(source: str) -> Iterator[None]:
    """Name the file of a recipe in errors of its tables."""
    try:
        yield
    except ValidationError as error:
        raise ConfigError(shortened(f"{source}: {problem_of(error)}")) from None
    except ConfigError as error:
        raise ConfigError(shortened(f"{source}: {error}")) from None


def _check_new(recipe: Recipe, check: bool) -> None:
    """Check the rows of papers, settings without effect, and with ``check`` the weights of a frozen trunk."""
    recipe.evaluation.check_effects()
    if check:
        check_weights(recipe)
    quoted(recipe.paper, recipe.data.name)


def read_tables(name: str) -> Tables:
    """Return the tables of a registered recipe or a ``.toml`` file, merged with what it extends, not validated."""
    return _read(name).tables


def variant_tables(name: str) -> dict[str, Tables]:
    """Return the tables of a recipe's variants by their full names, merged, not validated."""
    return _read_variants(name, ()).tables


def ranges_of(name: str, overrides: Overrides = ()) -> dict[str, dict[str, TuneTable]]:
    """Return the ranges of ``[tune]`` for each variant of a recipe.

    A key that an override sets, or the choice of ``[sweep]`` that makes the variant, has no range.
    """
    return {full_name: recipe.tune for full_name, recipe in load_recipes(name, overrides, check=False).items()}


def names_in(recipe: str) -> set[tuple[str, str]]:
    """Return kind and name, ``("loss", "cbml")``, of everything that a registered recipe names; empty if unreadable."""
    with contextlib.suppress(ConfigError, UnknownNameError):
        return set(_names(read_tables(recipe)))
    return set()


def plugins_in(tables: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return ``{plugin: {"distribution": ..., "version": ...}}`` of a recipe's plugins, without the core and PML."""
    plugins = {}
    for kind, name in sorted(set(_names(tables))):
        with contextlib.suppress(PmlExtError):  # no plugin has "shuffle" and "folder:PATH"
            plugin, _ = registry.find(kind, name)
            version = registry.version_of(plugin)
            if version:
                plugins[plugin] = version
    return plugins


def pipelines() -> dict[str, Traversable]:
    """Return the packaged pipelines by name: files with ``[data.images]``, or a trunk, which recipes extend."""
    folder = importlib.resources.files(__package__) / "pipelines"
    files = {}
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        if file.name.endswith(".toml"):
            name = file.name.removesuffix(".toml")
            files[PIPELINES + name] = file
    return files


def tables_of_papers() -> list[dict[str, Any]]:
    """Return every table and figure of every paper, with the recipes of its rows by scale, or why there are none."""
    variants = _variants_by_paper_table()
    entries = []
    for name, paper in papers().items():
        for number in paper.tables:
            entries.append(_paper_table_entry(name, paper, number, variants))
    return entries


_VariantsByTable = dict[str, dict[str, dict[str, Tables]]]  # by table ("cbml/7"), recipe and variant


def _variants_by_paper_table() -> _VariantsByTable:
    """Return the tables of all variants of registered recipes by the table of a paper that they name."""
    by_table: _VariantsByTable = {}
    for recipe in registry.recipes():
        with contextlib.suppress(ConfigError, UnknownNameError):  # reported when the recipe is loaded
            for variant, tables in variant_tables(recipe).items():
                paper = tables.get("paper")
                if not isinstance(paper, dict):
                    continue
                by_recipe = by_table.setdefault(str(paper.get("table")), {})
                by_recipe.setdefault(recipe, {})[variant] = tables
    return by_table


def _paper_table_entry(paper_name: str, paper: Printed, number: str, variants: _VariantsByTable) -> dict[str, Any]:
    table = paper.tables[number]
    name = f"{paper_name}/{number}"
    recipes = _by_scale(name, variants.get(name, {}))

    if table.small and not recipes["small"]:
        other = f"{paper_name}/{table.small}"
        recipes["small"] = _by_scale(other, variants.get(other, {}))["small"]

    reason = ""
    if not any(recipes.values()):
        reason = table.reason() or "; ".join(_reasons_of_rows(table))

    return {
        "name": name,
        "title": table.title,
        "paper": f"{paper.authors} ({paper.year})",
        "recipes": recipes,
        "rows": _rows(table, variants.get(name, {})),
        "measured": table.measured,
        "reason": reason,
    }


def _reasons_of_rows(table: PrintedTable) -> list[str]:
    """Return why rows have no recipe, each reason once."""
    reasons: list[str] = []
    for row in table.row_names():
        reason = table.reason(row)
        if reason and reason not in reasons:
            reasons.append(reason)
    return reasons


def _rows(table: PrintedTable, recipes: dict[str, dict[str, Tables]]) -> list[dict[str, Any]]:
    """Return each row of a table with the variants that are trained for it, or why there are none."""
    trained: dict[str, list[str]] = {row: [] for row in table.row_names()}
    for variants in recipes.values():
        for variant, tables in variants.items():
            with contextlib.suppress(ValueError, TypeError, AttributeError):  # reported when the recipe is loaded
                for row in table.chosen(tables["paper"].get("row", [])):
                    trained[row].append(variant)

    rows = []
    for row, names in trained.items():
        reason = "" if names else table.reason(row)
        rows.append({"row": row, "recipes": names, "reason": reason})
    return rows


def _by_scale(table: str, recipes: dict[str, dict[str, Tables]]) -> dict[str, list[str]]:
    """Return the names of recipes on the paper's data (``full``) and on other data (``small``)."""
    by_scale: dict[str, list[str]] = {"full": [], "small": []}
    for recipe, variants in recipes.items():
        first = next(iter(variants.values()))
        data = first.get("data")
        name = data.get("name") if isinstance(data, dict) else None
        if is_full(table, str(name)):
            scale = "full"
        else:
            scale = "small"
        by_scale[scale].append(recipe)
    return by_scale


def _names(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield kind and name of everything named in the value of a key; keys of ``[sweep]`` have dots."""
    values = value if isinstance(value, list) else [value]
    last = key.rpartition(".")[2]
    for each in values:
        if isinstance(each, dict):
            for inner, inner_value in each.items():
                if inner == "origin":  # texts about settings
                    continue
                inner_key = inner if "." in inner else f"{last}.{inner}"
                yield from _names(inner_value, inner_key)
        elif isinstance(each, str):
            kind = _kind_named_by(key)
            if kind:
                yield kind, each


def _kind_named_by(key: str) -> str:
    """Return the kind of the thing that a key names, ``"loss"`` for ``loss.name``; "" for other keys."""
    owner, dot, last = key.rpartition(".")
    if last in NAMES_ALONE:
        return last
    if last == "transforms":
        return "transform"
    if last != "name" or not dot:
        return ""
    table = owner.rpartition(".")[2].rpartition("_")[2]
    kind = _KINDS_OF_TABLES.get(table, table)
    if kind in ("data set", "trunk", "transform", "tracker", *registry.KINDS):
        return kind
    return ""


def _read_variants(name: str, overrides: Iterable[Override]) -> _Variants:
    """Read a recipe and expand its ``[sweep]``; overrides go over the settings of a variant."""
    base = without_variant(name)
    source, tables, run = _read(base)
    sweep = tables.pop("sweep", {})
    settings = []
    for override in overrides:
        override.check_value(tables)
        settings.append((override.key, override.value))

    if isinstance(sweep, dict):
        all_variants = name == base
        for key in [*sweep]:
            if _is_fixed(key, sweep[key], tables, settings, all_variants):
                del sweep[key]

    overridden_keys: set[str] = set()
    for key, value in settings:
        overridden_keys |= flat(nested(key, value)).keys()

    swept = {}
    variants = {}
    for label, choices in _combinations(sweep, source).items():
        variant = tables
        fixed_keys = set(overridden_keys)
        for choice in choices:
            variant = merged(variant, nested(choice.key, choice.value))
            fixed_keys |= choice.fixed_keys()
        full_name = f"{base}@{label}" if sweep else base
        swept[full_name] = variant
        variant = _without_ranges(overridden(variant, settings), fixed_keys)
        variants[full_name] = _with_row_of_variant(variant, label)

    if settings and name == base:
        _check_still_differ(swept, variants)
    if name != base:
        if name not in variants:
            raise UnknownNameError(f"no variant {name!r}; variants: {', '.join(variants)}")
        variants = {name: variants[name]}
    return _Variants(source, run, variants)


def _is_fixed(key: str, values: Any, tables: Tables, settings: Sequence[tuple[str, Any]], all_variants: bool) -> bool:
    """Return whether overrides fix a key that the sweep varies, so that its list goes.

    They name the key itself, or begin its table anew. One variant alone, which the user names, keeps its value as long
    as nothing overrides the key itself.
    """
    if not isinstance(values, list):
        return False
    if any(key == given for given, _ in settings):
        return True
    if not key or not settings or not all_variants:
        return False
    for value in values[:2]:  # an override may be one of the values, and not both of them
        if isinstance(value, dict):
            continue
        after = overridden(merged(tables, nested(key, value)), settings)
        if name_or_value(key, after) != value:
            return True
    return False


def _check_still_differ(swept: Mapping[str, Tables], overridden_variants: Mapping[str, Tables]) -> None:
    """Raise ConfigError if overrides make two variants of a sweep equal, which would train one thing twice."""
    first_of: dict[str, str] = {}
    for name, tables in overridden_variants.items():
        other = first_of.setdefault(_settings_as_text(tables), name)
        if other != name and _settings_as_text(swept[other]) != _settings_as_text(swept[name]):
            text = f"--set, or an option that sets keys, leaves the variants {other} and {name} equal"
            raise ConfigError(f"{text}; leave it out, or name one of them: {other}")


def _settings_as_text(tables: Tables) -> str:
    """Return a text that is equal for tables that train the same."""
    settings = {key: value for key, value in tables.items() if key not in NO_SETTINGS}
    return json.dumps(settings, sort_keys=True, default=str)


def _without_ranges(tables: Tables, keys: Collection[str]) -> Tables:
    """Return tables whose ``[tune]`` has no ranges of the keys."""
    ranges = tables.get("tune")
    if not isinstance(ranges, dict):
        return tables
    return {**tables, "tune": {key: range_ for key, range_ in ranges.items() if key not in keys}}


def _with_row_of_variant(tables: Tables, label: str) -> Tables:
    """Return tables whose ``[paper]`` has the row of a variant, which ``[paper.variants]`` says by label."""
    paper = tables.get("paper")
    if not isinstance(paper, dict) or not isinstance(paper.get("variants"), dict):
        return tables
    paper = dict(paper)
    rows = paper.pop("variants")
    if label in rows:
        paper["row"] = rows[label]
    return {**tables, "paper": paper}


def _combinations(sweep: Any, source: str) -> dict[str, tuple[_Choice, ...]]:
    """Return the choices of each variant by its label, ``"sqrt,36"``."""
    if not isinstance(sweep, dict):
        raise _wrong_sweep("", sweep, source)
    choices = [_choices(key, values, source) for key, values in sweep.items()]
    count = math.prod(map(len, choices))
    if count > _MOST_VARIANTS:
        raise ConfigError(f"{source}: [sweep] has {count:,} variants; wanted at most {_MOST_VARIANTS:,}")

    combinations = {}
    for combination in itertools.product(*choices):
        label = ",".join(choice.label for choice in combination)
        if label in combinations:
            raise ConfigError(
                f"{source}: [sweep]: two variants have the name {label!r}; wanted tables by name, for example "
                "[sweep.rows.sqrt]"
            )
        combinations[label] = combination
    return combinations


def _choices(key: str, values: Any, source: str) -> list[_Choice]:
    """Return the choices of one key of ``[sweep]``: a list of values, or tables by label."""
    choices = []
    if key and isinstance(values, list):
        for value in values:
            if isinstance(value, dict):
                label = value.get("name", value)
            else:
                label = value
            choices.append(_Choice(str(label), key, value))
    elif isinstance(values, dict) and all(isinstance(tables, dict) for tables in values.values()):
        for label, tables in values.items():
            written = dict(tables)
            inherited = frozenset(written.pop(INHERITED, ()))
            choices.append(_Choice(label, "", written, inherited))
    if not choices:
        raise _wrong_sweep(key, values, source)
    return choices


def _wrong_sweep(key: str, values: Any, source: str) -> ConfigError:
    place = f"[sweep] {key}".rstrip()
    return ConfigError(
        f"{source}: {place}: found {values!r}; wanted a list of values by key, for example "
        '"loss.alpha" = [36, 45], or tables by name, for example [sweep.rows.sqrt]'
    )


def without_variant(name: str) -> str:
    """Return a recipe's name or path without the variant after its ``@``."""
    if ".toml" not in name:
        return name.partition("@")[0]
    # The folders of a path may have an "@" as well; the variant's follows the file's suffix.
    path, _, _ = name.removesuffix(".toml").partition(".toml@")
    return f"{path}.toml"


def _read(name: str, children: tuple[str, ...] = ()) -> _RecipeFile:
    """Read a recipe's file and merge it over what it extends; ``children`` are the recipes that extend it."""
    if name in children:
        raise ConfigError(f"{name}: extends itself: {' -> '.join((*children, name))}")
    children = (*children, name)
    file = _file(name)
    tables = _parsed(file)

    run = tables.pop("run", {})
    if not isinstance(run, dict):
        run = {}
    sweep = tables.get("sweep")
    if isinstance(sweep, dict):
        for choices in sweep.values():
            if isinstance(choices, dict):
                _extend_choices(choices, tables.get("origin", {}), file, children)
    return _RecipeFile(str(file), _extended(tables, file, children), run)


def _parsed(file: Traversable) -> Tables:
    try:
        text = file.read_text("utf-8")
        if DEEP_KEY.search(text):  # tomllib's time grows with the square of the parts
            raise ConfigError(f"{file}: a key is nested too deep; wanted the tables of a recipe")
        return tomllib.loads(text)
    except ConfigError:
        raise
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror})") from None
    except ValueError as error:  # also of bytes that are not UTF-8, and of integers of thousands of digits
        raise ConfigError(f"{file}: not valid TOML: {error}") from None


def _extend_choices(choices: Tables, origins: Any, file: Traversable, children: tuple[str, ...]) -> None:
    """Merge choices of ``[sweep]`` in place over what they extend, each something of its own."""
    for label, choice in choices.items():
        if isinstance(choice, dict) and "extends" in choice:
            # The file's origins of its own settings go before those of what the choice extends.
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
            raise ConfigError(f"{file}: {where}extends: found {parent!r}, wanted the name of a recipe, or several")
        if without_variant(parent).endswith(".toml") and isinstance(file, Path):
            parent = str(file.parent / parent)
        try:
            inherited = _tables_of_parent(parent, children)
        except UnknownNameError as error:
            raise ConfigError(f"{file}: {where}extends: {error}") from None
        if parent.startswith(PIPELINES):
            images = inherited.pop("data", {}).get("images", {})
            pipeline_images = merged(pipeline_images, images)
        base = merged(base, inherited)

    result = merged(base, tables)
    if pipeline_images:  # merged drops them where the file names another data set than its parents
        data = tables.get("data")
        if isinstance(data, dict):
            images_of_file = data.get("images", {})
        else:
            images_of_file = {}
        images = merged(pipeline_images, images_of_file)
        result["data"] = {**result.get("data", {}), "images": images}
    return result


def _tables_of_parent(name: str, children: tuple[str, ...]) -> Tables:
    """Return what a recipe inherits from another one, or from one of its variants."""
    is_variant = without_variant(name) != name
    if is_variant:
        tables = variant_tables(name)[name]
    else:
        tables = _read(name, children).tables
    tables.pop("paper", None)  # a paper's results belong to the settings of the recipe that names them
    return tables


def _file(name: str) -> Traversable:
    if name.endswith(".toml"):
        if not os.path.isfile(name):
            raise ConfigError(f"{name}: no such recipe file")
        return Path(name)
    if not name.startswith(PIPELINES):
        _, file = registry.find("recipe", name)
        return file  # type: ignore[no-any-return]
    files = pipelines()
    if name not in files:
        raise UnknownNameError(unknown("pipeline", name, files))
    return files[name]
