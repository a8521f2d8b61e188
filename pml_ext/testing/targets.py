"""What ``pml-ext check`` is asked to check."""

from __future__ import annotations

import importlib
from typing import Any

from .. import registry
from ..errors import ConfigError


def components_of(what: str) -> list[tuple[str, Any]]:
    """Components by name.

    Args:
        what: an importable package, whose registered components are meant (all of its classes of a component's kind if
            it registers none); ``package.Class``; an entry point's name; a component's name; ``pml`` for PML's losses.

    Raises:
        ConfigError: nothing by that name, or nothing to check in it.
    """
    if what == "pml":
        return [(c.name, c) for c in registry.components("loss") if c.name.startswith("pml/")]
    components = registry.components()
    for matching in ([c for c in components if c.plugin == what or _package(c.cls) == what],
                  registry.meant(what)):  # fmt: skip
        if matching:
            names = [c.name for c in matching]
            return [(c.name if names.count(c.name) == 1 else f"{c.name} ({c.kind})", c) for c in matching]
    imported = _imported(what)
    if isinstance(imported, type):
        return [(imported.__name__, imported)]
    classes = [(name, value) for name, value in vars(imported).items() if _is_component(value, imported.__name__)]
    if not classes:
        raise ConfigError(f"{what}: no component in it; wanted classes that extend PML's losses, miners, regularizers, "
                          "distances, samplers or reducers")  # fmt: skip
    return classes


def _package(cls: type) -> str:
    return cls.__module__.partition(".")[0]


def _imported(what: str) -> Any:
    try:
        return importlib.import_module(what)
    except SystemExit as error:
        raise ConfigError(f"{what}: importing it ends the program (sys.exit({error.code!r})); leave that to a function "
                          "under 'if __name__ == \"__main__\":'") from error  # fmt: skip
    except ModuleNotFoundError as error:
        module, _, name = what.rpartition(".")
        if error.name not in (what, module, what.partition(".")[0]) or not module:
            raise ConfigError(_unknown(what, error)) from None
    try:
        return getattr(importlib.import_module(module), name)
    except (ModuleNotFoundError, AttributeError) as error:
        raise ConfigError(_unknown(what, error)) from None


def _unknown(what: str, error: Exception) -> str:
    plugins = ", ".join(record.name for record in registry.plugins())
    return f"{what}: no package, class, entry point or component ({error}); entry points: {plugins}; or pml"


def _is_component(value: Any, module: str) -> bool:
    if not isinstance(value, type) or not value.__module__.startswith(module):
        return False
    try:
        registry.kind_of(value)
    except TypeError:
        return False
    return True
