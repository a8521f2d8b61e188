"""Tables and figures of papers, with the recipes of their rows and the number of finished runs."""

from __future__ import annotations

import collections
import tomllib
from pathlib import Path
from typing import Any

from .. import registry
from ..errors import ConfigError, UnknownNameError
from .recipe import PrintedTable, is_full, papers, variant_tables

SCALES = ("full", "small")
Variants = dict[str, dict[str, Any]]  # tables of a recipe's variants, by full name


def tables(runs: Path | None = None) -> list[dict[str, Any]]:
    """Return every table and figure of every paper.

    Args:
        runs: folder in which finished runs are counted, at any depth; None counts none.

    Returns:
        One entry each with ``name``, ``title``, ``paper``, ``recipes`` (names by scale), ``rows`` (``row``,
        ``recipes``, ``reason``), ``measured`` (recipes whose results stand in a README), ``runs`` (number of finished
        runs by scale) and ``reason``: why there is no recipe, where there is none.
    """
    named = _recipes_by_table()
    known = papers()
    counted = _finished_runs(runs, [f"{paper}/{number}" for paper, read in known.items() for number in read.tables])
    entries = []
    for paper, read in known.items():
        for number, table in read.tables.items():
            name = f"{paper}/{number}"
            recipes = _by_scale(name, named[name])
            if table.small and not recipes["small"]:
                other = f"{paper}/{table.small}"
                recipes["small"] = _by_scale(other, named[other])["small"]
            reasons = table.reason() or "; ".join(dict.fromkeys(filter(None, map(table.reason, table.row_names()))))
            entries.append(
                {
                    "name": name,
                    "title": table.title,
                    "paper": f"{read.authors} ({read.year})",
                    "recipes": recipes,
                    "rows": _rows(table, named[name]),
                    "measured": table.measured,
                    "runs": {scale: counted[name, scale] for scale in SCALES},
                    "reason": "" if any(recipes.values()) else reasons,
                }
            )
    return entries


def recipes_of(name: str) -> list[str]:
    """Return the recipes that name a table, ``"cbml/7"``."""
    return [*_recipes_by_table()[name]]


def table_rows(name: str) -> list[dict[str, Any]]:
    """Return the rows of a table, ``"cbml/7"``, each with its recipes, or the reason why there is none."""
    paper, _, number = name.partition("/")
    return _rows(papers()[paper].tables[number], _recipes_by_table()[name])


def _recipes_by_table() -> dict[str, dict[str, Variants]]:
    """Return ``{table: {recipe: variants}}`` of the recipes that can be read."""
    named: dict[str, dict[str, Variants]] = collections.defaultdict(dict)
    for recipe in registry.recipes():
        try:
            variants = variant_tables(recipe)
        except (ConfigError, UnknownNameError):
            continue
        for variant, mine in variants.items():
            paper = mine.get("paper")
            table = paper.get("table") if isinstance(paper, dict) else None
            if isinstance(table, str):
                named[table].setdefault(recipe, {})[variant] = mine
    return named


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
    by_scale: dict[str, list[str]] = {scale: [] for scale in SCALES}
    for recipe, variants in recipes.items():
        data = next(iter(variants.values())).get("data")
        full = isinstance(data, dict) and is_full(table, str(data.get("name")))
        by_scale["full" if full else "small"].append(recipe)
    return by_scale


def _finished_runs(folder: Path | None, known: list[str]) -> collections.Counter[tuple[str, str]]:
    """Count the finished runs below a folder by table and scale; files of other programs are passed over."""
    counted: collections.Counter[tuple[str, str]] = collections.Counter()
    for file in folder.rglob("metrics.json") if folder is not None else ():
        try:
            recipe = tomllib.loads((file.parent / "recipe.toml").read_text("utf-8"))
            table, data = recipe["paper"]["table"], str(recipe["data"]["name"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if table in known:
            counted[table, "full" if is_full(table, data) else "small"] += 1
    return counted
