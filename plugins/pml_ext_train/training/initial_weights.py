"""Initial weights: of another run, or an embedder in closed form."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from pml_ext.errors import ConfigError, shortened

from ..records.run_folder import RECIPE
from . import checkpoint
from .closed_form import fit_embedder
from .run import Run


def initialize_weights(run: Run) -> None:
    """Load the weights of another run, and fit an embedder in closed form, as the recipe says."""
    model = run.recipe.model
    if model.init is not None:
        start_from(run, Path(model.init))
    fit_embedder(run)


def start_from(run: Run, folder: Path) -> None:
    """Load another run's trunk, and its embedder if the shapes match."""
    path = folder / "checkpoints" / "model.pt"
    if not path.is_file():
        raise ConfigError(
            f"model.init: {folder} is not a finished run ({path} is missing); give the folder of a finished run"
        )
    state = checkpoint.load(path, run.device)
    try:
        run.trunk.load_state_dict(state["trunk"])
    except RuntimeError as error:
        raise ConfigError(
            f"model.init: the trunk differs from that of {folder} ({shortened(error, 160)}); copy [model] "
            f"trunk and the image size from {folder / RECIPE}"
        ) from None
    if _shapes(state["embedder"]) == _shapes(run.embedder.state_dict()):
        run.embedder.load_state_dict(state["embedder"])
    else:
        run.warn(f"model.init: the embedder of {folder} has other sizes, so it starts from random weights")
    run.changed()


def _shapes(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in state.items()}
