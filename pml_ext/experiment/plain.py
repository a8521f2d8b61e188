"""State as tensors, numbers, texts and tables alone, so that reading it runs no code of the file's author.

Samplers and random generators hold numpy's arrays and generators, tuples and sets; :func:`to_plain` writes each as a
table with a mark, and :func:`from_plain` makes it again. Nothing is ever looked up by a name from the file.
"""

from __future__ import annotations

import collections
import random
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import PluginWarning

_MARK = "__kind__"
_GENERATORS = {
    "PCG64": np.random.PCG64,
    "PCG64DXSM": np.random.PCG64DXSM,
    "MT19937": np.random.MT19937,
    "Philox": np.random.Philox,
    "SFC64": np.random.SFC64,
}
_LEAVES = (bool, int, float, str, type(None))


class UnplainError(TypeError):
    """A value that is no tensor, number, text or table of these."""


def to_plain(value: Any) -> Any:
    """A value in which everything is a tensor, a number, a text, a list or a table.

    A numpy array, or a generator, that stands in two places stands in both again when it is made.

    Args:
        value: may also have tuples, sets, ranges, counters, numpy's arrays, numbers and generators, and torch's and
            Python's generators.

    Raises:
        UnplainError: something else; the text has its place.
    """
    return _Writer().write(value, "")


def from_plain(value: Any) -> Any:
    """What :func:`to_plain` was given.

    Args:
        value: what it gave.

    Raises:
        UnplainError: a mark that it never writes.
    """
    return _Reader().read(value)


def attributes(thing: object) -> dict[str, Any]:
    """The attributes of an object that :func:`to_plain` can write; of others, a warning names the first.

    Args:
        thing: of any class.
    """
    kept = {}
    for name, value in vars(thing).items():
        try:
            to_plain(value)
            kept[name] = value
        except UnplainError as error:
            warnings.warn(
                f"{type(thing).__name__}: checkpoints leave out its {name}, {error}; a state_dict() and "
                "load_state_dict() of its own would keep it",
                PluginWarning,
                stacklevel=2,
            )
    return kept


class _Writer:
    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, Any]] = {}  # the number of each shared thing, which is kept alive

    def write(self, value: Any, place: str) -> Any:
        if type(value) in _LEAVES or isinstance(value, Tensor):
            return value.detach() if isinstance(value, Tensor) else value
        if type(value) is list:
            return [self.write(item, f"{place}[{index}]") for index, item in enumerate(value)]
        if isinstance(value, dict) and not isinstance(value, collections.Counter):
            return self._table(value, place)
        if isinstance(value, (np.ndarray, np.random.Generator, np.random.RandomState, random.Random, torch.Generator)):
            if id(value) in self._seen:
                return {_MARK: "same", "number": self._seen[id(value)][0]}
            self._seen[id(value)] = (len(self._seen), value)
        for kind, (fits, parts, _) in _KINDS.items():
            if fits(value):
                return {_MARK: kind} | {key: self.write(part, place) for key, part in parts(value).items()}
        raise UnplainError(f"{place or 'value'} (a {type(value).__name__})")

    def _table(self, value: dict[Any, Any], place: str) -> Any:
        written = {key: self.write(item, f"{place}.{key}".lstrip(".")) for key, item in value.items()}
        if _MARK in value or not all(type(key) in (str, int) for key in value):
            pairs = [[self.write(key, place), item] for key, item in zip(value, written.values(), strict=True)]
            return {_MARK: "table", "pairs": pairs}
        if isinstance(value, collections.OrderedDict):  # a module's state, whose _metadata has versions
            table = collections.OrderedDict(written)
            if hasattr(value, "_metadata"):
                table._metadata = value._metadata  # type: ignore[attr-defined]
            return table
        return written


class _Reader:
    def __init__(self) -> None:
        self._made: list[Any] = []

    def read(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.read(item) for item in value]
        if not isinstance(value, dict):
            return value
        kind = value.get(_MARK)
        if kind is None:
            if isinstance(value, collections.OrderedDict):
                for key in value:
                    value[key] = self.read(value[key])
                return value
            return {key: self.read(item) for key, item in value.items()}
        if kind == "same":
            return self._made[value["number"]]
        if kind == "table":
            return {self.read(key): self.read(item) for key, item in value["pairs"]}
        if kind not in _KINDS:
            raise UnplainError(f"an unknown kind of value, {kind!r}")
        shared = len(self._made)
        if kind in _SHARED:
            self._made.append(None)
        made = _KINDS[kind][2]({key: self.read(part) for key, part in value.items() if key != _MARK})
        if kind in _SHARED:
            self._made[shared] = made
        return made


