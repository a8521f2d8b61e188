"""What ``pml-ext check NAME`` checks: the components and the named values of a package, a plugin or a name."""

from __future__ import annotations

import itertools
import pkgutil
from collections import Counter
from collections.abc import Iterable
from typing import Any

from pml_ext import pml, registry
from pml_ext.errors import ConfigError
from pml_ext.registry.components import package_of
from pml_ext.registry.discovery import PluginRecord
from pml_ext.registry.hooks import HOOK_OF
from pml_ext.testing import CheckResult, Named

from .named_values import CONTRACTS


def find_components(what: str) -> list[tuple[str, Any]]:
    """Return components by name; ConfigError without any.

    ``what`` is a package, ``package.Class``, an entry point, a component, or ``pml`` for PML's losses. A package
    without registered components gives all its fitting classes.
    """
    if what == "pml":
        return [(c.name, c) for c in registry.components("loss") if c.name.startswith("pml/")]
    served = [
        component for component in registry.components() if what in (component.plugin, package_of(component.path))
    ]
    found = served or registry.candidates(what)
    if found:
        return _with_titles(found)
    try:
        imported = pkgutil.resolve_name(what)
    except (ModuleNotFoundError, AttributeError, ValueError) as error:
        plugins = ", ".join(record.name for record in registry.plugins())
        raise ConfigError(
            f"{what}: no package, class, entry point or component ({error}); entry points: {plugins}; or pml"
        ) from None
    if isinstance(imported, type):
        return [(imported.__name__, imported)]
    bases = tuple(itertools.chain.from_iterable(pml.BASES.values()))
    members = getattr(imported, "__dict__", {})
    classes = [(name, c) for name, c in members.items() if isinstance(c, type) and issubclass(c, bases)]
    defined_here = [(name, c) for name, c in classes if f"{c.__module__}.".startswith(f"{imported.__name__}.")]
    if not defined_here:
        raise ConfigError(
            f"{what}: there is no component in it; it needs a class that extends one of PML's losses, "
            "miners, regularizers, distances, samplers or reducers"
        )
    return defined_here


def _with_titles(components: Iterable[Any]) -> list[tuple[str, Any]]:
    counts = Counter(component.name for component in components)
    titled = []
    for component in components:
        title = f"{component.name} ({component.kind})" if counts[component.name] > 1 else component.name
        titled.append((title, component))
    return titled


def find_named(what: str) -> list[Named]:
    """Return what an entry point or a package provides besides components."""
    found = []
    for record in _records_of(what):
        for kind in CONTRACTS:
            hook = HOOK_OF[kind]
            if hook in record.hooks:  # other hooks, which may import much, are not called
                found += [named for named in _all_of(kind) if named.plugin == record.name]
    return found


def broken_plugins(what: str) -> list[CheckResult]:
    """Return a failed check for each broken plugin with this name or in this package."""
    results = []
    for record in _records_of(what):
        for kind, hook in HOOK_OF.items():
            if hook in record.hooks:
                registry.values(kind)  # calls the hook
        if record.status == "broken":
            results.append(CheckResult(f"{record.name} (plugin)", "check_hooks", "failed", record.error))
    return results


def _records_of(what: str) -> list[PluginRecord]:
    return [record for record in registry.plugins() if what in (record.name, record.package)]


def find_named_by_name(name: str) -> list[Named]:
    """Return everything with a name, from any plugin and of any kind."""
    found = []
    for kind in CONTRACTS:
        found += [named for named in _all_of(kind) if named.name == name]
    return found


def _all_of(kind: str) -> list[Named]:
    values = []
    for name, value in registry.values(kind).items():
        plugin, _ = registry.find(kind, name)
        values.append(Named(kind, name, value, plugin))
    return values
