"""Descriptions of names, read from signatures and docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Any

from . import registry
from .components import Component, settings_of
from .data import PATH_FACTORIES
from .errors import UnknownNameError, unknown
from .experiment.recipe import flat, load_recipes, names_in, papers, printed, quoted, texts
from .experiment.tables import tables as tables_of_papers


def describe(name: str, kind: str | None = None) -> list[dict[str, Any]]:
    """Describe everything of one name; components of several kinds, recipes, data sets and trunks may share it.

    Args:
        name: for example ``"cbml"``, ``"cbml/digits"``, ``"omniglot-small"``.
        kind: one component kind, to leave out the others.

    Returns:
        One entry each with ``name``, ``kind``, ``class``, ``text`` (the docstring with its equation), ``settings``
        (``name``, ``default``, ``text``), ``capabilities``, ``paper`` and ``recipes``.

    Raises:
        UnknownNameError: nothing has the name.
    """
    described = [_component(component) for component in registry.candidates(name, kind)]
    if kind is not None:
        return described or [_component(registry.get(name, kind))]
    factories = {"data set": registry.factories("data set"), "trunk": registry.factories("trunk")}
    factories["data set"] |= {prefix: factory for prefix, (factory, _) in PATH_FACTORIES.items()}
    recipes = registry.recipes()
    described += _table(name)
    described += [_recipe(name)] if name.partition("@")[0] in recipes else []
    for what, known in factories.items():
        if name in known:
            options = settings_of(known[name]).items()
            given = ("root", "in_channels", "image_size")
            settings = [p for key, p in options if key not in given or p.default is not p.empty]
            described.append(_documented(name, what, getattr(known[name], "__doc__", None), settings))
    if not described:
        names = [c.name for c in registry.components()] + [*recipes, *factories["data set"], *factories["trunk"]]
        names += [f"{paper}/{number}" for paper, read in papers().items() for number in read.tables]
        raise UnknownNameError(unknown("component, recipe, table, data set or trunk", name, names))
    return described


def _entry(name: str, kind: str, text: str, **more: Any) -> dict[str, Any]:
    empty = {"class": "", "text": text, "settings": [], "capabilities": [], "paper": "", "recipes": []}
    return {"name": name, "kind": kind, **empty, **more}


def _component(component: Component) -> dict[str, Any]:
    cls = component.cls
    settings = component.settings.values()
    entry = _documented(registry.short_name(component), component.kind, vars(cls).get("__doc__"), settings)
    entry["class"] = f"{cls.__module__}.{cls.__qualname__}"
    return entry | {"capabilities": sorted(component.capabilities), "paper": str(component.paper or "")}


def _documented(name: str, kind: str, docstring: str | None, settings: Iterable[inspect.Parameter]) -> dict[str, Any]:
    text, meanings = _split_docstring(inspect.cleandoc(docstring or ""))
    rows = [
        {
            "name": p.name,
            "default": "(required)" if p.default is p.empty else repr(p.default),
            "text": meanings.get(p.name, ""),
        }
        for p in settings
    ]
    recipes = [recipe for recipe in registry.recipes() if (kind, name) in names_in(recipe)]
    return _entry(name, kind, text, settings=rows, recipes=recipes)


def _recipe(name: str) -> dict[str, Any]:
    recipes = load_recipes(name)
    tables = next(iter(recipes.values())).as_dict()
    paper = tables.pop("paper", {})
    text = tables.pop("description") + (f"\n\nvariants: {', '.join(recipes)}" if len(recipes) > 1 else "")
    quoted_from = [f"{key}: {value}" for key, value in paper.items() if value and key not in ("row", "column")]
    values = dict.fromkeys(line for each in recipes.values() for line in texts(quoted(each.paper, each.data.name)))
    settings = [{"name": key, "default": repr(value), "text": ""} for key, value in flat(tables).items()]
    return _entry(name, "recipe", text, settings=settings, paper="; ".join([*quoted_from, *values]))


def _table(name: str) -> list[dict[str, Any]]:
    """Describe a table of a paper as printed, with the recipes of its rows; nothing, if the name is of none."""
    try:
        place = printed(name)
    except UnknownNameError:
        return []
    if place is None:
        return []
    paper, table = place
    columns = [f"{heading} {column}".strip() for heading, under in table.columns.items() for column in under]
    listed = next(each for each in tables_of_papers() if each["name"] == name)
    recipes = ["\n".join(row["recipes"]) or row["reason"] for row in listed["rows"]]
    rows = [[*map(table.text, row), last] for row, last in zip(table.rows, recipes, strict=True)]
    text = "\n\n".join(filter(None, (table.title, table.note, table.reason())))
    source = f"{paper.authors} ({paper.year}). {paper.title}. {paper.url}"
    shown = {"columns": [*table.heads, *columns, "recipe"], "rows": rows}
    named = [recipe for names in listed["recipes"].values() for recipe in names]
    return [_entry(name, "table", text, paper=source, recipes=named, table=shown)]


def _split_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return a docstring without its ``Args:``, and those as ``{name: meaning}``."""
    match = re.search(r"^Args:\n((?:[ ]+.*\n?|\n)*)", text, re.MULTILINE)
    if match is None:
        return text.strip(), {}
    meanings: dict[str, str] = {}
    for entry in re.split(r"\n(?=\S)", inspect.cleandoc("\n" + match[1])):
        names, _, meaning = re.sub(r" \([^)]*\)(?=:)", "", entry, count=1).partition(":")
        meanings |= {name.strip(" *"): " ".join(meaning.split()) for name in names.split(",")}
    return (text[: match.start()].rstrip() + "\n\n" + text[match.end() :].lstrip()).strip(), meanings
