"""Checkpoints, which ``torch.load(path, weights_only=True)`` reads without executing code.

``last.pt`` and ``previous.pt`` are from the ends of the last two epochs, ``within.pt`` from inside one. ``best.pt`` and
``model.pt`` have weights, ``before.pt`` the untrained network's test embeddings.
"""

import contextlib
import functools
import importlib.metadata
import pickle
import platform
import random
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pml_ext import __version__
from pml_ext.errors import DataError, shortened
from pml_ext.pairwise.generators import generator_states, set_generator_states
from pml_ext.serialization import from_plain, to_plain

from ..files import SUMS, DamagedError, read_sums, reading, replace_file, sha256_of

_PACKAGES = ("torch", "pytorch-metric-learning", "torchvision", "numpy", "scikit-learn", "faiss-cpu", "faiss-gpu")


def save(path: Path, state: Mapping[str, Any]) -> None:
    """Write ``RUN/checkpoints/NAME.pt`` and its checksum atomically."""

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:  # by its path, torch says of a full disk: unexpected pos 704 vs 598
            torch.save(to_plain({**state, "versions": versions()}), file)

    replace_file(path.parent.parent, f"{path.parent.name}/{path.name}", write)


def save_last(path: Path, state: Mapping[str, Any]) -> None:
    """Write ``last.pt``; an intact old one becomes ``previous.pt``."""
    if path.is_file():
        folder = path.parent.parent
        wanted = read_sums(folder).get(f"{path.parent.name}/{path.name}")
        copy = functools.partial(shutil.copyfile, path)
        with contextlib.suppress(DamagedError, DataError):  # a damaged one must not replace a good one
            if wanted is None:
                load(path)
            replace_file(folder, f"{path.parent.name}/previous.pt", copy, expected=wanted)
    save(path, state)


def load(
    path: Path, device: torch.device | str = "cpu", of: str | None = None, digest: str | None = None
) -> dict[str, Any]:
    """Read a checkpoint; DataError if it is missing, damaged, or of another run.

    ``of`` is the required ``identity``, or None for any run. ``digest`` is the file's SHA-256, if known.
    """
    if not path.is_file():
        raise _refused(path, "no such checkpoint")
    wanted = read_sums(path.parent.parent).get(f"{path.parent.name}/{path.name}")
    with reading(path):
        differs = wanted is not None and (digest or sha256_of(path)) != wanted
    if differs:
        raise _refused(path, f"the file is damaged (its checksum differs from {SUMS})")
    try:
        state = from_plain(torch.load(path, map_location=device, weights_only=True))
    except torch.cuda.OutOfMemoryError:
        raise
    except PermissionError:
        with reading(path):
            raise
    except pickle.UnpicklingError as error:
        raise _refused(
            path,
            "it cannot be read here (UnpicklingError): another version of pml_ext or torch wrote it, or it is damaged",
            "use the versions that wrote it; if it is damaged, ",
        ) from error
    except Exception as error:  # a damaged archive raises errors of any kind, and torch's advice misleads
        raise _refused(path, f"the file is damaged ({type(error).__name__})") from error
    if not isinstance(state, dict) or (of is not None and state.get("of") != of):
        raise _refused(path, "it belongs to a run with another recipe or seed")
    return state  # type: ignore[no-any-return]


def load_to_resume(path: Path, device: torch.device | str, of: str) -> tuple[dict[str, Any] | None, str]:
    """Return the state of ``last.pt`` or, if damaged, of ``previous.pt`` with a warning."""
    previous = path.with_name("previous.pt")
    if not path.exists() and not previous.exists():
        return None, ""
    try:
        return load(path, device, of), ""
    except DataError as error:
        with contextlib.suppress(DataError):
            state = load(previous, device, of)
            reason = str(error).partition("; ")[0]
            return state, f"{reason}; the run resumes from the earlier checkpoint {previous} (epoch {state['epoch']})"
        raise


@contextlib.contextmanager
def errors_with_path(path: Path, state: Mapping[str, Any]) -> Iterator[None]:
    """Add the path and the writing versions to errors of loading a state."""
    try:
        yield
    except torch.cuda.OutOfMemoryError:
        raise
    except (KeyError, RuntimeError, ValueError, TypeError, AttributeError, IndexError) as error:
        old = state.get("versions", {})
        now = versions()
        changed = [f"{key} {old[key]} (now {now.get(key)})" for key in old if old[key] != now.get(key)]
        written = f" (written by {', '.join(changed)})" if changed else ""
        raise _refused(
            path, f"it does not fit the run's recipe ({type(error).__name__}: {shortened(error, 200)}){written}"
        ) from error


def _refused(path: Path, reason: str, advice: str = "") -> DataError:
    remedies = {
        "model.pt": "train with --resume to restore it from last.pt",
        "before.pt": "the report leaves out its figure",
        "within.pt": "the epoch starts over",
    }
    anew = f"delete the folder {path.parent} and train with --resume to start over at the first epoch"
    return DataError(f"{path}: {reason}; {advice}{remedies.get(path.name, anew)}")


def random_state() -> dict[str, Any]:
    """Return the states of the generators of torch, NumPy and Python."""
    return {"torch": generator_states(), "numpy": np.random.get_state(), "python": random.getstate()}


def set_random_state(state: Mapping[str, Any]) -> None:
    """Restore the states of :func:`random_state`."""
    set_generator_states(state["torch"])
    np.random.set_state(state["numpy"])
    random.setstate(state["python"])


def seed_all(seed: int) -> None:
    """Seed the generators of torch, NumPy and Python."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


@functools.cache
def versions() -> dict[str, str]:
    """Versions of Python, this package and the libraries that affect results."""
    known = {"python": platform.python_version(), "pml-ext": __version__}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            known[package] = importlib.metadata.version(package)
    return known
