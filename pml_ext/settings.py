"""Settings of classes: range checks, and names with defaults."""

import difflib
import functools
import inspect
import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from numbers import Integral, Real
from typing import Any

# Settings that the base classes of PML's losses, regularizers and miners take; others are looked up.
_BASE_SETTINGS_OF_PML = {"distance", "reducer", "collect_stats", "embedding_regularizer", "embedding_reg_weight"}


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
    """TypeError or ValueError unless a setting is a finite number in a range, or ``or_else``."""
    is_number = isinstance(value, Real) and not isinstance(value, (bool, Fraction))  # torch takes no fractions
    if is_number and math.isfinite(value) and least <= value <= most and above < value < below:
        return
    limits = (("at least", least), ("at most", most), ("above", above), ("below", below))
    bounds = [f"{word} {limit}" for word, limit in limits if math.isfinite(limit)]
    wanted = f"a finite number {' and '.join(bounds)}".strip() + (f" or {or_else}" if or_else else "")
    text = f"{name} of {type(owner).__name__} must be {wanted}, not {value!r}"
    if is_number or (isinstance(value, str) and or_else):
        raise ValueError(text)
    raise TypeError(text)


def check_count(owner: object, name: str, value: Any, *, least: int = 1) -> None:
    """ValueError unless a setting of an object or named class is an integer >= ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        who = owner if isinstance(owner, str) else type(owner).__name__
        raise ValueError(f"{name} of {who} must be a whole number of at least {least}, not {value!r}")


def check_tile_size(owner: object, value: Any) -> None:
    """ValueError unless ``value`` is None or a positive number of anchors."""
    if value is not None:
        check_count(owner, "tile_size", value)


def check_flag(owner: object, name: str, value: Any) -> None:
    """TypeError unless a setting is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} of {type(owner).__name__} must be True or False, not {value!r}")


def check_choice(owner: object, name: str, value: Any, choices: Iterable[str]) -> None:
    """ValueError unless a setting is one of ``choices``."""
    if value not in tuple(choices):
        raise ValueError(f"{name} of {type(owner).__name__} must be {' or '.join(map(repr, choices))}, not {value!r}")


def check_keywords(owner: object, given: Iterable[str]) -> None:
    """TypeError, with the nearest settings, for a keyword that the classes do not accept."""
    for name in given:
        if name in _BASE_SETTINGS_OF_PML:
            continue
        accepted = list(settings_of(type(owner)))
        if name not in accepted:
            near = difflib.get_close_matches(name, accepted, n=3, cutoff=0.4)
            listed = f"nearest: {', '.join(near)}" if near else f"settings: {', '.join(accepted)}"
            raise TypeError(f"{type(owner).__name__} has no setting {name!r}; {listed}")


def settings_repr(module: object) -> str:
    """Settings for ``repr``: attributes named like the constructor's arguments."""
    names = dict.fromkeys(inspect.signature(type(module)).parameters)
    names["tile_size"] = None  # a setting of PairLoss, in the keyword arguments of its subclasses
    settings = []
    for name in names:
        if not hasattr(module, name):
            continue
        value = getattr(module, name)
        is_module = hasattr(value, "parameters")
        is_default = name == "tile_size" and value is None
        if not is_module and not is_default:
            settings.append(f"{name}={value!r}")
    return ", ".join(settings)


@functools.cache
def number_settings(cls: type) -> tuple[str, ...]:
    """Names of the settings annotated ``float`` or ``int``."""
    parameters = inspect.signature(cls).parameters.values()
    return tuple(p.name for p in parameters if p.annotation in ("float", "int", float, int))


def settings_of(target: Callable[..., object]) -> dict[str, inspect.Parameter]:
    """Keyword arguments of a class or function, with string annotations resolved.

    A class that passes ``**kwargs`` to its base classes accepts their arguments too, nearest class first.
    """
    functions = [target]
    if isinstance(target, type):
        bases = [base for base in target.__mro__ if "__init__" in vars(base)]
        functions = [vars(base)["__init__"] for base in bases if not base.__module__.startswith("torch.")]
    settings: dict[str, inspect.Parameter] = {}
    for function in functions:
        inner = function.func if isinstance(function, functools.partial) else function
        names = getattr(inspect.unwrap(inner), "__globals__", {})
        parameters = list(inspect.signature(function).parameters.values())
        if isinstance(target, type):
            parameters = parameters[1:]  # without self
        settings_of_function = {}
        passes_others_on = False
        for p in parameters:
            if p.kind is p.VAR_KEYWORD:
                passes_others_on = True
            if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
                settings_of_function[p.name] = p.replace(annotation=_resolved(p.annotation, names))
        settings = settings_of_function | settings
        if not passes_others_on:
            break
    settings.pop("mat_based_loss", None)  # set by PML's losses themselves
    return settings


def _resolved(annotation: object, names: dict[str, object]) -> object:
    try:
        if isinstance(annotation, str):
            return eval(annotation, names)
        return annotation
    except Exception:  # invalid expression, or a name imported only for type checking
        return annotation
