"""What ``pml-ext check`` is asked to check."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterable, Sequence
from typing import Any

from .. import registry
from ..errors import ConfigError, unknown
from ..files import toml_value
from .runner import checks_of


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
    for matching in ([c for c in components if c.plugin == what or _package(c.cls) == what], registry.candidates(what)):
        if matching:
            names = [c.name for c in matching]
            return [(c.name if names.count(c.name) == 1 else f"{c.name} ({c.kind})", c) for c in matching]
    imported = _imported(what)
    if isinstance(imported, type):
        return [(imported.__name__, imported)]
    classes = [(name, value) for name, value in vars(imported).items() if _is_component(value, imported.__name__)]
    if not classes:
        raise ConfigError(
            f"{what}: no component in it; wanted classes that extend PML's losses, miners, regularizers, "
            "distances, samplers or reducers"
        )
    return classes


def with_settings(components: Sequence[tuple[str, Any]], texts: Iterable[str]) -> list[tuple[str, Any]]:
    """Components that are built with settings.

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
            cls = getattr(component, "cls", component)
            if setting not in registry.settings_of(cls):
                raise ConfigError(f"--set {text}: {unknown(f'setting of {name}', setting, registry.settings_of(cls))}")
            settings.setdefault(each, {})[setting] = toml_value(value.strip())
    return [
        (name, functools.partial(getattr(component, "cls", component), **settings[name]))
        if name in settings
        else (name, component)
        for name, component in components
    ]


def expectations(components: Sequence[tuple[str, Any]], texts: Iterable[str]) -> dict[str, dict[str, str]]:
    """The checks that components are expected to fail, with reasons, by component.

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
        if not reason.strip():
            raise ConfigError(
                f"--expect-failure {text}: wanted CHECK=REASON, such as check_reducers='a value of the whole batch'"
            )
        known: list[str] = []
        for each, component in _named(name, components, f"--expect-failure {text}") if name else components:
            names = [one.__name__ for one in checks_of(_kind(component))]
            known += names
            if check in names:
                reasons.setdefault(each, {})[check] = reason.strip()
        if check not in known:
            raise ConfigError(f"--expect-failure {text}: {unknown('check', check, dict.fromkeys(known))}")
    return reasons


def _kind(component: Any) -> str:
    cls: Any = component.func if isinstance(component, functools.partial) else getattr(component, "cls", component)
    return registry.kind_of(cls)


def _named(name: str, components: Sequence[tuple[str, Any]], option: str) -> list[tuple[str, Any]]:
    """The components of a name, of whatever kind."""
    matching = [(each, component) for each, component in components if name in (each, each.partition(" (")[0])]
    if not matching:
        raise ConfigError(f"{option}: {unknown('component that is checked', name, (each for each, _ in components))}")
    return matching


def _package(cls: type) -> str:
    return cls.__module__.partition(".")[0]


def _imported(what: str) -> Any:
    try:
        return importlib.import_module(what)
    except SystemExit as error:
        raise ConfigError(
            f"{what}: importing it ends the program (sys.exit({error.code!r})); leave that to a function "
            "under 'if __name__ == \"__main__\":'"
        ) from error
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
