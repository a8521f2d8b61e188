"""The only recipe of a name, and a recipe in a file."""

from pathlib import Path

from pml_ext_train.recipe import Recipe, load_recipes

from ....overrides import typed


def one(name: str, *overrides: str) -> Recipe:
    """Return the recipe of a name, under overrides as they are typed."""
    recipes = load_recipes(name, typed(overrides))
    assert len(recipes) == 1
    return next(iter(recipes.values()))


def write(folder: Path, text: str, name: str = "mine.toml") -> str:
    """Write a recipe, and return the path of its file."""
    (folder / name).write_text(text)
    return str(folder / name)
