"""What a run needs to go on as if it had not been stopped, in one file that is replaced in one step."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..devices import random_states, set_random_states


def write_atomically(path: Path, write: Any) -> None:
    """Calls ``write(temporary_path)`` and moves the result into place, so that a reader sees the old file or the new.

    Args:
        path: the file to write.
        write: called with a path in the same folder.
    """
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def save(path: Path, state: dict[str, Any]) -> None:
    """Writes a checkpoint; the old one stays until the new one is whole."""
    write_atomically(path, lambda temporary: torch.save(state, temporary))


def load(path: Path, device: torch.device | str = "cpu", trusted: bool = False) -> dict[str, Any]:
    """Reads a checkpoint.

    Args:
        path: the file.
        device: where its tensors go.
        trusted: whether the file may hold more than tensors and plain values: a run's own training state does.
    """
    return torch.load(path, map_location=device, weights_only=not trusted)  # type: ignore[no-any-return]


def random_state() -> dict[str, Any]:
    """The states of the generators of torch, numpy and Python."""
    return {
        "torch": torch.get_rng_state(),
        "accelerators": random_states(),
        "numpy": np.random.get_state(),
        "python": random.getstate(),
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Puts the generators back to what :func:`random_state` found."""
    torch.set_rng_state(state["torch"].cpu())
    set_random_states(state.get("accelerators", state.get("cuda", [])))  # "cuda" in older checkpoints
    np.random.set_state(state["numpy"])
    random.setstate(state["python"])


def seed_all(seed: int) -> None:
    """Seeds the generators of torch, numpy and Python."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
