"""Comparison of recipes, runs and frozen trunks."""

from pml_ext.plugin import Command, hookimpl


@hookimpl
def pml_ext_commands() -> dict[str, Command]:
    """The commands ``compare`` and ``probe``."""
    return {
        "compare": Command("pml_ext_compare.commands:compare", "Compare recipes or runs, with significance tests."),
        "probe": Command("pml_ext_compare.commands:probe", "Compare frozen trunks (backbones) on your images."),
    }
