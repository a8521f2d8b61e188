"""Look-up by name, and construction of components from settings.

If several plugins claim a name, this distribution's plugin wins, so that others cannot change its recipes. Without one
it is an error. ``entry-point:name`` is always unambiguous.
"""

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
    """The record of each entry point, without calling hooks."""
    _plugins.load()
    return _plugins.records


def registered(kind: str) -> dict[str, dict[str, Any]]:
    """``{name: {plugin: value}}`` of a kind; ``"class"`` has names for ``import``."""
    return _plugins.registered(kind)


def record_of(plugin: str) -> PluginRecord | None:
    """The record of a loaded plugin; None for the layer, PML and this process."""
    _plugins.load()
    return None if plugin == BUILTIN else _plugins.loaded.get(plugin)


@contextlib.contextmanager
def isolated() -> Iterator[None]:
    """Use a fresh registry inside the block, with entry points read again."""
    global _plugins
    before = _plugins
    _plugins = Plugins()
    try:
        yield
    finally:
        _plugins = before


def owners_of(kind: str, name: str) -> dict[str, Any]:
    """The possible meanings of a name, by plugin; several if it is ambiguous."""
    registered = _plugins.registered(kind)
    prefix, _, bare_name = name.rpartition(":")
    if prefix in registered.get(bare_name, {}):
        return {prefix: registered[bare_name][prefix]}
    by_plugin = registered.get(name, {})
    return {plugin: value for plugin, value in by_plugin.items() if _plugins.ships(plugin)} or by_plugin


def find(kind: str, name: str) -> tuple[str, Any]:
    """The plugin and the value of a name.

    UnknownNameError for an unknown name, PluginError if two plugins claim it.
    """
    found = owners_of(kind, name)
    if not found:
        if HOOK_OF[kind] in _plugins.missing_extras:
            raise _plugins.missing_extras[HOOK_OF[kind]]
        raise UnknownNameError(unknown(kind, name, sorted(_plugins.registered(kind))))
    if len(found) > 1:
        names = " or ".join(
            repr(getattr(value, "qualified_name", f"{plugin}:{name}")) for plugin, value in found.items()
        )
        raise PluginError(f"{name!r} is claimed by two plugins; use {names}, or leave one out with PML_EXT_BLOCK")
    return next(iter(found.items()))


def components(kind: str | None = None) -> list[Component]:
    """All components, or the components of one kind, sorted by name; PML's come last."""
    found: list[Component] = []
    for chosen in (kind,) if kind else KINDS:
        for by_plugin in _plugins.registered(chosen).values():
            found += by_plugin.values()
    return sorted(found, key=lambda c: (c.name.startswith("pml/"), c.name, c.plugin))


def get(name: str, kind: str | None = None) -> Component:
    """A component: ``"my-loss"``, ``"pml/multi-similarity"`` or ``"plugin:name"``.

    ``kind``, one of :data:`KINDS`, is required if two kinds share the name. Errors as in :func:`find`.
    """
    kinds = [each for each in KINDS if owners_of(each, name)] if kind is None else [kind]
    if not kinds:
        raise UnknownNameError(unknown("component", name, (c.name for c in components())))
    if len(kinds) > 1:
        meanings = " and ".join(f"a {each}" for each in kinds)
        raise UnknownNameError(f"{name!r} is {meanings}; choose one with kind={kinds[0]!r}")
    return factory(kinds[0], name)  # type: ignore[return-value]


def candidates(name: str, kind: str | None = None) -> list[Component]:
    """All components that a name may refer to, of any kind or plugin."""
    return [component for each in ((kind,) if kind else KINDS) for component in owners_of(each, name).values()]


def short_name(component: Component) -> str:
    """The shortest unambiguous name: ``name`` or ``plugin:name``."""
    return component.name if candidates(component.name, component.kind) == [component] else component.qualified_name


def register(cls: type | None = None, *, name: str | None = None, paper: Paper | None = None) -> Any:
    """Register a class in this process: ``@register`` or ``@register(name="mine")``.

    The default name of ``MyOwnLoss`` is ``my-own``. Registering a name again replaces the class.
    """
    if cls is None:
        return lambda target: register(target, name=name, paper=paper)
    component = validated(Component(cls, name or kebab(cls.__name__), paper), LOCAL)
    _plugins.register(LOCAL, entries_of_component(component))
    meant = owners_of(component.kind, component.name)
    if LOCAL not in meant:
        warnings.warn(
            f"{component.name!r} already means a {component.kind} of the plugin {next(iter(meant))!r}; "
            f"use {component.qualified_name!r} for yours",
            PluginWarning,
            stacklevel=2,
        )
    return cls


def recipes() -> dict[str, Traversable]:
    """Recipe files by name, sorted."""
    return values("recipe")


def values(kind: str) -> dict[str, Any]:
    """Everything of a kind, such as ``"trunk"``, by its shortest unambiguous name."""
    return {name: value for name, (_, value) in sorted(_by_shortest_name(kind).items())}


def commands() -> dict[str, tuple[str, Command]]:
    """The plugin and the command of each command name."""
    return _by_shortest_name("command")


def _by_shortest_name(kind: str) -> dict[str, tuple[str, Any]]:
    found = {}
    for name, by_plugin in _plugins.registered(kind).items():
        meant = list(owners_of(kind, name))
        for plugin, value in by_plugin.items():
            found[name if meant == [plugin] else f"{plugin}:{name}"] = (plugin, value)
    return found


def factory(kind: str, name: str) -> Callable[..., Any]:
    """The value of a name, usually a factory; errors as in :func:`find`."""
    return find(kind, name)[1]  # type: ignore[no-any-return]


def service(name: str, what: str) -> Any:
    """A service of the hook ``pml_ext_services``; PluginError without one."""
    if owners_of("service", name):
        return factory("service", name)()
    reasons = [f"{record.status} ({shortened(record.error, 200)})" for record in plugins() if record.name == name]
    reason = "".join(reasons) or "not installed; run: pip install --force-reinstall pml-ext"
    raise PluginError(f"{what} needs the plugin {name!r}, which is {reason}")


class Origin(NamedTuple):
    """A plugin of another distribution and a place in its code, in words."""

    plugin: str
    place: str


def origin_of(error: BaseException) -> Origin | None:
    """Where in another distribution's plugin an error comes from, or None.

    Methods that a plugin's class inherits from PML or torch count as its own.
    """
    foreign = {record.package: record.name for record in plugins() if not record.shipped}
    origin = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = Path(frame.f_code.co_filename)
        owner = type(frame.f_locals.get("self"))
        if plugin := foreign.get(package_of(frame.f_globals.get("__name__", ""))):
            origin = Origin(
                plugin, f"{frame.f_code.co_qualname} of the plugin {plugin!r}, {file.parent.name}/{file.name}:{line}"
            )
        elif plugin := foreign.get(package_of(str(owner.__module__))):
            origin = Origin(plugin, f"{owner.__qualname__} of the plugin {plugin!r}")
    return origin


def build(name: str, kind: str | None = None, context: Mapping[str, Any] | None = None, /, **settings: Any) -> Any:
    """An instance of the component that :func:`get` finds.

    ``context``, a :class:`BuildContext`, fills omitted settings. A table with a ``name``, such as ``distance={"name":
    "pml/lp", "p": 2}``, is built first; the last word of its key is its kind. ConfigError for an unknown setting.
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
