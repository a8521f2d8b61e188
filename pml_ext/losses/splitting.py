"""Splits a network's inputs into micro-batches."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from ..pairwise.batch import describe

_SHARED = (str, bytes, bool, int, float, np.generic, type(None))  # values that every micro-batch gets whole
_WANTED = "a tensor or array (batch size, ...), a list of one item for each row, or a tuple or dictionary of these"


def number_of_rows(inputs: Any, wanted: int | None = None) -> int:
    """The number of rows of a network's inputs: a tensor, array, list, tuple or dictionary.

    A list has one item per row. Numbers, texts, None and tensors without dimensions belong to every row. ``wanted`` is
    the expected number, if known.

    Raises:
        TypeError: inputs that cannot be split, or a list of tensors that may be several inputs.
        ValueError: parts of different lengths, or not ``wanted`` rows.
    """
    lengths: dict[str, int] = {}
    _collect_lengths("", inputs, lengths)
    if not lengths:
        raise TypeError(f"inputs that are split into micro-batches must be {_WANTED}; got {kind_of(inputs)}")
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise ValueError(f"all parts of the inputs must have one row for each item of the batch; got rows: {found}")
    rows = next(iter(lengths.values()))
    if wanted is not None and rows != wanted:
        hint = ""
        if isinstance(inputs, list):
            hint = "; a list has one item for each row: type tuple(...) for several inputs"
        raise ValueError(f"{wanted} labels need {wanted} rows of inputs; got {rows}{hint}")
    if wanted is None and _may_be_several_inputs(inputs):
        raise TypeError(
            f"a list of {len(inputs)} tensors of {len(inputs[0])} rows each may be {len(inputs)} rows or "
            f"{len(inputs)} inputs; type tuple(...) for several inputs, or pass the labels"
        )
    return rows


def rows_of(inputs: Any, first: int, last: int) -> Any:
    """Some rows of checked inputs, in the same form."""
    if _is_shared(inputs):
        return inputs
    if isinstance(inputs, (Tensor, np.ndarray, list)):
        return inputs[first:last]
    if isinstance(inputs, Mapping):
        return {name: rows_of(value, first, last) for name, value in inputs.items()}
    parts = [rows_of(value, first, last) for value in inputs]
    if hasattr(inputs, "_fields"):  # a named tuple
        return type(inputs)(*parts)
    return tuple(parts)


def kind_of(value: Any) -> str:
    """Describe a value in one line."""
    if isinstance(value, (Tensor, list, tuple)):
        return describe(value)
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    return f"a {type(value).__name__}"


def _is_shared(value: Any) -> bool:
    without_rows = isinstance(value, (Tensor, np.ndarray)) and value.ndim == 0
    return without_rows or isinstance(value, _SHARED)


def _collect_lengths(name: str, value: Any, lengths: dict[str, int]) -> None:
    if _is_shared(value):
        return
    if isinstance(value, (Tensor, np.ndarray, list)):
        lengths[name or "inputs"] = len(value)
    elif isinstance(value, Mapping):
        for key, each in value.items():
            _collect_lengths(f"{name}[{key!r}]", each, lengths)
    elif isinstance(value, tuple):
        for number, each in enumerate(value):
            _collect_lengths(f"{name}[{number}]", each, lengths)
    else:
        of = f" in {name}" if name else ""
        raise TypeError(f"inputs that are split into micro-batches must be {_WANTED}; got {kind_of(value)}{of}")


def _may_be_several_inputs(inputs: Any) -> bool:
    if not isinstance(inputs, list) or not inputs:
        return False
    if not all(isinstance(each, (Tensor, np.ndarray)) and each.ndim for each in inputs):
        return False
    lengths = {len(each) for each in inputs}
    return len(lengths) == 1 and lengths != {len(inputs)}
