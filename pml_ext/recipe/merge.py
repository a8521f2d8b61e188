"""Recipes from files: merged with their bases, overridden by ``--set``, expanded to the variants of ``[sweep]``."""

from __future__ import annotations

import contextlib
import importlib.resources
import itertools
import math
import os
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from .. import registry
from ..errors import ConfigError, PluginError, PmlExtError, UnknownNameError, needs_extra, shortened, unknown
from ..files import toml_value
from .build import check_frozen_trunk, check_names, merged, nested
from .papers import PrintedTable, is_full, papers, quoted
from .schema import Recipe, TuneTable, problem_of

with needs_extra("train", "a recipe"):
    from pydantic import ValidationError

PIPELINES = "pipelines/"  # prefix of the names of pipelines
_NAMES_ALONE = ("trunk", "miner", "regularizer")  # keys whose value may be a name instead of a table
_MOST_VARIANTS = 10_000
# A key of a hundred parts; a word begins where the one before has ended, so that each is read once.
_DEEP_KEY = re.compile(r"""(?<![\w"'-])(?:[\w"'-]++[ \t]*\.[ \t]*){100}""")
Tables = dict[str, Any]


def load_recipes(
    name: str, overrides: Iterable[str] = (), check: bool = True, begins_first: bool = False
) -> dict[str, Recipe]:
    """Read and validate a recipe; return it by its name, or one entry for each variant of its ``[sweep]``.

    The name is that of a registered recipe (``"cbml/digits"``) or of one variant of a sweep (``"cbml/sweep@0.1"``), or
    the path of a ``.toml`` file; ``overrides`` are ``"key=value"`` pairs, values in TOML, or else taken as text.
    Without ``check``, names and settings of components are not looked up, since that imports torch. With
    ``begins_first``, a run of the first recipe begins at once: its losses and optimizers are not built here.
    ConfigError names the file, the key, the value found and the value wanted; PluginError a plugin that is not in use.
    """
    overrides = list(overrides)
    source = name
    run = Tables()
    recipes: dict[str, Recipe] = {}
    try:
        source, run, variants = _variants(name, overrides)
        for full, tables in variants.items():
            build = not begins_first or bool(recipes)
            recipes[full] = validate(tables, source, new=not run, check=check, build=build)
    except (ConfigError, UnknownNameError) as error:
        if missing := registry.lacking(run.get("plugins", {})):
            raise PluginError(f"{source}: {missing} ({str(error).removeprefix(f'{source}: ')})") from None
        raise type(error)(shortened(_naming_option(str(error), overrides))) from error.__cause__
    except RecursionError:
        raise ConfigError(shortened(f"{name}: nested too deep; wanted the tables of a recipe")) from None
    return recipes


@contextlib.contextmanager
def naming_settings(name: str, overrides: Iterable[str]) -> Iterator[None]:
    """Name the file of a recipe, or the option, in errors of the losses and optimizers that a run builds."""
    try:
        yield
    except ConfigError as error:
        text = str(error)
        if not re.match(r"(stages\.\d+\.)?(loss|optimizer)\b", text):
            raise
        source = _read(_without_variant(name))[0]
        raise ConfigError(shortened(_naming_option(f"{source}: {text}", overrides))) from error.__cause__


def load_recipe(name: str, overrides: Iterable[str] = ()) -> Recipe:
    """Return the recipe of :func:`load_recipes`; ConfigError for one with several variants."""
    first, *others = load_recipes(name, overrides).items()
    if others:
        raise ConfigError(f"{name} has {1 + len(others)} variants; wanted one of them, for example {first[0]}")
    return first[1]


def _naming_option(text: str, overrides: Iterable[str]) -> str:
    """Return an error's text with the option that caused it, ``--set KEY=VALUE``, instead of the recipe's file."""
    for override in overrides:
        key = override.partition("=")[0].strip()
        table, _, last = map(re.escape, key.rpartition("."))
        if match := re.match(rf".+?\.toml: (?={re.escape(key)}\b|({table}: )?no key '{last}')", text):
            return f"--set {override}: {text[match.end() :]}"
    return text


