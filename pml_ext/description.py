"""Descriptions of names, read from signatures and docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

from . import registry
from .components import Component, settings_of
from .data import PATH_FACTORIES
from .errors import UnknownNameError, unknown
from .experiment.recipe import flat, load_recipes, names_in, papers, printed, quoted, texts
from .experiment.tables import tables


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
    described = [_component(c) for c in registry.candidates(name, kind)]
    if kind is not None:
        return described or [_component(registry.get(name, kind))]
    recipes, datasets, trunks = registry.recipes(), registry.factories("data set"), registry.factories("trunk")
    datasets |= {prefix: factory for prefix, (factory, _) in PATH_FACTORIES.items()}
    described += _table(name)
    if name.partition("@")[0] in recipes:
        described.append(_recipe(name))
    described += [_factory(name, "data set", datasets[name])] if name in datasets else []
    described += [_factory(name, "trunk", trunks[name])] if name in trunks else []
    if not described:
        known = [c.name for c in registry.components()] + [*recipes, *datasets, *trunks]
        known += [f"{paper}/{number}" for paper, read in papers().items() for number in read.tables]
        raise UnknownNameError(unknown("component, recipe, table, data set or trunk", name, known))
    return described


def _entry(name: str, kind: str, text: str, **more: Any) -> dict[str, Any]:
    empty = {"class": "", "text": text, "settings": [], "capabilities": [], "paper": "", "recipes": []}
    return {"name": name, "kind": kind, **empty, **more}


def _component(component: Component) -> dict[str, Any]:
    text, meanings = _split_docstring(_docstring(component.cls))
    name = registry.short_name(component)
    return _entry(
        name,
        component.kind,
        text,
        **{"class": f"{component.cls.__module__}.{component.cls.__qualname__}"},
        settings=_settings(component.settings, meanings),
        capabilities=sorted(component.capabilities),
        paper=str(component.paper) if component.paper else "",
        recipes=_recipes_with(component.kind, name),
    )


def _factory(name: str, kind: str, factory: Any) -> dict[str, Any]:
    text, meanings = _split_docstring(_docstring(factory))
    given = ("root", "in_channels", "image_size")
    options = {k: v for k, v in settings_of(factory).items() if k not in given or v.default is not v.empty}
    return _entry(name, kind, text, settings=_settings(options, meanings), recipes=_recipes_with(kind, name))


def _recipes_with(kind: str, name: str) -> list[str]:
    return [recipe for recipe in registry.recipes() if (kind, name) in names_in(recipe)]


def _recipe(name: str) -> dict[str, Any]:
    recipes = load_recipes(name)
    tables = next(iter(recipes.values())).as_dict()
    paper = tables.pop("paper", {})
    variants = f"\n\nvariants: {', '.join(recipes)}" if len(recipes) > 1 else ""
    text = tables.pop("description") + variants
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
    entry = next(each for each in tables() if each["name"] == name)
    columns = [f"{heading} {column}".strip() for heading, under in table.columns.items() for column in under]
    recipes = ["\n".join(row["recipes"]) or row["reason"] for row in entry["rows"]]
    return [
        _entry(
            name,
            "table",
            "\n\n".join(filter(None, (table.title, table.note, table.reason()))),
            paper=f"{paper.authors} ({paper.year}). {paper.title}. {paper.url}",
            recipes=[recipe for names in entry["recipes"].values() for recipe in names],
            table={
                "columns": [*table.heads, *columns, "recipe"],
                "rows": [[*map(table.text, row), last] for row, last in zip(table.rows, recipes, strict=True)],
            },
        )
    ]


def _docstring(target: Any) -> str:
    own = vars(target).get("__doc__") if isinstance(target, type) else getattr(target, "__doc__", None)
    return inspect.cleandoc(own) if own else ""


def _settings(parameters: Mapping[str, inspect.Parameter], meanings: Mapping[str, str]) -> list[dict[str, str]]:
    return [
        {
            "name": name,
            "default": "(required)" if parameter.default is parameter.empty else repr(parameter.default),
            "text": meanings.get(name, ""),
        }
        for name, parameter in parameters.items()
    ]


def _split_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return a docstring without its ``Args:``, and those as ``{name: meaning}``."""
    match = re.search(r"^Args:\n((?:[ ]+.*\n?|\n)*)", text, re.MULTILINE)
    if match is None:
        return text.strip(), {}
    meanings: dict[str, str] = {}
    current = ""
    for line in inspect.cleandoc("\n" + match.group(1)).splitlines():
        entry = re.match(r"\*{0,2}([\w, ]+?)(?: \(.*?\))?:(?:\s+|$)(.*)", line)
        if entry and not line.startswith(" "):
            current = entry.group(1)
            meanings[current] = entry.group(2)
        elif current:
            meanings[current] += f" {line.strip()}"
    named = {name.strip(): meaning for names, meaning in meanings.items() for name in names.split(",")}
    return (text[: match.start()].rstrip() + "\n\n" + text[match.end() :].lstrip()).strip(), named
