"""Conversion of settings by annotations."""

import contextlib
import functools
import inspect
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from pml_ext import registry
from pml_ext.errors import ConfigError, DataError, PmlExtError, needs_extra, shortened
from pml_ext.registry.components import KINDS

from .schema import NamedTable, unknown_key

with needs_extra("train", "a recipe"):
    from pydantic import ConfigDict, TypeAdapter, ValidationError

# Settings that a run fills in; they are not options of a recipe.
FILLED_FOR_DATA = ("root", "label_sets")
FILLED_FOR_TRUNK = ("in_channels", "image_size")
FILLED_FOR_TRACKER = ("folder", "recipe", "iteration", "epoch")
FILLED_FOR_TRANSFORMS = ("image_size", "channels", "crop", "normalize", "pipeline")


def options_of(
    key: str, name: str, factory: Callable[..., Any], filled: Iterable[str], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a table's options, converted by the factory's annotations."""
    taken = set(filled)
    if isinstance(factory, functools.partial):
        taken.update(factory.keywords)
    settings = registry.settings_of(factory)
    accepted = {setting: parameter for setting, parameter in settings.items() if setting not in taken}
    return checked_settings(key, name, accepted, given)


@contextlib.contextmanager
def located(key: str, table: NamedTable | None = None) -> Iterator[None]:
    """Raise errors as ConfigError with the key; foreign errors also name the settings."""
    try:
        yield
    except (DataError, OSError):
        raise
    except (Exception, SystemExit) as error:  # constructors may raise anything
        text = str(error)
        if table is not None and not isinstance(error, PmlExtError):
            text = _refusal(table, error)
        raise ConfigError(shortened(text), key=key) from None


def _refusal(table: NamedTable, error: BaseException) -> str:
    settings = [f"{name} = {value!r}" for name, value in table.settings.items()]
    refuses = f"refuses {', '.join(settings)}" if settings else "fails"
    says_why = isinstance(error, (ValueError, TypeError, AssertionError)) and str(error).strip()
    reason = str(error).strip() if says_why else repr(error)
    origin = registry.origin_of(error)
    if origin is not None:
        reason += f", in {origin.place}"
    return f"{table.name} {refuses}: {reason}"


def checked_settings(
    key: str,
    owner: str,
    accepted: Mapping[str, inspect.Parameter],
    given: Mapping[str, Any],
    filled: Collection[str] = (),
) -> dict[str, Any]:
    """Return converted settings; ConfigError for unknown or missing ones.

    ``accepted`` are the settings of ``owner``; ``filled`` ones come from elsewhere.
    """
    for name in given:
        if name not in accepted:
            raise ConfigError(f"{unknown_key(f'setting of {owner}', name, accepted)}", key=f"{key}.{name}")
    for name, parameter in accepted.items():
        if parameter.default is parameter.empty and name not in given and name not in filled:
            raise ConfigError(f"missing, and {owner} has no default for it", key=f"{key}.{name}")
    return {name: _converted(f"{key}.{name}", accepted[name], value) for name, value in given.items()}


def _validated(adapter: TypeAdapter[Any], value: Any) -> Any:
    """Convert by pydantic's strict JSON rules, or its Python rules for types that JSON lacks."""
    try:
        return adapter.validate_json(json.dumps(value, default=str), strict=True)
    except ValidationError as error:
        kinds = {problem["type"] for problem in error.errors()}
        if "needs_python_object" not in kinds:
            raise  # else the type is one such as numbers.Number
        return adapter.validate_python(value, strict=True)


_TYPES_OF_DEFAULTS = {bool: bool, str: str, int: float, float: float}  # a default of 1 may mean any number


def _converted(key: str, parameter: inspect.Parameter, value: Any) -> Any:
    """Convert strictly by annotation: 16.0 is not an integer.

    Without a usable annotation, the default's type only checks the value.
    """
    kind = parameter.name.rsplit("_", 1)[-1]
    default = parameter.default
    if kind in KINDS and isinstance(value, Mapping) and isinstance(value.get("name"), str):
        return value  # a component; building it checks it
    annotation = parameter.annotation
    has_type = annotation is not parameter.empty and not isinstance(annotation, str)
    if not has_type:
        if kind in KINDS and default is None:
            raise ConfigError(f"found {value!r}; wanted a table with the name of a {kind}", key=key)
        annotation = _TYPES_OF_DEFAULTS.get(type(default), Any)
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True))
        result = _validated(adapter, value)
    except ValidationError as error:
        wanted = [problem["msg"].removeprefix("Input should be ") for problem in error.errors()]
        raise ConfigError(f"found {value!r}; input should be {' or '.join(dict.fromkeys(wanted))}", key=key) from None
    except Exception:  # pydantic cannot resolve a plugin's annotation
        return value
    return result if has_type else value
