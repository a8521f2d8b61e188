"""Values of settings, held against annotations."""

from __future__ import annotations

import contextlib
import inspect
import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError


def adapter_of(annotation: Any) -> TypeAdapter[Any] | None:
    """What reads values of an annotation; None where there is none to go by, or one that cannot be resolved."""
    if annotation is inspect.Parameter.empty or isinstance(annotation, str):
        return None
    own_config = inspect.isclass(annotation) and issubclass(annotation, BaseModel)
    config = None if own_config else ConfigDict(arbitrary_types_allowed=True)
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(annotation, config=config)
        with contextlib.suppress(ValidationError):
            strictly(adapter, None)  # names inside it are resolved when it is first used
    except Exception:  # pydantic cannot make anything of it
        return None
    return adapter


def strictly(adapter: TypeAdapter[Any], value: Any) -> Any:
    """A value as an annotation wants it, strictly: TOML has the types of JSON, so 16.0 is no integer, and "1" none."""
    return adapter.validate_json(json.dumps(value, default=str), strict=True)


def wanted_by(annotation: Any, error: ValidationError) -> str:
    """What an annotation wants, as the end of a sentence."""
    problems = error.errors()
    if any(problem["type"] == "needs_python_object" for problem in problems):
        return f"wanted {inspect.formatannotation(annotation)}; a component is a table with its name"
    texts = dict.fromkeys(problem["msg"].removeprefix("Input should be ") for problem in problems)
    return "input should be " + " or ".join(texts)


def alike(default: Any, value: Any) -> bool:
    """Whether a value is of the kind of a default: a truth value, a text or a number."""
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(default, bool) and isinstance(value, bool)
    return isinstance(value, str) == isinstance(default, str) and isinstance(value, (int, float, str))


def reason_of(error: BaseException) -> str:
    """What an exception says, with its class where that says more than its text."""
    text = str(error).strip()
    plain = isinstance(error, (ValueError, TypeError, AssertionError)) and text
    return text if plain else f"{type(error).__name__}: {text}".removesuffix(": ")


def refusal(name: str, settings: Mapping[str, Any], error: BaseException) -> str:
    """What a component, a factory or an optimizer says of its settings.

    Args:
        name: of it.
        settings: what it was given.
        error: what it raised.
    """
    return f"{name} refuses {listed(settings)}: {reason_of(error)}"


def listed(settings: Mapping[str, Any]) -> str:
    """Settings and their values, for the texts of errors."""
    return ", ".join(f"{name} = {value!r}" for name, value in settings.items()) or "no settings"


def without_none(value: Any) -> Any:
    """Tables without what is None, which TOML does not have."""
    if isinstance(value, dict):
        return {key: without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [without_none(item) for item in value]
    return value


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Tables merged key by key; a table that names something else replaces the old one, settings and all."""
    result = dict(base)
    for key, value in over.items():
        old = result.get(key)
        if isinstance(old, str) and isinstance(value, dict):
            old = {"name": old}  # a table's name may stand for the table
        if isinstance(old, dict) and isinstance(value, dict) and value.get("name", old.get("name")) == old.get("name"):
            result[key] = merged(old, value)
        else:
            result[key] = value
    return result
