"""What a name stands for, read from signatures and docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

from . import registry
from .components import Component, settings_of
from .data import PATH_FACTORIES
from .errors import UnknownNameError, unknown
from .experiment.recipe import load_recipes, names_in, papers, printed, quoted, texts
from .experiment.tables import recipes_of, table_rows


def describe(name: str, kind: str | None = None) -> list[dict[str, Any]]:
    """Everything of one name: components of several kinds may share it, and recipes, data sets and trunks have theirs.

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
    recipes, datasets, trunks = registry.recipes(), registry.datasets(), registry.trunks()
    datasets |= {prefix: factory for prefix, (factory, _) in PATH_FACTORIES.items()}
    described += _table(name)
    if name.partition("@")[0] in recipes:
        described.append(_recipe(name))
    described += [_factory(name, "data set", datasets[name])] if name in datasets else []
    described += [_factory(name, "trunk", trunks[name])] if name in trunks else []
    if not described:
        known = [c.name for c in registry.components()] + [*recipes, *datasets, *trunks]
        known += [f"{paper}/{number}" for paper, read in papers().items() for number in read.tables]
        raise UnknownNameError(unknown("component, recipe, table, data set or trunk", name, dict.fromkeys(known)))
    return described


def _component(component: Component) -> dict[str, Any]:
    text, meanings = _split_docstring(_docstring(component.cls))
    name = registry.short_name(component)
    return {
        "name": name,
        "kind": component.kind,
        "class": f"{component.cls.__module__}.{component.cls.__qualname__}",
        "text": text,
        "settings": _settings(component.settings, meanings),
        "capabilities": sorted(component.capabilities),
        "paper": str(component.paper) if component.paper else "",
        "recipes": [recipe for recipe in registry.recipes() if (component.kind, name) in names_in(recipe)],
    }


def _factory(name: str, kind: str, factory: Any) -> dict[str, Any]:
    text, meanings = _split_docstring(_docstring(factory))
    settings = {
        key: value
        for key, value in settings_of(factory).items()
        if key not in ("root", "in_channels", "image_size") or value.default is not value.empty
    }
    used = [recipe for recipe in registry.recipes() if (kind, name) in names_in(recipe)]
    return {
        "name": name,
        "kind": kind,
        "class": "",
        "text": text,
        "settings": _settings(settings, meanings),
        "capabilities": [],
        "paper": "",
        "recipes": used,
    }


def _recipe(name: str) -> dict[str, Any]:
    recipes = load_recipes(name)
    recipe = next(iter(recipes.values()))
    tables = recipe.as_dict()
    paper = tables.pop("paper", {})
    description = tables.pop("description")
    rows = [{"name": key, "default": value, "text": ""} for key, value in _flat(tables)]
    variants = f"\n\nvariants: {', '.join(recipes)}" if len(recipes) > 1 else ""
    said = {key: value for key, value in paper.items() if value and key not in ("row", "column")}
    values = dict.fromkeys(line for each in recipes.values() for line in texts(quoted(each.paper, each.data.name)))
    reported = "; ".join([f"{key}: {value}" for key, value in said.items()] + [*values])
    return {
        "name": name,
        "kind": "recipe",
        "class": "",
        "text": description + variants,
        "settings": rows,
        "capabilities": [],
        "paper": reported,
        "recipes": [],
    }


def _table(name: str) -> list[dict[str, Any]]:
    """A table of a paper as printed, with the recipes of its rows; nothing, if the name is of none."""
    try:
        place = printed(name)
    except UnknownNameError:
        return []
    if place is None:
        return []
    paper, table = place
    rows = table_rows(name)
    heads = [
        *table.heads,
        *(f"{heading} {column}".strip() for heading, columns in table.columns.items() for column in columns),
    ]
    cells = [[table.text(cell) for cell in row] for row in table.rows]
    last = ["\n".join(row["recipes"]) or row["reason"] for row in rows]
    text = "\n\n".join(filter(None, (table.title, table.note, table.reason())))
    return [
        {
            "name": name,
            "kind": "table",
            "class": "",
            "text": text,
            "settings": [],
            "capabilities": [],
            "paper": f"{paper.authors} ({paper.year}). {paper.title}. {paper.url}",
            "recipes": recipes_of(name),
            "table": {"columns": [*heads, "recipe"], "rows": [[*row, of] for row, of in zip(cells, last, strict=True)]},
        }
    ]


def _flat(tables: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for key, value in tables.items():
        if isinstance(value, dict):
            rows += _flat(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for index, item in enumerate(value):
                rows += _flat(item, f"{prefix}{key}.{index}.")
        else:
            rows.append((f"{prefix}{key}", repr(value)))
    return rows


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
    """A google docstring without its ``Args:``, and those as ``{name: meaning}``."""
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
