"""Descriptions of names, read from signatures and docstrings."""

import inspect
import itertools
from typing import Any

from pml_ext import registry
from pml_ext.errors import UnknownNameError, unknown
from pml_ext.registry.components import KINDS, capabilities
from pml_ext.settings import settings_of

from ..recipe import (
    flat,
    load_recipes,
    names_in,
    names_of_tables,
    origins_of,
    papers,
    quoted,
    tables_of_papers,
    texts,
    without_variant,
)

_OTHER_KINDS = ("recipe", "table", "data set", "transform", "trunk")
_FILLED_BY_RUNS = ("root", "in_channels", "image_size")  # arguments of data sets and trunks


def describe(name: str, kind: str | None = None) -> list[dict[str, Any]]:
    """Describe all entries of a name, which several kinds may share; ``kind`` selects one.

    Entries have ``name``, ``kind``, ``class``, ``text``, ``settings``, ``capabilities``, ``paper`` and ``recipes``.
    """
    if kind not in (None, *KINDS, *_OTHER_KINDS):
        raise UnknownNameError(unknown("kind", str(kind), (*KINDS, *_OTHER_KINDS)))

    described = []
    if kind is None or kind in KINDS:
        described += _components(name, kind)
    if kind in (None, "table"):
        described += _tables(name)
    if kind in (None, "recipe"):
        described += _recipes(name)
    if described:
        return described

    factories = _factories()  # last, because they import torch
    for factory_kind, known in factories.items():
        if name in known and kind in (None, factory_kind):
            described.append(_factory(name, factory_kind, known[name]))
    if not described:
        raise _unknown_name(name, kind, factories)
    return described


def _components(name: str, kind: str | None) -> list[dict[str, Any]]:
    found = registry.candidates(name, kind)
    if kind is not None and not found:
        found = [registry.get(name, kind)]  # raises an error that names similar ones
    described = []
    for component in found:
        cls = component.cls
        about = {
            "class": f"{cls.__module__}.{cls.__qualname__}",
            "settings": _settings(settings_of(cls)),
            "capabilities": sorted(capabilities(cls)),
            "paper": str(component.paper or ""),
        }
        described.append(_entry(registry.short_name(component), component.kind, documentation(cls)) | about)
    return described


def _factories() -> dict[str, dict[str, Any]]:
    from ..data import PATH_FACTORIES

    factories = {kind: registry.values(kind) for kind in ("data set", "transform", "trunk")}
    for prefix, (factory, _) in PATH_FACTORIES.items():
        factories["data set"][prefix] = factory
    return factories


def _factory(name: str, kind: str, factory: Any) -> dict[str, Any]:
    options = dict(settings_of(factory))
    for key in _FILLED_BY_RUNS:
        if key in options and options[key].default is inspect.Parameter.empty:
            del options[key]
    return _entry(name, kind, documentation(factory)) | {"settings": _settings(options)}


def _unknown_name(name: str, kind: str | None, factories: dict[str, dict[str, Any]]) -> UnknownNameError:
    known = {"recipe": registry.recipes(), "table": names_of_tables(), **factories}
    if kind is not None:
        return UnknownNameError(unknown(kind, name, known[kind]))
    names = itertools.chain((component.name for component in registry.components()), *known.values())
    return UnknownNameError(unknown("component, recipe, table, data set, transform or trunk", name, names))


def _entry(name: str, kind: str, text: str) -> dict[str, Any]:
    return {
        "name": name,
        "kind": kind,
        "class": "",
        "text": text,
        "settings": [],
        "capabilities": [],
        "paper": "",
        "recipes": [recipe for recipe in registry.recipes() if (kind, name) in names_in(recipe)],
    }


def documentation(documented: Any) -> str:
    """Return an object's own docstring, or an empty string."""
    return inspect.cleandoc(documented.__doc__) if isinstance(documented.__doc__, str) else ""


def _settings(parameters: dict[str, inspect.Parameter]) -> list[dict[str, str]]:
    settings = []
    for name, parameter in parameters.items():
        default = "(required)" if parameter.default is parameter.empty else repr(parameter.default)
        settings.append({"name": name, "default": default})
    return settings


def _recipes(name: str) -> list[dict[str, Any]]:
    """Describe a recipe by its first variant; return [] for an unknown name."""
    base = without_variant(name)
    if base not in registry.recipes() and not base.endswith(".toml"):
        return []
    recipes = load_recipes(name, check=False)
    first = next(iter(recipes.values()))

    tables = first.as_dict()
    paper = tables.pop("paper", {})
    text = tables.pop("description")
    if len(recipes) > 1:
        text += f"\n\nvariants: {', '.join(recipes)}"

    about_paper = [f"{key}: {value}" for key, value in paper.items() if value and key not in ("row", "column")]
    for recipe in recipes.values():
        about_paper += texts(quoted(recipe.paper, recipe.data.name))
    paper_text = "; ".join(dict.fromkeys(about_paper))
    return [_entry(name, "recipe", text) | {"settings": _settings_of_recipe(tables, first.origin), "paper": paper_text}]


def _settings_of_recipe(tables: dict[str, Any], origins: dict[str, str]) -> list[dict[str, str]]:
    values = flat(tables)
    sources = origins_of(values, {"track": "ours", **origins}) if origins else dict.fromkeys(values, "")
    return [{"name": key, "default": repr(value), "origin": sources[key]} for key, value in values.items()]


def _tables(name: str) -> list[dict[str, Any]]:
    """Describe a paper's table, with the recipes of its rows; return [] for an unknown one."""
    paper_name, _, number = name.partition("/")
    paper = papers().get(paper_name)
    if paper is None or number not in paper.tables:
        return []
    table = paper.tables[number]
    listed = next(each for each in tables_of_papers() if each["name"] == name)  # reads every recipe

    columns = list(table.heads)
    for heading, names in table.columns.items():
        columns.extend(f"{heading} {column}".strip() for column in names)
    rows = []
    for row, trained in zip(table.rows, listed["rows"], strict=True):
        rows.append([*map(table.text, row), "\n".join(trained["recipes"]) or trained["reason"]])

    texts = filter(None, (table.title, table.note, table.reason()))
    about = {
        "paper": f"{paper.authors} ({paper.year}). {paper.title}. {paper.url}",
        "recipes": [*listed["recipes"]["full"], *listed["recipes"]["small"]],
        "table": {"columns": [*columns, "recipe"], "rows": rows},
    }
    return [_entry(name, "table", "\n\n".join(texts)) | about]
