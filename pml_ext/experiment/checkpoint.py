"""Checkpoints: all that a run needs to go on as if it had not been stopped, in files that run no code when read.

``last.pt`` has the end of the last epoch, ``previous.pt`` that of the epoch before, ``within.pt`` a place inside of an
epoch, ``best.pt`` and ``model.pt`` weights, ``before.pt`` the untrained network's embeddings.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import hashlib
import importlib.metadata
import io
import json
import os
import platform
import random
import shutil
import warnings
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .. import __version__
from ..checksums import SUMS, read_sums, replace_file, sha256_of
from ..devices import random_states, set_random_states
from ..errors import DataError, PluginWarning, shortened
from ..samplers import sampler_state, set_sampler_state

_PACKAGES = ("torch", "pytorch-metric-learning", "torchvision", "numpy", "scikit-learn", "faiss-cpu", "faiss-gpu")
_KEYS = {
    "last.pt": ("epoch", "networks", "optimizers", "schedulers", "stages", "random", "processes", "metrics", "best"),
    "within.pt": ("epoch", "networks", "optimizers", "schedulers", "stages", "random", "processes", "losses"),
    "model.pt": ("trunk", "embedder", "loss"),
    "best.pt": ("trunk", "embedder", "loss"),
    "before.pt": ("embeddings",),
}
_KEYS["previous.pt"] = _KEYS["last.pt"]
# Types besides torch's own that a checkpoint may hold: numpy's arrays and numbers, and containers of samplers.
_SAFE: list[Any] = [
    *(np.dtype, np.ndarray, np.zeros(0).__reduce__()[0], np.float64(0).__reduce__()[0]),  # type: ignore[index]
    *{type(np.dtype(kind)) for kind in np.typecodes["All"] if kind not in "OV"},
    *(collections.Counter, frozenset, range, set),
]


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint and its checksum; the old one stays until the new one is whole.

    Args:
        path: ``RUN/checkpoints/NAME.pt``.
        state: tensors, numbers, texts, containers of these, and numpy's arrays.

    Raises:
        UnwritableError: the disk is full, or the folder gone.
    """

    def write(temporary: Path) -> None:
        try:
            torch.save({**state, "versions": versions()}, temporary)
        except RuntimeError as error:  # torch has no error of its own for a full disk
            raise OSError(None, shortened(error, 200)) from error

    replace_file(path.parent.parent, f"{path.parent.name}/{path.name}", write)


def save_last(path: Path, state: dict[str, Any]) -> None:
    """Write ``last.pt``, and keep the one that it replaces as ``previous.pt``."""
    if path.exists():
        replace_file(path.parent.parent, f"{path.parent.name}/previous.pt", functools.partial(_link, path))
    save(path, state)


def _link(old: Path, new: Path) -> None:
    try:
        os.link(old, new)
    except OSError:  # a file system without links
        shutil.copyfile(old, new)


def identity(recipe: Mapping[str, Any], seed: int) -> str:
    """Return a name that the checkpoints of a run have in common, unlike those of another recipe or seed."""
    return hashlib.sha256(json.dumps([recipe, seed], sort_keys=True, default=str).encode()).hexdigest()[:16]


def load(
    path: Path, device: torch.device | str = "cpu", of: str | None = None, digest: str | None = None
) -> dict[str, Any]:
    """Read a checkpoint without running code that may be in it.

    Args:
        path: ``RUN/checkpoints/NAME.pt``.
        device: where its tensors go.
        of: the :func:`identity` of the run that asks; None takes a checkpoint of any run.
        digest: the file's SHA-256, where the caller has it.

    Raises:
        DataError: no such file, an empty or damaged one, one of another run or with something else in it; the text
            says what to do.
    """
    if not path.is_file():
        raise _refused(path, "no such checkpoint")
    if path.stat().st_size == 0:
        raise _refused(path, "the file is empty")
    wanted = read_sums(path.parent.parent).get(f"{path.parent.name}/{path.name}")
    if wanted is not None and (digest or sha256_of(path)) != wanted:
        raise _refused(path, f"the file is damaged (its checksum is not that in {SUMS})")
    try:
        with torch.serialization.safe_globals(_SAFE):
            state = torch.load(path, map_location=device, weights_only=True)
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:  # a damaged archive raises errors of any kind, and torch's advice misleads
        raise _refused(path, f"the file is damaged ({type(error).__name__})") from error
    missing = [key for key in _KEYS.get(path.name, ()) if not isinstance(state, dict) or key not in state]
    if missing:
        raise _refused(path, f"the file holds something else (no {missing[0]!r} in it)")
    if of is not None and state.get("of", of) != of:
        raise _refused(path, "it is of another run, of another recipe or seed")
    return state  # type: ignore[no-any-return]


