"""The only recipe of a name, and a recipe in a file."""

from pathlib import Path

from pml_ext_train.recipe import Recipe, load_recipes

from ....overrides import typed


def one(name: str, *overrides: str) -> Recipe:
    """Return the only recipe of a name, under overrides as they are typed."""
    (recipe,) = load_recipes(name, typed(overrides)).values()
    return recipe


def write(folder: Path, text: str, name: str = "mine.toml") -> str:
    """Write a recipe, and return the path of its file."""
    (folder / name).write_text(text)
    return str(folder / name)
