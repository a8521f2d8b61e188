"""What a run needs to go on as if it had not been stopped, in files that are replaced in one step.

``last.pt`` has the end of the last epoch, ``previous.pt`` the end of the one before, ``within.pt`` a place inside of an
epoch, where a signal ended the run. All hold tensors, numbers, texts and tables alone, and end in their checksum.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import random
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .. import __version__
from ..devices import random_states, set_random_states
from ..errors import DataError, shortened
from ..files import FORMAT, DamagedError, EarlierFormatError, check_seal, write_atomically, write_sealed
from .plain import from_plain, to_plain

_PACKAGES = ("torch", "pytorch-metric-learning", "torchvision", "numpy", "scikit-learn", "faiss-cpu", "faiss-gpu")
_KEYS = {
    "last.pt": ("epoch", "networks", "optimizers", "schedulers", "stages", "random", "processes", "metrics", "best"),
    "within.pt": ("epoch", "networks", "optimizers", "schedulers", "stages", "random", "processes", "losses"),
    "model.pt": ("trunk", "embedder", "loss"),
    "best.pt": ("trunk", "embedder", "loss"),
    "before.pt": ("embeddings",),
}
_KEYS["previous.pt"] = _KEYS["last.pt"]
_TO_RESUME = ("last.pt", "previous.pt", "within.pt")


def save(path: Path, state: dict[str, Any]) -> None:
    """Writes a checkpoint; the old one stays until the new one is whole.

    Args:
        path: the file.
        state: tensors, numbers, texts, and what else :func:`~.plain.to_plain` writes.

    Raises:
        UnwritableError: the disk is full, or the folder gone.
        UnplainError: something in it that no checkpoint holds.
    """
    plain = to_plain({**state, "format": FORMAT, "versions": versions()})

    def write(temporary: Path) -> None:
        try:
            torch.save(plain, temporary)
        except RuntimeError as error:  # torch has no error of its own for a full disk
            raise OSError(None, shortened(error, 200)) from error

    write_sealed(path, write)


def save_last(path: Path, state: dict[str, Any]) -> None:
    """Writes a checkpoint, and keeps the one that it replaces as ``previous.pt``.

    Args:
        path: ``last.pt``.
        state: as of :func:`save`.
    """
    if path.exists():
        write_atomically(path.with_name("previous.pt"), lambda temporary: _link(path, temporary))
    save(path, state)


def _link(old: Path, new: Path) -> None:
    try:
        os.link(old, new)
    except OSError:  # a file system without links
        shutil.copyfile(old, new)


def identity(recipe: Mapping[str, Any], seed: int) -> str:
    """What the checkpoints of a run have in common, unlike checkpoints of another recipe or seed.

    Args:
        recipe: its tables.
        seed: of the run.
    """
    return hashlib.sha256(json.dumps([recipe, seed], sort_keys=True, default=str).encode()).hexdigest()[:16]


def load(path: Path, device: torch.device | str = "cpu", of: str | None = None) -> dict[str, Any]:
    """Reads a checkpoint; no code of its author's is run.

    Args:
        path: the file.
        device: where its tensors go.
        of: the :func:`identity` of the run that asks; None takes a checkpoint of any run.

    Raises:
        DataError: no such file, an empty or damaged one, one of an earlier format that has to be whole to go on, one
            of another run, or one that holds something else; the text says what to do.
    """
    if not path.is_file():
        raise _refused(path, "no such checkpoint")
    if path.stat().st_size == 0:
        raise _refused(path, "the file is empty")
    try:
        with path.open("rb") as file:
            try:
                check_seal(file)
            except EarlierFormatError as error:
                if path.name in _TO_RESUME:
                    raise _earlier(path) from error
            state = torch.load(file, map_location=device, weights_only=True)
        state = from_plain(state)
    except (DataError, torch.cuda.OutOfMemoryError):
        raise
    except DamagedError as error:
        raise _refused(path, str(error)) from error
    except Exception as error:  # what a damaged archive or pickle raises is not limited, and torch's advice misleads
        raise _refused(path, f"the file is damaged ({type(error).__name__})") from error
    wanted = _KEYS.get(path.name, ())
    missing = [key for key in wanted if not isinstance(state, dict) or key not in state]
    if missing:
        raise _refused(path, f"the file holds something else (no {missing[0]!r} in it)")
    if of is not None and state.get("of", of) != of:
        raise _refused(path, "it is of another run, of another recipe or seed")
    return state  # type: ignore[no-any-return]


def load_to_resume(
    path: Path, device: torch.device | str = "cpu", of: str | None = None
) -> tuple[dict[str, Any], str] | None:
    """The last checkpoint that can be read; None where there is none.

    Args:
        path: ``last.pt``, beside which ``previous.pt`` may lie.
        device: where its tensors go.
        of: as of :func:`load`.

    Returns:
        Its state, and what to tell of it: "" unless the last one could not be read.

    Raises:
        DataError: there are checkpoints, and none can be read.
    """
    previous = path.with_name("previous.pt")
    if not path.exists() and not previous.exists():
        return None
    try:
        return load(path, device, of), ""
    except DataError as error:
        try:
            state = load(previous, device, of)
        except DataError:
            raise error from None
        reason = str(error).partition("; ")[0]
        return state, f"{reason}; the run goes on from the checkpoint before it, {previous} (epoch {state['epoch']})"


class _Misfit(Exception):
    """A part of a state does not fit what it is for."""


@contextlib.contextmanager
def part(name: str) -> Iterator[None]:
    """Around what takes a part of a state; inside :func:`taking`, the text of an error names it.

    Args:
        name: of the part, as ``"the trunk"``.
    """
    try:
        yield
    except torch.cuda.OutOfMemoryError:
        raise
    except (KeyError, RuntimeError, ValueError, TypeError, AttributeError, IndexError) as error:
        reason = f"{type(error).__name__}: {shortened(error, 200)}"
        raise _Misfit(f"{name} does not fit the run's recipe ({reason})") from error


@contextlib.contextmanager
def taking(path: Path, state: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Around what puts a checkpoint's state into networks: a state that does not fit is refused by the file's name.

    Args:
        path: the file.
        state: what it holds, of which the text has the versions that wrote it.
    """
    try:
        with part("it"):
            yield
    except _Misfit as error:
        raise _refused(path, f"{error}{_written_by(state or {})}") from error


