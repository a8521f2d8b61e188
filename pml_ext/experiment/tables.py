"""Tables and figures of papers, with the recipes of their rows."""

from __future__ import annotations

import collections
from typing import Any

from .. import registry
from ..errors import ConfigError, UnknownNameError
from .recipe.loading import variant_tables
from .recipe.papers import PrintedTable, is_full, papers

Variants = dict[str, dict[str, Any]]  # tables of a recipe's variants, by full name


def tables() -> list[dict[str, Any]]:
    """Return every table and figure of every paper, with the recipes of its rows by scale, or why there are none."""
    named: dict[str, dict[str, Variants]] = collections.defaultdict(dict)  # by table and recipe
    for recipe in registry.recipes():
        try:
            variants = variant_tables(recipe)
        except (ConfigError, UnknownNameError):
            continue
        for variant, mine in variants.items():
            named[str((mine.get("paper") or {}).get("table"))].setdefault(recipe, {})[variant] = mine
    entries = []
    for paper, read in papers().items():
        for number, table in read.tables.items():
            name = f"{paper}/{number}"
            recipes = _by_scale(name, named[name])
            if table.small and not recipes["small"]:
                recipes["small"] = _by_scale(f"{paper}/{table.small}", named[f"{paper}/{table.small}"])["small"]
            reasons = table.reason() or "; ".join(dict.fromkeys(filter(None, map(table.reason, table.row_names()))))
            entry: dict[str, Any] = {
                "name": name,
                "title": table.title,
                "paper": f"{read.authors} ({read.year})",
                "recipes": recipes,
            }
            entry |= {"rows": _rows(table, named[name]), "measured": table.measured}
            entries.append(entry | {"reason": "" if any(recipes.values()) else reasons})
    return entries


def _rows(table: PrintedTable, recipes: dict[str, Variants]) -> list[dict[str, Any]]:
    trained: dict[str, list[str]] = {row: [] for row in table.row_names()}
    for variants in recipes.values():
        for variant, mine in variants.items():
            try:
                for row in table.chosen(mine["paper"].get("row", [])):
                    trained[row].append(variant)
            except (ValueError, TypeError, AttributeError):  # reported when the recipe is loaded
                continue
    return [
        {"row": row, "recipes": names, "reason": "" if names else table.reason(row)} for row, names in trained.items()
    ]


def _by_scale(table: str, recipes: dict[str, Variants]) -> dict[str, list[str]]:
    by_scale: dict[str, list[str]] = {"full": [], "small": []}
    for recipe, variants in recipes.items():
        data = str((next(iter(variants.values())).get("data") or {}).get("name"))
        by_scale["full" if is_full(table, data) else "small"].append(recipe)
    return by_scale
