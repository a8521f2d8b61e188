"""Look-up of components, recipes, data sets, trunks ... by name, and construction of components from settings.

If several plugins claim a name, the plugin of this distribution wins, so that third-party plugins cannot change our
recipes; without such a plugin it is an error. ``entry-point:name`` is always unambiguous.
"""

from __future__ import annotations

import contextlib
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, NamedTuple

from ..build_context import check_settings, fill_settings
from ..errors import ConfigError, PluginError, PluginWarning, UnknownNameError, shortened, unknown
from ..settings import settings_of
from .components import KINDS, Command, Component, Paper, kebab, package_of
from .discovery import BUILTIN, LOCAL, PluginRecord, Plugins
from .hooks import HOOK_OF, entries_of_component, validated

_plugins = Plugins()


def plugins() -> list[PluginRecord]:
    """Return the record of each entry point; this calls no further hook, and changes none."""
    _plugins.load()
    return _plugins.records


def registered(kind: str) -> dict[str, dict[str, Any]]:
    """Return ``{name: {plugin: value}}`` of everything of a kind.

    ``"class"`` has the classes of ``from pml_ext import X``, without PML's.
    """
    return _plugins.registered(kind)


def record_of(plugin: str) -> PluginRecord | None:
    """Return the record of a plugin that is loaded; None for the core, PML and classes of the running process."""
    _plugins.load()
    return None if plugin == BUILTIN else _plugins.loaded.get(plugin)


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
    return {plugin: value for plugin, value in by_plugin.items() if _plugins.ships(plugin)} or by_plugin


def find(kind: str, name: str) -> tuple[str, Any]:
    """Return the plugin and the value of a name; ``kind`` is one of :data:`KINDS`, ``"class"``, or of a factory.

    Raise UnknownNameError for an unknown name, and PluginError if two plugins claim it.
    """
    found = owners_of(kind, name)
    if not found:
        if HOOK_OF[kind] in _plugins.missing_extras:
            raise _plugins.missing_extras[HOOK_OF[kind]]
        raise UnknownNameError(unknown(kind, name, sorted(_plugins.registered(kind))))
    if len(found) > 1:  # components have names of their own
        qualified = [getattr(value, "qualified_name", f"{plugin}:{name}") for plugin, value in found.items()]
        names = " or ".join(map(repr, qualified))
        raise PluginError(f"{name!r} is claimed by two plugins; use {names}, or leave one out with PML_EXT_BLOCK")
    return next(iter(found.items()))


def components(kind: str | None = None) -> list[Component]:
    """Return all components, or all of one kind of :data:`KINDS`, sorted by name."""
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
    return factory(kind, name)  # type: ignore[return-value]


def candidates(name: str, kind: str | None = None) -> list[Component]:
    """Return the components that a name (see :func:`get`) may refer to: of several kinds or plugins."""
    return [component for each in ((kind,) if kind else KINDS) for component in owners_of(each, name).values()]


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
        text = f"{component.name!r} is a {component.kind} of {next(iter(meant))!r} too, which the bare name means"
        warnings.warn(f"{text}; {component.qualified_name} is yours", PluginWarning, stacklevel=2)
    return cls


def recipes() -> dict[str, Traversable]:
    """Return recipe files by name, sorted."""
    return values("recipe")


def values(kind: str) -> dict[str, Any]:
    """Return everything of a kind by name, ``"recipe"``, ``"data set"``, ``"trunk"``, ``"metric"``, ``"store"`` ...

    A value whose bare name is ambiguous or shadowed by another plugin is listed as ``entry-point:name``.
    """
    named = _by_shortest_name(kind)
    return {name: named[name][1] for name in sorted(named)}


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
            found[name if meant == [plugin] else f"{plugin}:{name}"] = (plugin, value)
    return found


def factory(kind: str, name: str) -> Callable[..., Any]:
    """Return the factory of a ``"data set"``, ``"trunk"``, ``"transform"``, ``"tracker"`` ...; see :func:`find`."""
    return find(kind, name)[1]  # type: ignore[no-any-return]


def service(name: str, what: str) -> Any:
    """Return what a tool does for others, by the hook :func:`pml_ext.registry.hooks.pml_ext_services`.

    PluginError, "``what`` needs the plugin ...", if no plugin offers it. A tool of this distribution has the name of
    its service as the name of its entry point.
    """
    if owners_of("service", name):
        return factory("service", name)()
    reasons = [f"{record.status} ({shortened(record.error, 200)})" for record in plugins() if record.name == name]
    reason = "".join(reasons) or "not installed; type: pip install --force-reinstall pml-ext"
    raise PluginError(f"{what} needs the plugin {name!r}, which is {reason}")


class Origin(NamedTuple):
    """A plugin of another distribution, and the place in its code, in words."""

    plugin: str
    place: str


def origin_of(error: BaseException) -> Origin | None:
    """Return where an error comes from if the code of another distribution's plugin raised or called what did.

    A method that a class of the plugin inherits, from PML or torch, counts as the class's own.
    """
    foreign = {record.package: record.name for record in plugins() if not record.shipped}
    origin = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        file = Path(code.co_filename)
        owner = type(frame.f_locals.get("self"))
        if plugin := foreign.get(package_of(frame.f_globals.get("__name__", ""))):
            place = f"{code.co_qualname} of the plugin {plugin!r}, {file.parent.name}/{file.name}:{line}"
            origin = Origin(plugin, place)
        elif plugin := foreign.get(package_of(str(owner.__module__))):
            origin = Origin(plugin, f"{owner.__qualname__} of the plugin {plugin!r}")
    return origin


def build(name: str, kind: str | None = None, context: Mapping[str, Any] | None = None, /, **settings: Any) -> Any:
    """Return an instance of the component that :func:`get` finds.

    ``context`` is a :class:`BuildContext`, which fills omitted settings; ``settings`` are arguments of the
    class. A table with a ``name`` (``distance={"name": "pml/lp", "p": 2}``) is built first; its kind is the last word
    of the setting. ConfigError for a setting that the class does not have.
    """
    from .. import pml

    component = get(name, kind)
    cls = component.cls
    context = context or {}
    check_settings(component.name, settings_of(cls), settings)
    inner_context = {key: value for key, value in context.items() if key != "collect_stats"}
    for key, value in settings.items():
        inner_kind = key.rpartition("_")[2]
        if isinstance(value, Mapping) and "name" in value and inner_kind in KINDS:
            inner = {key: each for key, each in value.items() if key != "name"}
            settings[key] = build(value["name"], inner_kind, inner_context, **inner)
    try:
        settings = pml.converted_settings(cls, settings, context.get("class_labels"))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return cls(**fill_settings(cls, context, settings)[0], **settings)
