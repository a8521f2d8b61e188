"""The components that ``pml-ext check`` checks, by name."""

from __future__ import annotations

import importlib
from typing import Any

from .. import registry
from ..errors import ConfigError


def components_of(what: str) -> list[tuple[str, Any]]:
    """Return components by name.

    Args:
        what: an importable package, whose registered components are meant (all of its classes of a component's kind if
            it registers none); ``package.Class``; an entry point's name; a component's name; ``pml`` for PML's losses.

    Raises:
        ConfigError: nothing by that name, or nothing to check in it.
    """
    if what == "pml":
        return [(c.name, c) for c in registry.components("loss") if c.name.startswith("pml/")]
    served = [c for c in registry.components() if what in (c.plugin, c.package)]
    if found := served or registry.candidates(what):
        names = [c.name for c in found]
        return [(c.name if names.count(c.name) == 1 else f"{c.name} ({c.kind})", c) for c in found]
    imported = _imported(what)
    if isinstance(imported, type):
        return [(imported.__name__, imported)]
    classes = [(name, value) for name, value in vars(imported).items() if _is_component(value, imported.__name__)]
    if not classes:
        wanted = "classes that extend PML's losses, miners, regularizers, distances, samplers or reducers"
        raise ConfigError(f"{what}: no component in it; wanted {wanted}")
    return classes


def _imported(what: str) -> Any:
    module, _, name = what.rpartition(".")
    try:
        return importlib.import_module(what)
    except ModuleNotFoundError as error:
        missing: Exception = error
        absent = error.name
    if module and absent in (what, module, what.partition(".")[0]):
        try:
            return getattr(importlib.import_module(module), name)
        except (ModuleNotFoundError, AttributeError) as error:
            missing = error
    plugins = ", ".join(record.name for record in registry.plugins())
    raise ConfigError(
        f"{what}: no package, class, entry point or component ({missing}); entry points: {plugins}; or pml"
    )


def _is_component(value: Any, module: str) -> bool:
    try:
        return isinstance(value, type) and value.__module__.startswith(module) and bool(registry.kind_of(value))
    except TypeError:
        return False
