"""A finished run, opened with its data."""

from __future__ import annotations

from pathlib import Path

from ..recipe import load_recipe
from ..records.run_folder import RECIPE
from .run_context import build
from .state import load_networks
from .view import View


def open_run(folder: Path, seed: int, device: str, root: Path | None = None) -> View:
    """Return the data and the trained network of a finished run.

    ``root`` is the data folder. Raises DataError for missing, damaged or foreign files.
    """
    recipe = load_recipe(str(folder / RECIPE))
    view = View(build(recipe, seed, device, root), folder)
    load_networks(view, "model")
    return view
