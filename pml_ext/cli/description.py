"""Descriptions of names, read from signatures and docstrings."""

from __future__ import annotations

import inspect
from typing import Any

from .. import registry
from ..errors import UnknownNameError, unknown
from ..recipe import flat, load_recipes, names_in, origins_of, papers, printed, quoted, texts, variant_tables
from ..recipe.merge import tables_of_papers
from ..registry.components import KINDS, capabilities
from ..settings import settings_of

_OTHER_KINDS = ("recipe", "table", "data set", "trunk")


def describe(name: str, kind: str | None = None) -> list[dict[str, Any]]:
    """Describe all entries of a name, which components of several kinds, recipes and tables may share.

    Data sets and trunks are looked up last, because they import torch. ``kind`` limits the search to one kind:
    one of :data:`KINDS`, ``"recipe"``, ``"table"``, ``"data set"`` or ``"trunk"``.
    An entry has ``name``, ``kind``, ``class``, ``text`` (the docstring), ``settings`` (``name``, ``default``; of a
    recipe ``origin`` too), ``capabilities``, ``paper`` and ``recipes``.
    """
    if kind not in (None, *KINDS, *_OTHER_KINDS):
        raise UnknownNameError(unknown("kind", str(kind), (*KINDS, *_OTHER_KINDS)))
    described = []
    if kind is None or kind in KINDS:
        for each in registry.candidates(name, kind) or ([registry.get(name, kind)] if kind else []):
            more = {"capabilities": sorted(capabilities(each.cls)), "paper": str(each.paper or "")}
            more["class"] = f"{each.cls.__module__}.{each.cls.__qualname__}"
            described.append(_entry(registry.short_name(each), each.kind, each.cls, settings_of(each.cls), **more))
    recipes = registry.recipes()
    if kind in (None, "table"):
        described += _table(name)
    recipe, *_ = name.partition("@")
    if kind in (None, "recipe") and (recipe in recipes or recipe.endswith(".toml")):
        described.append(_recipe(name))
    if described:
        return described
    from ..data import PATH_FACTORIES

    factories = {what: registry.factories(what) for what in ("data set", "trunk")}
    factories["data set"] |= {prefix: factory for prefix, (factory, _) in PATH_FACTORIES.items()}
    for what, known in factories.items():
        if name in known and kind in (None, what):
            given = ("root", "in_channels", "image_size")
            options = {k: p for k, p in settings_of(known[name]).items() if k not in given or p.default is not p.empty}
            described.append(_entry(name, what, known[name], options))
    if not described:
        tables = [f"{paper}/{number}" for paper, read in papers().items() for number in read.tables]
        named = {"recipe": [*recipes], "table": tables, **{what: [*known] for what, known in factories.items()}}
        if kind is not None:
            raise UnknownNameError(unknown(kind, name, named[kind]))
        names = [c.name for c in registry.components()]
        for more_names in named.values():
            names += more_names
        raise UnknownNameError(unknown("component, recipe, table, data set or trunk", name, names))
    return described


def _entry(
    name: str, kind: str, documented: Any, parameters: dict[str, inspect.Parameter], **more: Any
) -> dict[str, Any]:
    settings = {key: "(required)" if p.default is p.empty else repr(p.default) for key, p in parameters.items()}
    return {
        "name": name,
        "kind": kind,
        "class": "",
        "text": documented if isinstance(documented, str) else inspect.cleandoc(vars(documented).get("__doc__") or ""),
        "settings": [{"name": key, "default": default} for key, default in settings.items()],
        "capabilities": [],
        "paper": "",
        "recipes": [recipe for recipe in registry.recipes() if (kind, name) in names_in(recipe)],
        **more,
    }


def _recipe(name: str) -> dict[str, Any]:
    recipes = load_recipes(name, check=False)
    shown = next(iter(recipes))
    tables, origins = recipes[shown].as_dict(), variant_tables(name)[shown].get("origin", {})
    origins = {"track": "ours", **origins} if origins else {}
    paper = tables.pop("paper", {})
    text = tables.pop("description") + (f"\n\nvariants: {', '.join(recipes)}" if len(recipes) > 1 else "")
    quoted_from = [f"{key}: {value}" for key, value in paper.items() if value and key not in ("row", "column")]
    values = dict.fromkeys(line for each in recipes.values() for line in texts(quoted(each.paper, each.data.name)))
    given = flat(tables)
    sources = origins_of(given, origins) if origins else dict.fromkeys(given, "")
    settings = [{"name": key, "default": repr(value), "origin": sources[key]} for key, value in given.items()]
    return _entry(name, "recipe", text, {}, settings=settings, paper="; ".join([*quoted_from, *values]))


def _table(name: str) -> list[dict[str, Any]]:
    """Describe a table of a paper as printed, with the recipes of its rows; return [] for an unknown table."""
    listed = next((each for each in tables_of_papers() if each["name"] == name), None)
    if listed is None or (place := printed(name)) is None:
        return []
    paper, table = place
    columns = [f"{heading} {column}".strip() for heading, under in table.columns.items() for column in under]
    recipes = ["\n".join(row["recipes"]) or row["reason"] for row in listed["rows"]]
    rows = [[*map(table.text, row), last] for row, last in zip(table.rows, recipes, strict=True)]
    text = "\n\n".join(filter(None, (table.title, table.note, table.reason())))
    source = f"{paper.authors} ({paper.year}). {paper.title}. {paper.url}"
    shown = {"columns": [*table.heads, *columns, "recipe"], "rows": rows}
    named = [recipe for names in listed["recipes"].values() for recipe in names]
    return [_entry(name, "table", text, {}, paper=source, recipes=named, table=shown)]
