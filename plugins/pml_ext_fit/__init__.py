"""Training on somebody's own photographs or vectors, without a recipe: what is trained is chosen by trials."""

from __future__ import annotations

from pml_ext.plugin import Command, hookimpl, packaged

pml_ext_recipes, _ = packaged("pml_ext_fit")


@hookimpl
def pml_ext_commands() -> dict[str, Command]:
    """Return the command that begins with data, not with a recipe."""
    return {"fit": Command("pml_ext_fit.commands:fit", "Choose what to train on your own images or vectors.")}
