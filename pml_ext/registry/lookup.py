"""Look-up of components, recipes, data sets, trunks ... by name.

If several plugins claim a name, the plugin of this distribution wins, so that third-party plugins cannot change our
recipes; without such a plugin it is an error. ``entry-point:name`` is always unambiguous.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from importlib.resources.abc import Traversable
from typing import Any

from ..errors import PluginError, PluginWarning, UnknownNameError, unknown
from .answers import HOOK_OF, entries_of_component, validated
from .components import KINDS, Command, Component, Paper, kebab
from .discovery import Plugins
from .entry_points import LOCAL, PluginRecord

_plugins = Plugins()


def plugins() -> list[PluginRecord]:
    """Return the record of each entry point; this calls no further hook, and changes none."""
    _plugins.load()
    return list(_plugins.records)


def plugins_naming(kind: str) -> dict[str, dict[str, Any]]:
    """Return ``{name: {plugin: value}}`` of everything of a kind, ``"class"`` too."""
    return {name: dict(by_plugin) for name, by_plugin in _plugins.registered(kind).items()}


def record_of(plugin: str) -> PluginRecord | None:
    """Return the record of a plugin that is loaded; None for the core, PML and classes of the running process."""
    _plugins.load()
    return _plugins.loaded.get(plugin)


@contextlib.contextmanager
def isolated() -> Iterator[None]:
    """Use a fresh registry inside the block, with entry points read again; restore the old one afterwards."""
    global _plugins
    before = _plugins
    _plugins = Plugins()
    try:
        yield
    finally:
        _plugins = before


def owners_of(kind: str, name: str) -> dict[str, Any]:
    """Return the candidates for a name, or ``entry-point:name``, by plugin: several if the name is ambiguous."""
    registered = _plugins.registered(kind)
    prefix, _, bare_name = name.rpartition(":")
    if prefix in registered.get(bare_name, {}):
        return {prefix: registered[bare_name][prefix]}
    by_plugin = registered.get(name, {})
    shipped = {}
    for plugin, value in by_plugin.items():
        if _plugins.ships(plugin):
            shipped[plugin] = value
    return shipped or by_plugin


def find(kind: str, name: str) -> tuple[str, Any]:
    """Return the plugin and the value of a name; ``kind`` is one of :data:`KINDS`, ``"class"``, or of a factory.

    Raise UnknownNameError for an unknown name, and PluginError if two plugins claim it.
    """
    found = owners_of(kind, name)
    if not found:
        error = _plugins.missing_extras.get(HOOK_OF[kind])
        if error is not None:
            raise error
        raise UnknownNameError(unknown(kind, name, sorted(_plugins.registered(kind))))
    if len(found) > 1:
        qualified = []
        for plugin, value in found.items():  # components have names of their own
            qualified.append(getattr(value, "qualified_name", f"{plugin}:{name}"))
        names = " or ".join(map(repr, qualified))
        raise PluginError(f"{name!r} is claimed by two plugins; use {names}, or leave one out with PML_EXT_BLOCK")
    return next(iter(found.items()))


def components(kind: str | None = None) -> list[Component]:
    """Return all components, or all of one kind of :data:`KINDS`, sorted by name."""
    if kind is not None and kind not in KINDS:
        raise UnknownNameError(f"no kind {kind!r}; kinds are {', '.join(KINDS)}")
    found: list[Component] = []
    for chosen in (kind,) if kind else KINDS:
        for by_plugin in _plugins.registered(chosen).values():
            found += by_plugin.values()
    return sorted(found, key=lambda c: (c.name.startswith("pml/"), c.name, c.plugin))


def get(name: str, kind: str | None = None) -> Component:
    """Return the component with a name: ``"my-loss"``, ``"pml/multi-similarity"``, or ``"entry-point:name"``.

    ``kind`` is one of :data:`KINDS`, required if two kinds share the name; errors as in :func:`find`.
    """
    if kind is None:
        kinds = [each for each in KINDS if owners_of(each, name)]
        if not kinds:
            raise UnknownNameError(unknown("component", name, (c.name for c in components())))
        if len(kinds) > 1:
            named = " and ".join(f"a {kind}" for kind in kinds)
            raise UnknownNameError(f"{name!r} is {named}; say which, for example kind={kinds[0]!r}")
        kind = kinds[0]
    _, component = find(kind, name)
    return component  # type: ignore[no-any-return]


def candidates(name: str, kind: str | None = None) -> list[Component]:
    """Return the components that a name (see :func:`get`) may refer to: of several kinds or plugins."""
    found: list[Component] = []
    for each in (kind,) if kind else KINDS:
        found += owners_of(each, name).values()
    return found


def short_name(component: Component) -> str:
    """Return the shortest unambiguous name of a component: its own, or with its plugin's as prefix."""
    alone = candidates(component.name, component.kind) == [component]
    return component.name if alone else component.qualified_name


def register(cls: type | None = None, *, name: str | None = None, paper: Paper | None = None) -> Any:
    """Register a class in the running process, as ``@register`` or ``@register(name="mine", paper=Paper(...))``.

    The name is kebab-case, by default that of the class (``MyOwnLoss`` becomes ``my-own``); registering the same name
    again replaces the class.
    """
    if cls is None:
        return lambda target: register(target, name=name, paper=paper)
    component = validated(Component(cls, name or kebab(cls.__name__), paper), LOCAL)
    _plugins.register(LOCAL, entries_of_component(component))
    meant = owners_of(component.kind, component.name)
    if LOCAL not in meant:
        other = next(iter(meant))
        text = f"{component.name!r} is a {component.kind} of {other!r} too, which the bare name means"
        warnings.warn(f"{text}; {component.qualified_name} is yours", PluginWarning, stacklevel=2)
    return cls


def class_names() -> dict[str, dict[str, Component]]:
    """Return the classes of ``from pml_ext import X``, ``{class name: {plugin: component}}``, PML's left out."""
    return _plugins.registered("class")


def recipes() -> dict[str, Traversable]:
    """Return recipe files by name, sorted."""
    return values("recipe")


def values(kind: str) -> dict[str, Any]:
    """Return everything of a kind by name, ``"recipe"``, ``"data set"``, ``"trunk"``, ``"metric"``, ``"store"`` ...

    A value whose bare name is ambiguous or shadowed by another plugin is listed as ``entry-point:name``.
    """
    found = {}
    for name, (_, value) in sorted(_by_shortest_name(kind).items()):
        found[name] = value
    return found


def commands() -> dict[str, tuple[str, Command]]:
    """Return the plugin and the command of each name of ``pml-ext``, those of the layer first.

    A command whose bare name is ambiguous or shadowed by another plugin is listed as ``entry-point:name``.
    """
    return _by_shortest_name("command")


def _by_shortest_name(kind: str) -> dict[str, tuple[str, Any]]:
    """Return the plugin and the value of everything of a kind, by its shortest unambiguous name."""
    found = {}
    for name, by_plugin in _plugins.registered(kind).items():
        meant = list(owners_of(kind, name))
        for plugin, value in by_plugin.items():
            shown = name if meant == [plugin] else f"{plugin}:{name}"
            found[shown] = (plugin, value)
    return found


def factory(kind: str, name: str) -> Callable[..., Any]:
    """Return the factory of a ``"data set"``, ``"trunk"``, ``"transform"``, ``"tracker"`` ...; see :func:`find`."""
    _, found = find(kind, name)
    return found  # type: ignore[no-any-return]


def ships(plugin: str) -> bool:
    """Return whether a plugin belongs to this distribution, as the core and PML's own components do."""
    _plugins.load()
    return _plugins.ships(plugin)