def validate(
    tables: Mapping[str, Any], source: str, new: bool = True, check: bool = True, build: bool = True
) -> Recipe:
    """Return the recipe of plain tables, with every name and setting checked; ``build`` as of :func:`check_names`.

    The recipe of a run that exists is not ``new``: rows of papers, and weights of a frozen trunk, are not checked.
    """
    try:
        recipe = Recipe.model_validate(tables)
        if check:
            check_names(recipe, build)
        if check and new:
            check_frozen_trunk(recipe.model)
        if new:
            quoted(recipe.paper, recipe.data.name)
    except (ConfigError, ValidationError) as error:
        text = problem_of(error) if isinstance(error, ValidationError) else str(error)
        raise ConfigError(shortened(f"{source}: {text}")) from None
    return recipe


def read_tables(name: str) -> Tables:
    """Return the tables of a registered recipe or a ``.toml`` file, merged with what it extends, not validated."""
    return _read(name)[1]


def variant_tables(name: str) -> dict[str, Tables]:
    """Return the tables of a recipe's variants by their full names, merged, not validated."""
    return _variants(name, ())[2]


def ranges_of(name: str, overrides: Iterable[str] = ()) -> dict[str, dict[str, TuneTable]]:
    """Return the ranges of ``[tune]`` for each variant of a recipe, without keys that overrides or ``[sweep]`` set."""
    overrides = list(overrides)
    sweep = read_tables(_without_variant(name)).get("sweep")
    fixed = {*(each.partition("=")[0].strip() for each in overrides), *(sweep if isinstance(sweep, dict) else ())}
    return {
        full: {key: each for key, each in recipe.tune.items() if key not in fixed}
        for full, recipe in load_recipes(name, overrides, check=False).items()
    }


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
            if about := registry.version_of(plugin):
                plugins[plugin] = about
    return plugins


def pipelines() -> dict[str, Traversable]:
    """Return the packaged pipelines by name: files with ``[data.images]``, or a trunk, which recipes extend."""
    files = (importlib.resources.files(__package__) / "pipelines").iterdir()
    return {PIPELINES + file.name.removesuffix(".toml"): file for file in sorted(files, key=lambda file: file.name)}


def tables_of_papers() -> list[dict[str, Any]]:
    """Return every table and figure of every paper, with the recipes of its rows by scale, or why there are none."""
    named: dict[str, dict[str, dict[str, Tables]]] = defaultdict(dict)  # by table and recipe
    for recipe in registry.recipes():
        with contextlib.suppress(ConfigError, UnknownNameError):  # reported when the recipe is loaded
            for variant, mine in variant_tables(recipe).items():
                named[str((mine.get("paper") or {}).get("table"))].setdefault(recipe, {})[variant] = mine
    entries = []
    for paper, read in papers().items():
        for number, table in read.tables.items():
            name = f"{paper}/{number}"
            recipes = _by_scale(name, named[name])
            if table.small and not recipes["small"]:
                recipes["small"] = _by_scale(f"{paper}/{table.small}", named[f"{paper}/{table.small}"])["small"]
            reasons = table.reason() or "; ".join(dict.fromkeys(filter(None, map(table.reason, table.row_names()))))
            about = {"name": name, "title": table.title, "paper": f"{read.authors} ({read.year})", "recipes": recipes}
            rows = {"rows": _rows(table, named[name]), "measured": table.measured}
            entries.append({**about, **rows, "reason": "" if any(recipes.values()) else reasons})
    return entries


def _rows(table: PrintedTable, recipes: dict[str, dict[str, Tables]]) -> list[dict[str, Any]]:
    trained: dict[str, list[str]] = {row: [] for row in table.row_names()}
    for variant, mine in (each for variants in recipes.values() for each in variants.items()):
        with contextlib.suppress(ValueError, TypeError, AttributeError):  # reported when the recipe is loaded
            for row in table.chosen(mine["paper"].get("row", [])):
                trained[row].append(variant)
    return [
        {"row": row, "recipes": names, "reason": "" if names else table.reason(row)} for row, names in trained.items()
    ]


