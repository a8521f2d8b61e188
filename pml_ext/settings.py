"""Range checks of settings."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any


def check_number(
    owner: object,
    name: str,
    value: Any,
    *,
    least: float = -math.inf,
    most: float = math.inf,
    above: float = -math.inf,
    below: float = math.inf,
    or_else: str = "",
) -> None:
    """Refuses what is not a finite number in a range.

    Args:
        owner: the object that has the setting, for the text.
        name: the setting.
        value: what was given.
        least: the least value allowed.
        most: the greatest value allowed.
        above: the value must be greater than this.
        below: the value must be less than this.
        or_else: what else is allowed, for the text.

    Raises:
        TypeError: not a number.
        ValueError: outside the range, or not finite.
    """
    limits = (("at least", least), ("at most", most), ("above", above), ("below", below))
    bounds = [f"{word} {limit}" for word, limit in limits if math.isfinite(limit)]
    wanted = " ".join(["a finite number", " and ".join(bounds)]).strip() + (f" or {or_else}" if or_else else "")
    text = f"{name} of {type(owner).__name__} must be {wanted}, not {value!r}"
    if isinstance(value, str) and or_else:
        raise ValueError(text)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(text)
    if not (math.isfinite(value) and least <= value <= most and above < value < below):
        raise ValueError(text)


def check_choice(owner: object, name: str, value: Any, choices: Iterable[str]) -> None:
    """Refuses what is not one of some words.

    Args:
        owner: the object that has the setting, for the text.
        name: the setting.
        value: what was given.
        choices: the words allowed.

    Raises:
        ValueError: another value.
    """
    if value not in tuple(choices):
        raise ValueError(f"{name} of {type(owner).__name__} must be {' or '.join(map(repr, choices))}, not {value!r}")
