"""Checkpoint values in types that ``torch.load(weights_only=True)`` reads.

Numpy arrays and numbers, ranges and frozen sets are written as dictionaries, and restored unchanged. Keys that are
numpy numbers become Python numbers.
"""

import functools
import io
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from .errors import PluginWarning

_ARRAY = "numpy array"
_RANGE = "range"
_FROZEN_SET = "frozen set"


def to_plain(value: Any) -> Any:
    """A value for a checkpoint; a value of types that torch reads is returned itself."""
    if isinstance(value, (np.ndarray, np.generic)) and not value.dtype.hasobject:
        raw = np.frombuffer(np.ascontiguousarray(value).tobytes(), dtype=np.uint8)
        shape = list(value.shape) if isinstance(value, np.ndarray) else None
        return {_ARRAY: torch.from_numpy(raw.copy()), "dtype": value.dtype.str, "shape": shape}
    if isinstance(value, range):
        return {_RANGE: [value.start, value.stop, value.step]}
    if isinstance(value, frozenset):
        return {_FROZEN_SET: [_key(item) for item in value]}
    if isinstance(value, set):
        items = [_key(item) for item in value]
        return value if _are_same(items, value) else set(items)
    return _rebuilt(value, to_plain)


def from_plain(value: Any) -> Any:
    """The value that :func:`to_plain` was given."""
    if isinstance(value, dict) and _ARRAY in value:
        return _array_from_plain(value)
    if isinstance(value, dict) and len(value) == 1:
        if _RANGE in value:
            return range(*value[_RANGE])
        if _FROZEN_SET in value:
            return frozenset(value[_FROZEN_SET])
    return _rebuilt(value, from_plain)


def _array_from_plain(value: dict[str, Any]) -> Any:
    raw = value[_ARRAY].cpu().numpy().tobytes()
    array = np.frombuffer(raw, dtype=np.dtype(value["dtype"]))
    if value["shape"] is None:
        return array[0]
    return array.reshape(value["shape"]).copy()


def _rebuilt(value: Any, convert: Callable[[Any], Any]) -> Any:
    """A container with converted values; the same object if nothing changes.

    Dictionaries of other classes, such as ``defaultdict``, become ``dict``.
    """
    if isinstance(value, dict):
        keys = [_key(key) for key in value]
        items = [convert(item) for item in value.values()]
        keeps_class = type(value).__module__ in ("builtins", "collections") and not hasattr(value, "default_factory")
        if keeps_class and _are_same(keys, value) and _are_same(items, value.values()):
            return value
        return dict(zip(keys, items, strict=True))
    if type(value) in (list, tuple):
        items = [convert(item) for item in value]
        return value if _are_same(items, value) else type(value)(items)
    return value


def _are_same(new: list[Any], old: Any) -> bool:
    return all(one is other for one, other in zip(new, old, strict=True))


def _key(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def sampler_state(sampler: Any) -> Any:
    """A sampler's ``state_dict()``, or a copy of the attributes that can be saved."""
    if hasattr(sampler, "state_dict"):
        return sampler.state_dict()
    state = {}
    for name, value in vars(sampler).items():
        file = io.BytesIO()
        try:
            torch.save(to_plain(value), file)
            file.seek(0)
            state[name] = from_plain(torch.load(file, weights_only=True))
        except Exception:  # of any kind, as pickling raises them
            _warn_of(f"{type(sampler).__name__}: checkpoints leave out its {name} (a {type(value).__name__})")
    return state


@functools.cache  # once
def _warn_of(text: str) -> None:
    more = "a state_dict() and load_state_dict() of its own would keep it"
    warnings.warn(f"{text}; {more}", PluginWarning, stacklevel=3)


def set_sampler_state(sampler: Any, state: Any) -> None:
    """Restore a state of :func:`sampler_state`."""
    getattr(sampler, "load_state_dict", vars(sampler).update)(state)
