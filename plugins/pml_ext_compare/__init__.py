"""Comparison of recipes and trained runs: statistics, tuning, executors, probing of frozen trunks."""

from __future__ import annotations

from pml_ext.plugin import Command, hookimpl


@hookimpl
def pml_ext_commands() -> dict[str, Command]:
    """Return the commands that compare runs and frozen trunks."""
    return {
        "compare": Command("pml_ext_compare.commands:compare", "Compare recipes or runs, with significance tests."),
        "probe": Command("pml_ext_compare.commands:probe", "Compare frozen trunks (backbones) on your images."),
    }
