"""Listings of the tables of papers, with the recipes of their rows."""

from __future__ import annotations

import contextlib
from typing import Any

from pml_ext import registry
from pml_ext.errors import ConfigError, UnknownNameError

from .papers import Printed, PrintedTable, is_full, papers
from .read import variant_tables
from .sweep import Tables

_VariantsByTable = dict[str, dict[str, dict[str, Tables]]]  # by table ("cbml/7"), recipe and variant


def tables_of_papers() -> list[dict[str, Any]]:
    """Return all papers' tables with recipes by scale, or with the reason for having no recipe."""
    variants = _variants_by_paper_table()
    entries: list[dict[str, Any]] = []
    for name, paper in papers().items():
        entries.extend(_paper_table_entry(name, paper, number, variants) for number in paper.tables)
    return entries


def _variants_by_paper_table() -> _VariantsByTable:
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
        reasons_of_rows = dict.fromkeys(map(table.reason, table.row_names()))
        reason = table.reason() or "; ".join(filter(None, reasons_of_rows))

    return {
        "name": name,
        "title": table.title,
        "paper": f"{paper.authors} ({paper.year})",
        "recipes": recipes,
        "rows": _rows(table, variants.get(name, {})),
        "measured": table.measured,
        "reason": reason,
    }


def _rows(table: PrintedTable, recipes: dict[str, dict[str, Tables]]) -> list[dict[str, Any]]:
    """Return a table's rows with their variants, or with the reason for having no variant."""
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
    """Return the recipes on the paper's data (``full``) and on other data (``small``)."""
    by_scale: dict[str, list[str]] = {"full": [], "small": []}
    for recipe, variants in recipes.items():
        first = next(iter(variants.values()))
        data = first.get("data")
        name = data.get("name") if isinstance(data, dict) else None
        scale = "full" if is_full(table, str(name)) else "small"
        by_scale[scale].append(recipe)
    return by_scale
