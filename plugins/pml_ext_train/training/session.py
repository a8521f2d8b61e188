"""A finished run, opened: its trained network on its data."""

from __future__ import annotations

from pathlib import Path

from ..recipe import load_recipe
from ..records.run_folder import RECIPE
from .run_context import build
from .state import load_networks
from .view import View


def open_run(folder: Path, seed: int, device: str, root: Path | None = None) -> View:
    """Return the data and the trained network of a finished run.

    Raise DataError for data or a checkpoint that is missing, damaged or of another run. ``seed`` is that of the run,
    ``root`` the folder of the data.
    """
    recipe = load_recipe(str(folder / RECIPE))
    view = View(build(recipe, seed, device, root), folder)
    load_networks(view, "model")
    return view