def _array(parts: Mapping[str, Any]) -> Any:
    if parts["dtype"].startswith("|O") or "O" in np.dtype(parts["dtype"]).str:
        raise UnplainError("an array of objects")
    data = np.frombuffer(parts["data"].numpy().tobytes(), dtype=np.dtype(parts["dtype"]))
    return data.reshape(parts["shape"]).copy()


def _bytes_of(array: Any) -> Tensor:
    return torch.frombuffer(bytearray(array.tobytes()), dtype=torch.uint8) if array.size else torch.zeros(0).byte()


def _bit_generator(parts: Mapping[str, Any]) -> Any:
    state = parts["state"]
    made = _GENERATORS[state["bit_generator"]]()
    made.state = state
    return made


def _random_state(parts: Mapping[str, Any]) -> np.random.RandomState:
    made = np.random.RandomState()
    made.set_state(parts["state"])
    return made


def _python_random(parts: Mapping[str, Any]) -> random.Random:
    made = random.Random()
    made.setstate(parts["state"])
    return made


def _torch_generator(parts: Mapping[str, Any]) -> torch.Generator:
    made = torch.Generator(parts["device"])
    made.set_state(parts["state"].cpu())
    return made


# The kinds of values with a mark: what fits, its parts, and what makes it of them.
_Kind = tuple[Callable[[Any], bool], Callable[[Any], dict[str, Any]], Callable[[Mapping[str, Any]], Any]]
_KINDS: dict[str, _Kind] = {
    "array": (
        lambda value: type(value) is np.ndarray and not value.dtype.hasobject,
        lambda value: {"dtype": value.dtype.str, "shape": list(value.shape), "data": _bytes_of(value)},
        _array,
    ),
    "generator": (
        lambda value: (
            isinstance(value, np.random.Generator)
            and type(value.bit_generator) is _GENERATORS.get(type(value.bit_generator).__name__)
        ),
        lambda value: {"state": value.bit_generator.state},
        lambda parts: np.random.Generator(_bit_generator(parts)),
    ),
    "random state": (
        lambda value: type(value) is np.random.RandomState,
        lambda value: {"state": value.get_state()},
        _random_state,
    ),
    "python random": (
        lambda value: type(value) is random.Random,
        lambda value: {"state": value.getstate()},
        _python_random,
    ),
    "torch generator": (
        lambda value: isinstance(value, torch.Generator),
        lambda value: {"device": str(value.device), "state": value.get_state()},
        _torch_generator,
    ),
    "bytes": (
        lambda value: type(value) is bytes,  # which torch 2.4 does not read
        lambda value: {"of": np.frombuffer(value, np.uint8)},
        lambda parts: parts["of"].tobytes(),
    ),
    "number": (
        lambda value: isinstance(value, np.generic) and not value.dtype.hasobject,
        lambda value: {"of": np.asarray(value)},
        lambda parts: parts["of"][()],
    ),
    "tuple": (
        lambda value: type(value) is tuple,
        lambda value: {"items": list(value)},
        lambda parts: tuple(parts["items"]),
    ),
    "set": (
        lambda value: type(value) in (set, frozenset),
        lambda value: {"items": list(value)},
        lambda parts: set(parts["items"]),
    ),
    "range": (
        lambda value: type(value) is range,
        lambda value: {"of": [value.start, value.stop, value.step]},
        lambda parts: range(*parts["of"]),
    ),
    "deque": (
        lambda value: type(value) is collections.deque,
        lambda value: {"of": [list(value), value.maxlen]},
        lambda parts: collections.deque(*parts["of"]),
    ),
    "counter": (
        lambda value: type(value) is collections.Counter,
        lambda value: {"of": dict(value)},
        lambda parts: collections.Counter(parts["of"]),
    ),
    "size": (
        lambda value: type(value) is torch.Size,
        lambda value: {"of": list(value)},
        lambda parts: torch.Size(parts["of"]),
    ),
}
_SHARED = frozenset({"array", "generator", "random state", "python random", "torch generator"})
