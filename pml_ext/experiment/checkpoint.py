"""What a run needs to go on as if it had not been stopped, in one file that is replaced in one step."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..devices import random_states, set_random_states
from ..errors import DataError, one_line
from ..files import write_atomically as write_atomically  # retrieval takes it from here


def save(path: Path, state: dict[str, Any]) -> None:
    """Writes a checkpoint; the old one stays until the new one is whole."""
    write_atomically(path, lambda temporary: torch.save(state, temporary))


def load(path: Path, device: torch.device | str = "cpu", trusted: bool = False) -> dict[str, Any]:
    """Reads a checkpoint.

    Args:
        path: the file.
        device: where its tensors go.
        trusted: whether the file may hold more than tensors and plain values: a run's own training state does.

    Raises:
        DataError: no such file, an empty or damaged one, or one that holds something else; the text says what to do.
    """
    if not path.is_file():
        raise _refused(path, "no such checkpoint")
    if path.stat().st_size == 0:
        raise _refused(path, "the file is empty")
    try:
        state = torch.load(path, map_location=device, weights_only=not trusted)
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:  # what a damaged archive or pickle raises is not limited, and torch's advice misleads
        raise _refused(path, f"the file is damaged ({type(error).__name__})") from error
    wanted = _KEYS.get(path.name, ())
    missing = [key for key in wanted if not isinstance(state, dict) or key not in state]
    if missing:
        raise _refused(path, f"the file holds something else (no {missing[0]!r} in it)")
    return state  # type: ignore[no-any-return]


@contextlib.contextmanager
def taking(path: Path) -> Iterator[None]:
    """Around what puts a checkpoint's state into networks: a state that does not fit is refused by the file's name."""
    try:
        yield
    except torch.cuda.OutOfMemoryError:
        raise
    except (KeyError, RuntimeError, ValueError) as error:
        raise _refused(path, f"it does not fit the run's recipe ({one_line(error)})") from error


_KEYS = {
    "last.pt": ("epoch", "networks", "optimizers", "schedulers", "stages", "random", "processes", "metrics", "best"),
    "model.pt": ("trunk", "embedder", "loss"),
    "best.pt": ("trunk", "embedder", "loss"),
    "before.pt": ("embeddings",),
}


def _refused(path: Path, reason: str) -> DataError:
    if path.name == "model.pt":
        remedy = f"delete {path.parent.parent / 'metrics.json'} and train with --resume: it is written and tested again"
    elif path.name == "before.pt":
        remedy = "only a new run of the recipe, in another folder, writes it"
    else:
        remedy = f"delete the folder {path.parent} and train with --resume: training begins again with the first epoch"
    return DataError(f"{path}: {reason}; {remedy}")


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
