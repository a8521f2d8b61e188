"""The tables and figures of papers: the recipes of their rows, and what has been run of them."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .. import registry
from ..errors import ConfigError, UnknownNameError
from .recipe import PrintedTable, is_full, papers, variant_tables

SCALES = ("full", "small")


def tables(runs: Path | None = None) -> list[dict[str, Any]]:
    """Every table and figure of every paper.

    Args:
        runs: a folder in which finished runs are looked for, at any depth; None looks nowhere.

    Returns:
        One entry each with ``name``, ``title``, ``paper``, ``recipes`` (the names by scale), ``rows`` (``row``,
        ``recipes``, ``reason``), ``measured`` (recipes whose results stand in a README), ``runs`` (the number of
        finished runs by scale) and ``reason``, why there is no recipe, where there is none.
    """
    named = _recipes_by_table()
    counted = _finished(runs) if runs is not None else {}
    entries = []
    for paper, read in papers().items():
        for number, table in read.tables.items():
            name = f"{paper}/{number}"
            mine = named.get(name, {})
            by_scale = _by_scale(name, mine)
            if table.small and not by_scale["small"]:
                other = f"{paper}/{table.small}"
                by_scale["small"] = _by_scale(other, named.get(other, {}))["small"]
            reason = "" if any(by_scale.values()) else _reason(table)
            entries.append(
                {
                    "name": name,
                    "title": table.title,
                    "paper": f"{read.authors} ({read.year})",
                    "recipes": by_scale,
                    "rows": _rows(table, mine),
                    "measured": table.measured,
                    "runs": {scale: counted.get((name, scale), 0) for scale in SCALES},
                    "reason": reason,
                }
            )
    return entries


def recipes_of(name: str) -> list[str]:
    """The recipes that name a table.

    Args:
        name: ``"cbml/7"``.
    """
    return [*_recipes_by_table().get(name, {})]


def table_rows(name: str) -> list[dict[str, Any]]:
    """The rows of one table, each with its recipes, or the reason why there is none.

    Args:
        name: ``"cbml/7"``.
    """
    paper, _, number = name.partition("/")
    return _rows(papers()[paper].tables[number], _recipes_by_table().get(name, {}))


Variants = dict[str, dict[str, Any]]  # the tables of a recipe's variants


def _recipes_by_table() -> dict[str, dict[str, Variants]]:
    """``{table: {recipe: its variants}}``; a recipe that cannot be read is of none."""
    named: dict[str, dict[str, Variants]] = {}
    for recipe in registry.recipes():
        try:
            variants = variant_tables(recipe)
        except (ConfigError, UnknownNameError):
            continue
        for variant, mine in variants.items():
            paper = mine.get("paper")
            table = paper.get("table") if isinstance(paper, dict) else None
            if isinstance(table, str):
                named.setdefault(table, {}).setdefault(recipe, {})[variant] = mine
    return named


def _rows(table: PrintedTable, recipes: dict[str, Variants]) -> list[dict[str, Any]]:
    of: dict[str, list[str]] = {row: [] for row in table.row_names()}
    for variant, mine in ((name, each) for variants in recipes.values() for name, each in variants.items()):
        try:
            for row in table.chosen(mine["paper"].get("row", [])):
                of[row].append(variant)
        except (ValueError, TypeError, AttributeError):  # said when the recipe is loaded
            continue
    return [{"row": row, "recipes": names, "reason": "" if names else table.reason(row)} for row, names in of.items()]


def _reason(table: PrintedTable) -> str:
    """Why a table has no recipe: what is said of all of it, or of its rows."""
    return table.reason() or "; ".join(dict.fromkeys(filter(None, map(table.reason, table.row_names()))))


def _by_scale(table: str, recipes: dict[str, Variants]) -> dict[str, list[str]]:
    by_scale: dict[str, list[str]] = {scale: [] for scale in SCALES}
    for recipe, variants in recipes.items():
        data = next(iter(variants.values())).get("data")
        full = isinstance(data, dict) and is_full(table, str(data.get("name")))
        by_scale["full" if full else "small"].append(recipe)
    return by_scale


def _finished(folder: Path) -> dict[tuple[str, str], int]:
    """How many finished runs there are of each table at each scale."""
    counted: dict[tuple[str, str], int] = {}
    for table, data in _of_runs(folder):
        key = table, "full" if is_full(table, data) else "small"
        counted[key] = counted.get(key, 0) + 1
    return counted


def _of_runs(folder: Path) -> Iterator[tuple[str, str]]:
    """The table and the data set of each finished run; what is no run, or damaged, is passed over."""
    for file in sorted(folder.rglob("metrics.json")):
        try:
            recipe = tomllib.loads((file.parent / "recipe.toml").read_text("utf-8"))
            table, data = recipe["paper"]["table"], recipe["data"]["name"]
            if isinstance(table, str) and isinstance(data, str) and _is_table(table):
                yield table, data
        except (OSError, ValueError, KeyError, TypeError):
            continue


def _is_table(name: str) -> bool:
    paper, _, number = name.partition("/")
    return paper in (known := papers()) and number in known[paper].tables
