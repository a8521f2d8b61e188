"""The variants of a recipe: all combinations of what its ``[sweep]`` lets one choose."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from ...errors import ConfigError

_MOST_VARIANTS = 10_000
Setting = tuple[str, Any]  # a key with its value; without a key, tables
Choice = tuple[str, Setting]  # what it is called in the names of variants


def choices(sweep: Any, source: str) -> list[list[Choice]]:
    """What can be chosen: one list per entry of ``[sweep]``.

    An entry is a key with a list of values, ``"loss.alpha" = [36, 45]``, or a word with tables by name,
    ``[sweep.rows.sqrt]``, each of which is merged over the recipe.

    Args:
        sweep: the table.
        source: its file, for error texts.

    Raises:
        ConfigError: something else.
    """
    if not isinstance(sweep, dict):
        raise ConfigError(f"{source}: {_wanted(sweep)}")
    result: list[list[Choice]] = []
    for key, values in sweep.items():
        if isinstance(values, list) and values:
            result.append([(_label(value), (key, value)) for value in values])
        elif isinstance(values, dict) and values and all(isinstance(value, dict) for value in values.values()):
            result.append([(name, ("", tables)) for name, tables in values.items()])
        else:
            raise ConfigError(f"{source}: {_wanted(values, key)}")
    return result


def combined(known: Sequence[Sequence[Choice]], source: str) -> dict[str, list[Setting]]:
    """Every combination, by the names of what was chosen, ``"sqrt,36"``.

    Args:
        known: see :func:`choices`.
        source: their file, for error texts.

    Raises:
        ConfigError: too many of them.
    """
    if math.prod(map(len, known)) > _MOST_VARIANTS:
        raise ConfigError(f"{source}: [sweep] has more than {_MOST_VARIANTS} variants")
    return {
        ",".join(label for label, _ in picked): [setting for _, setting in picked]
        for picked in itertools.product(*known)
    }


def _wanted(value: Any, key: str = "") -> str:
    where = f"[sweep] {key}" if key else "[sweep]"
    return (
        f'{where}: found {value!r}; wanted a list of values by key, for example "loss.alpha" = [36, 45], or tables '
        "by name, for example [sweep.rows.sqrt]"
    )


def _label(value: Any) -> str:
    return str(value.get("name", value)) if isinstance(value, dict) else str(value)