def load_to_resume(
    path: Path, device: torch.device | str = "cpu", of: str | None = None
) -> tuple[dict[str, Any], str] | None:
    """Return the state of ``last.pt``, or if that cannot be read, of ``previous.pt`` beside it, and a warning or "".

    Returns None where there is neither.

    Raises:
        DataError: none of the two can be read.
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


@contextlib.contextmanager
def taking(path: Path, state: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Add a checkpoint's path, and the versions that wrote its state, to errors of loading it into networks."""
    try:
        yield
    except torch.cuda.OutOfMemoryError:
        raise
    except (KeyError, RuntimeError, ValueError, TypeError, AttributeError, IndexError) as error:
        old, now, written = (state or {}).get("versions"), versions(), ""
        if isinstance(old, dict):
            changed = [f"{key} {old.get(key)} (now {now.get(key)})" for key in now if old.get(key) != now.get(key)]
            written = f" (written by {', '.join(changed) or f'pml-ext {__version__}, as this one is'})"
        reason = f"{type(error).__name__}: {shortened(error, 200)}"
        raise _refused(path, f"it does not fit the run's recipe ({reason}){written}") from error


def _refused(path: Path, reason: str) -> DataError:
    remedies = {
        "model.pt": "train with --resume: it is made again from last.pt",
        "before.pt": "pml-ext report makes it again",
        "within.pt": "the epoch begins again",
    }
    anew = f"delete the folder {path.parent} and train with --resume: training begins again with the first epoch"
    return DataError(f"{path}: {reason}; {remedies.get(path.name, anew)}")


# Samplers and random generators

_kept: weakref.WeakKeyDictionary[Any, frozenset[str]] = weakref.WeakKeyDictionary()  # attributes by sampler


def state_of_sampler(sampler: Any) -> Any:
    """Return a sampler's ``state_dict()``, or those attributes that a checkpoint can hold; warn of the others, once."""
    if hasattr(sampler, "state_dict"):
        return sampler_state(sampler)
    state = {
        name: getter(value) if (getter := _generator_methods(value)[0]) else _plain(value)
        for name, value in vars(sampler).items()
    }
    if sampler not in _kept:
        _kept[sampler] = frozenset(name for name, value in state.items() if _can_be_held(value))
        for name in state.keys() - _kept[sampler]:
            warnings.warn(
                f"{type(sampler).__name__}: checkpoints leave out its {name} (a {type(state[name]).__name__}); a "
                "state_dict() and load_state_dict() of its own would keep it",
                PluginWarning,
                stacklevel=2,
            )
    return {name: value for name, value in state.items() if name in _kept[sampler]}


def set_state_of_sampler(sampler: Any, state: Any) -> None:
    """Put a sampler back to what :func:`state_of_sampler` returned."""
    if not hasattr(sampler, "load_state_dict"):
        state = dict(state)
        for name, value in vars(sampler).items():
            if name in state and (setter := _generator_methods(value)[1]):
                setter(value, state.pop(name))
            elif name in state:
                state[name] = _refilled(value, state[name])
    set_sampler_state(sampler, state)


def _plain(value: Any) -> Any:
    """Return a mapping, of any class, as a dict; other values as they are."""
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, dict) else value


def _refilled(own: Any, saved: Any) -> Any:
    """Return a saved value in the mapping that it was taken from, which may be a defaultdict."""
    if not isinstance(own, dict) or not isinstance(saved, dict):
        return saved
    before = dict(own)
    own.clear()
    own.update({key: _refilled(before.get(key), item) for key, item in saved.items()})
    return own


def _generator_methods(value: Any) -> tuple[Any, Any]:
    """Return the functions that get and set the state of a random generator; None for other values."""
    if isinstance(value, np.random.Generator):
        return lambda it: it.bit_generator.state, lambda it, state: setattr(it.bit_generator, "state", state)
    if isinstance(value, random.Random):
        return random.Random.getstate, random.Random.setstate
    if isinstance(value, np.random.RandomState):
        return np.random.RandomState.get_state, np.random.RandomState.set_state
    if isinstance(value, torch.Generator):
        return torch.Generator.get_state, lambda it, state: it.set_state(state.cpu())
    return None, None


def _can_be_held(value: Any) -> bool:
    file = io.BytesIO()
    try:
        torch.save(value, file)
        file.seek(0)
        with torch.serialization.safe_globals(_SAFE):
            torch.load(file, weights_only=True)
    except Exception:  # of any kind, as pickling raises them
        return False
    return True


def random_state() -> dict[str, Any]:
    """Return the states of the generators of torch, numpy and Python."""
    return {
        "torch": torch.get_rng_state(),
        "accelerators": random_states(),
        "numpy": np.random.get_state(),
        "python": random.getstate(),
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Put the generators back to what :func:`random_state` returned."""
    torch.set_rng_state(state["torch"].cpu())
    set_random_states(state["accelerators"])
    np.random.set_state(state["numpy"])
    random.setstate(state["python"])


def seed_all(seed: int) -> None:
    """Seed the generators of torch, numpy and Python."""
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
    """Return the versions of what a run depends on."""
    return dict(_found_versions())
