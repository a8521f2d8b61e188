"""The components that ``pml-ext check`` checks, their settings and their expected failures, by name."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterable, Sequence
from typing import Any

from .. import registry
from ..errors import ConfigError, unknown
from ..files import toml_value
from .runner import checks_of

Named = Sequence[tuple[str, Any]]


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
    served = [c for c in registry.components() if what in (c.plugin, c.cls.__module__.partition(".")[0])]
    if found := served or registry.candidates(what):
        names = [c.name for c in found]
        return [(c.name if names.count(c.name) == 1 else f"{c.name} ({c.kind})", c) for c in found]
    imported = _imported(what)
    if isinstance(imported, type):
        return [(imported.__name__, imported)]
    classes = [(name, value) for name, value in vars(imported).items() if _is_component(value, imported.__name__)]
    if not classes:
        raise ConfigError(
            f"{what}: no component in it; wanted classes that extend PML's losses, miners, regularizers, distances, "
            "samplers or reducers"
        )
    return classes


def with_settings(components: Named, texts: Iterable[str]) -> Named:
    """Return components that are built with settings.

    Args:
        components: as of :func:`components_of`.
        texts: ``NAME.setting=value``, values in TOML or else as text.

    Raises:
        ConfigError: another form, or no such component or setting.
    """
    settings: dict[str, dict[str, Any]] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        name, dot, setting = key.strip().rpartition(".")
        if not equals or not dot:
            raise ConfigError(f"--set {text}: wanted NAME.SETTING=VALUE, for example my-loss.margin=0.1")
        for each, component in _named(name, components, f"--set {text}"):
            known = registry.settings_of(_class_of(component))
            if setting not in known:
                raise ConfigError(f"--set {text}: {unknown(f'setting of {name}', setting, known)}")
            settings.setdefault(each, {})[setting] = toml_value(value.strip())
    return [
        (name, functools.partial(_class_of(c), **settings[name]) if name in settings else c) for name, c in components
    ]


def expectations(components: Named, texts: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the checks that components are expected to fail, with reasons, by component.

    Args:
        components: as of :func:`components_of`.
        texts: ``CHECK=reason``, of all components that have the check, or ``NAME.CHECK=reason``.

    Raises:
        ConfigError: another form, no reason, or no such component or check.
    """
    reasons: dict[str, dict[str, str]] = {}
    for text in texts:
        key, _, reason = text.partition("=")
        name, _, check = key.strip().rpartition(".")
        option, known = f"--expect-failure {text}", dict[str, None]()
        if not reason.strip():
            raise ConfigError(f"{option}: wanted CHECK=REASON, such as check_reducers='a value of the whole batch'")
        for each, component in _named(name, components, option) if name else components:
            checks = dict.fromkeys(one.__name__ for one in checks_of(registry.kind_of(_class_of(component))))
            known |= checks
            if check in checks:
                reasons.setdefault(each, {})[check] = reason.strip()
        if check not in known:
            raise ConfigError(f"{option}: {unknown('check', check, known)}")
    return reasons


def _class_of(component: Any) -> Any:
    return component.func if isinstance(component, functools.partial) else getattr(component, "cls", component)


def _named(name: str, components: Named, option: str) -> Named:
    """The components of a name, of whatever kind."""
    found = [(each, component) for each, component in components if name in (each, each.partition(" (")[0])]
    if not found:
        raise ConfigError(f"{option}: {unknown('component that is checked', name, (each for each, _ in components))}")
    return found


def _imported(what: str) -> Any:
    module, _, name = what.rpartition(".")
    try:
        return importlib.import_module(what)
    except SystemExit as error:
        raise ConfigError(
            f"{what}: importing it ends the program (sys.exit({error.code!r})); leave that to a function under 'if "
            '__name__ == "__main__":\''
        ) from error
    except ModuleNotFoundError as error:
        missing: Exception = error
        if module and error.name in (what, module, what.partition(".")[0]):
            try:
                return getattr(importlib.import_module(module), name)
            except (ModuleNotFoundError, AttributeError) as another:
                missing = another
    plugins = ", ".join(record.name for record in registry.plugins())
    raise ConfigError(
        f"{what}: no package, class, entry point or component ({missing}); entry points: {plugins}; or pml"
    )


def _is_component(value: Any, module: str) -> bool:
    try:
        return isinstance(value, type) and value.__module__.startswith(module) and bool(registry.kind_of(value))
    except TypeError:
        return False