def _written_by(state: Mapping[str, Any]) -> str:
    """What wrote a state, where that is not what reads it."""
    old, now = state.get("versions"), versions()
    if not isinstance(old, dict):
        return ""
    changed = [f"{name} {old.get(name)} (now {now.get(name)})" for name in now if old.get(name) != now.get(name)]
    return f" (written by {', '.join(changed)})" if changed else f" (written by pml-ext {__version__}, as this one is)"


def _refused(path: Path, reason: str) -> DataError:
    if path.name == "model.pt":
        metrics = path.parent.parent / "metrics.json"
        remedy = f"delete {metrics} and train with --resume: the network is tested and written again"
    elif path.name == "before.pt":
        remedy = "pml-ext report makes it again"
    elif path.name == "within.pt":
        remedy = "the epoch begins again"
    else:
        remedy = f"delete the folder {path.parent} and train with --resume: training begins again with the first epoch"
    return DataError(f"{path}: {reason}; {remedy}")


def _earlier(path: Path) -> DataError:
    return DataError(
        f"{path}: it is of an earlier format, without a checksum, which is not resumed; finish the run with the "
        f"pml-ext that began it, or begin again: delete the folder {path.parent} and train with --resume"
    )


# Random generators and versions


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
    set_random_states(state["accelerators"])
    np.random.set_state(state["numpy"])
    random.setstate(state["python"])


def seed_all(seed: int) -> None:
    """Seeds the generators of torch, numpy and Python."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


@functools.cache
def _found_versions() -> dict[str, str]:
    known = {"python": platform.python_version(), "pml-ext": __version__}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            known[package] = importlib.metadata.version(package)
    return known


def versions() -> dict[str, str]:
    """The versions of what a run depends on."""
    return dict(_found_versions())