def _by_scale(table: str, recipes: dict[str, dict[str, Tables]]) -> dict[str, list[str]]:
    by_scale: dict[str, list[str]] = {"full": [], "small": []}
    for recipe, variants in recipes.items():
        data = str((next(iter(variants.values())).get("data") or {}).get("name"))
        by_scale["full" if is_full(table, data) else "small"].append(recipe)
    return by_scale


def _names(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield kind and name of everything named in the value of a key; keys of ``[sweep]`` have dots."""
    *owners, last = key.split(".")
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, dict):
            for inner, more in each.items():
                if inner != "origin":  # texts about settings
                    yield from _names(more, f"{last}.{inner}" if "." not in inner else inner)
        elif isinstance(each, str) and last in _NAMES_ALONE:
            yield last, each
        elif isinstance(each, str) and last == "name" and owners:
            last_owner = owners[-1].rsplit("_", 1)[-1]
            kind = {"data": "data set", "track": "tracker"}.get(last_owner, last_owner)
            if kind in ("data set", "trunk", "tracker", *registry.KINDS):
                yield kind, each


def _variants(name: str, overrides: Iterable[str]) -> tuple[str, Tables, dict[str, Tables]]:
    """Return a recipe's file name, its ``[run]``, and the tables of its variants by their full names."""
    base = _without_variant(name)
    source, tables, run = _read(base)
    sweep = tables.pop("sweep", {})
    given = []
    for override in overrides:
        key, separator, text = (part.strip() for part in override.partition("="))
        if not separator or not key:
            raise ConfigError(f"--set {override}: wanted KEY=VALUE, for example loss.name=pml/contrastive")
        if _DEEP_KEY.search(override):
            raise ConfigError(shortened(f"--set {override[:100]}...: nested too deep; wanted a key of few parts"))
        given.append((key, toml_value(text)))
        if isinstance(tables.get(key), dict) and isinstance(given[-1][1], str):
            raise ConfigError(f"--set {override}: {key} is a table; type --set {key}.name={text}")
        if isinstance(sweep, dict) and isinstance(sweep.get(key), list):
            del sweep[key]
    # Names of components and data sets go first, since another name begins the table anew.
    given.sort(key=lambda pair: "." in pair[0] and pair[0].rpartition(".")[2] not in ("name", *_NAMES_ALONE))
    result = {}
    for label, settings in _combinations(sweep, source).items():
        mine = tables
        for key, value in [*settings, *given]:
            mine = merged(mine, nested(key, value))
        paper = mine.get("paper")
        if isinstance(paper, dict) and isinstance(rows := paper.get("variants"), dict):
            row = {"row": rows[label]} if label in rows else {}
            mine = {**mine, "paper": {key: value for key, value in paper.items() if key != "variants"} | row}
        result[f"{base}@{label}" if sweep else base] = mine
    if name == base:
        return source, run, result
    if name not in result:
        raise UnknownNameError(f"no variant {name!r}; variants: {', '.join(result)}")
    return source, run, {name: result[name]}


def _combinations(sweep: Any, source: str) -> dict[str, list[tuple[str, Any]]]:
    """Return the settings of each variant by its label, ``"sqrt,36"``: pairs of key and value, or of "" and tables."""
    entries: list[list[tuple[str, tuple[str, Any]]]] = []
    for key, values in sweep.items() if isinstance(sweep, dict) else [("", sweep)]:
        if key and isinstance(values, list) and values:
            labels = (value.get("name", value) if isinstance(value, dict) else value for value in values)
            entries.append([(str(label), (key, value)) for label, value in zip(labels, values, strict=True)])
        elif isinstance(values, dict) and values and all(isinstance(value, dict) for value in values.values()):
            entries.append([(label, ("", tables)) for label, tables in values.items()])
        else:
            raise ConfigError(
                f"{source}: {f'[sweep] {key}'.rstrip()}: found {values!r}; wanted a list of values by key, for example "
                '"loss.alpha" = [36, 45], or tables by name, for example [sweep.rows.sqrt]'
            )
    if (count := math.prod(map(len, entries))) > _MOST_VARIANTS:
        raise ConfigError(f"{source}: [sweep] has {count:,} variants; wanted at most {_MOST_VARIANTS:,}")
    return {
        ",".join(label for label, _ in chosen): [setting for _, setting in chosen]
        for chosen in itertools.product(*entries)
    }


def _without_variant(name: str) -> str:
    """Return a recipe's name or path without the variant after its ``@``; the folders of a path may have one too."""
    end = ".toml" if ".toml" in name else ""
    return name.removesuffix(end).partition(f"{end}@")[0] + end


def _read(name: str, children: tuple[str, ...] = ()) -> tuple[str, Tables, Tables]:
    """Return a recipe's file name, its tables merged over what they extend, and its ``[run]``."""
    if name in children:
        raise ConfigError(f"{name}: extends itself: {' -> '.join((*children, name))}")
    file, children = _file(name), (*children, name)
    try:
        text = file.read_text("utf-8")
        if _DEEP_KEY.search(text):  # tomllib's time grows with the square of the parts
            raise ConfigError(f"{file}: a key is nested too deep; wanted the tables of a recipe")
        tables = tomllib.loads(text)
    except ConfigError:
        raise
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror})") from None
    except ValueError as error:  # also of bytes that are not UTF-8, and of integers of thousands of digits
        raise ConfigError(f"{file}: not valid TOML: {error}") from None
    run = tables.pop("run", {})
    sweep = tables.get("sweep")
    for named in sweep.values() if isinstance(sweep, dict) else ():  # choices that extend something of their own
        for label, choice in named.items() if isinstance(named, dict) else ():
            if isinstance(choice, dict) and "extends" in choice:
                # The file's origins of its own settings go before those of what the choice extends.
                choice = merged({"origin": tables.get("origin", {})}, choice)
                named[label] = _extended(choice, file, children, f"sweep: {label}: ")
                named[label].pop("sweep", None)
    return str(file), _extended(tables, file, children), run if isinstance(run, dict) else {}


