"""The contents of checkpoints: weights, and everything else that training changes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from pml_ext.errors import ConfigError, shortened
from pml_ext.serialization import sampler_state, set_sampler_state

from ..recipe import load_recipe
from ..records.run_files import RECIPE
from . import checkpoint
from .optimizers import extend_schedule
from .run import Run, RunHistory
from .view import View


def model_state(run: Run, trunk: bool = True) -> dict[str, Any]:
    """Weights of the networks and losses."""
    losses = [stage.loss.state_dict() for stage in run.stages]
    trunk_state = {"trunk": run.trunk.state_dict()} if trunk else {}
    return {
        **trunk_state,
        "embedder": run.embedder.state_dict(),
        "loss": losses[-1],
        "earlier_losses": losses[:-1],
        "epoch": run.epoch,
        **_origin(run),
    }


def load_networks(view: View, name: str) -> dict[str, Any]:
    """Load trunk and embedder from a checkpoint; return the checkpoint."""
    path = view.checkpoint(name)
    state = checkpoint.load(path, view.device, view.identity)
    view.data.check_listing(view.folder, state["listing"])
    with checkpoint.errors_with_path(path, state):
        if "trunk" in state:
            view.trunk.load_state_dict(state["trunk"])
        view.embedder.load_state_dict(state["embedder"])
    view.changed()
    return state


def open_run(folder: Path, seed: int, device: str, root: Path | None = None) -> View:
    """Return the data and the trained network of a finished run.

    ``root`` is the data folder. Raises DataError for missing, damaged or foreign files.
    """
    view = View(load_recipe(str(folder / RECIPE)), folder, seed, device, root)
    load_networks(view, "model")
    return view


def start_from(view: View, folder: Path) -> None:
    """Load another run's trunk, and its embedder if the shapes match."""
    path = folder / "checkpoints" / "model.pt"
    if not path.is_file():
        raise ConfigError(
            f"model.init: {folder} is not a finished run ({path} is missing); give the folder of a finished run"
        )
    state = checkpoint.load(path, view.device)
    try:
        view.trunk.load_state_dict(state["trunk"])
    except RuntimeError as error:
        raise ConfigError(
            f"model.init: the trunk differs from that of {folder} ({shortened(error, 160)}); copy [model] "
            f"trunk and the image size from {folder / RECIPE}"
        ) from None
    if _shapes(state["embedder"]) == _shapes(view.embedder.state_dict()):
        view.embedder.load_state_dict(state["embedder"])
    else:
        view.warn(f"model.init: the embedder of {folder} has other sizes, so it starts from random weights")
    view.changed()


def _shapes(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in state.items()}


def load_model(run: Run, name: str) -> dict[str, Any]:
    """Load networks and losses from a checkpoint; return the checkpoint."""
    state = load_networks(run, name)
    losses = [*state["earlier_losses"], state["loss"]]
    with checkpoint.errors_with_path(run.checkpoint(name), state):
        for stage, loss in zip(run.stages, losses, strict=True):
            stage.loss.load_state_dict(loss)
    return state


def state_of(run: Run) -> dict[str, Any]:
    """Return everything that training has changed."""
    return {
        "epoch": run.epoch,
        "processes": run.processes,
        **_origin(run),
        **vars(run.history),
        "parts": {name: part.state_dict() for name, part in _parts(run).items()},
        "samplers": [sampler_state(stage.sampler) for stage in run.stages],
        "random": checkpoint.random_state(),
    }


def restore(run: Run, path: Path, state: Mapping[str, Any]) -> None:
    """Load the result of :func:`state_of`; errors name ``path``."""
    if state["processes"] != run.processes:
        raise ConfigError(
            f"{run.folder} holds a run of {state['processes']} processes, not {run.processes}; resume it with "
            f"torchrun --nproc-per-node {state['processes']} -m pml_ext train ..."
        )
    with checkpoint.errors_with_path(path, state):
        for name, part in _parts(run).items():
            _restore_part(run, name, part, state)
        for stage, sampler in zip(run.stages, state["samplers"], strict=True):
            set_sampler_state(stage.sampler, sampler)
        checkpoint.set_random_state(state["ranks"][run.rank] if "ranks" in state else state["random"])
        run.history = RunHistory(**{name: state[name] for name in vars(run.history) if name in state})
    run.epoch = state["epoch"]
    run.changed()


def _restore_part(run: Run, name: str, part: Any, state: Mapping[str, Any]) -> None:
    """A cosine schedule keeps its present number of epochs."""
    epochs = getattr(part, "T_max", None)
    part.load_state_dict(state["parts"][name])
    if epochs is None or epochs == part.T_max:
        return
    factor = 1.0
    if name in ("trunk_optimizer schedule", "embedder_optimizer schedule"):
        factor = run.stages.of(max(1, state["epoch"])).table.lr_factor
    extend_schedule(part, epochs, factor)


def _parts(run: Run) -> dict[str, Any]:
    """All objects whose state training changes, by name, without the samplers."""
    parts: dict[str, Any] = {} if run.frozen else {"trunk": run.trunk}
    parts["embedder"] = run.embedder
    parts["engine"] = run.engine
    parts |= run.optimizers
    parts |= {f"{name} schedule": schedule for name, schedule in run.schedules.items()}
    for number, stage in enumerate(run.stages, start=1):
        for name in ("loss", "miner", "optimizer", "scheduler"):
            part = getattr(stage, name)
            if part is not None:
                parts[f"stage {number} {name}"] = part
    return parts


def _origin(run: Run) -> dict[str, Any]:
    return {"of": run.identity, "listing": run.data.listing}