def _extended(tables: Tables, file: Traversable, children: tuple[str, ...], where: str = "") -> Tables:
    """Merge tables of a file over what they extend: recipes, variants and pipelines."""
    parents = tables.pop("extends", [])
    base, images = Tables(), Tables()  # images: tables of pipelines, valid for any data set
    for parent in parents if isinstance(parents, list) else [parents]:
        if not isinstance(parent, str):
            raise ConfigError(f"{file}: {where}extends: found {parent!r}, wanted the name of a recipe, or several")
        if parent.endswith(".toml") and isinstance(file, Path):
            parent = str(file.parent / parent)
        try:
            more = variant_tables(parent)[parent] if _without_variant(parent) != parent else _read(parent, children)[1]
        except UnknownNameError as error:
            raise ConfigError(f"{file}: {where}extends: {error}") from None
        more.pop("paper", None)  # a paper's results belong to the settings of the recipe that names them
        if parent.startswith(PIPELINES):
            images = merged(images, more.pop("data", {}).get("images", {}))
        base = merged(base, more)
    result = merged(base, tables)
    if images:
        own = tables["data"].get("images", {}) if isinstance(tables.get("data"), dict) else {}
        result["data"] = {**result.get("data", {}), "images": merged(images, own)}
    return result


def _file(name: str) -> Traversable:
    if name.endswith(".toml"):
        if not os.path.isfile(name):
            raise ConfigError(f"{name}: no such recipe file")
        return Path(name)
    if not name.startswith(PIPELINES):
        return registry.find("recipe", name)[1]  # type: ignore[no-any-return]
    files = pipelines()
    if name not in files:
        raise UnknownNameError(unknown("pipeline", name, files))
    return files[name]
