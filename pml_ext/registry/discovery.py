"""Plugins: entry points of group ``pml_ext``, loaded so that a broken one does not affect the others."""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from ..errors import (
    MissingExtraError,
    PluginError,
    PluginWarning,
    StoppedError,
    UnknownNameError,
    shortened,
    unknown,
)
from .answers import HOOKS, KEBAB, TABLES, hooks_of, items_of, recipe_files, validated
from .components import KINDS, Component, pml_components
from .entry_points import BUILTIN, LOCAL, RESERVED, PluginRecord, read_entry_points
from .imports import package_of, reason_of


class Plugins:
    """The names registered by all plugins, by PML's own classes and by components registered in the current process.

    Entry points are read once, those of this distribution first. A plugin that fails is recorded as broken, with a
    :class:`PluginWarning`; a hook that fails loses only its own names. ``PML_EXT_PLUGINS`` is an allow list of
    entry-point names, comma-separated (empty: none), ``PML_EXT_BLOCK`` a deny list.
    """

    def __init__(self) -> None:
        self.records: list[PluginRecord] = []
        self.loaded: dict[str, PluginRecord] = {}
        self.missing_extras: dict[str, MissingExtraError] = {}  # {key of TABLES: error of the core's own hook}
        self._loading = False  # whether plugins are being imported right now
        # {kind of component, "class", "recipe" or key of TABLES: {name: {plugin: value}}}
        kinds = (*KINDS, "class", "recipe", *TABLES)
        self._registered: dict[str, dict[str, dict[str, Any]]] = {kind: {} for kind in kinds}
        self._hooks: dict[str, dict[str, Callable[[], Any]]] = {}  # {plugin: {hook not called yet: function}}
        # Entry points to load; None before they are read. The list stays empty once all are loaded.
        self._waiting: list[tuple[PluginRecord, metadata.EntryPoint]] | None = None
        self._lock = threading.RLock()

    def load(self) -> None:
        """Load the plugins once; PluginError if the allow or deny list names a plugin that is not installed."""
        with self._lock:
            if self._loading or self._waiting == []:
                return
            self._loading = True
            try:
                if self._waiting is None:
                    self.records, waiting = read_entry_points()
                    self._add_builtin()
                    self._waiting = waiting  # last, so that nothing is missing after an interruption
                self._load_waiting(self._waiting)
            finally:
                self._loading = False

    def _add_builtin(self) -> None:
        """Add what the core and PML have."""
        hooks = hooks_of(importlib.import_module("pml_ext.registry.builtin"))
        self._add_components(BUILTIN, hooks)
        self._add_recipes(BUILTIN, hooks)
        self._hooks[BUILTIN] = hooks
        for component in pml_components():
            self._register(component.kind, component.name, component.plugin, component)

    def _load_waiting(self, waiting: list[tuple[PluginRecord, metadata.EntryPoint]]) -> None:
        """Load the plugins that wait. A plugin whose import is under way, and calls this, waits for the next call."""
        for record, point in list(waiting):
            if _being_imported(record.module):
                continue
            waiting.remove((record, point))
            try:
                with self._attributed(record):
                    self._load_one(record, point)
            except (KeyboardInterrupt, StoppedError):  # the next call loads it again
                if self.loaded.get(record.name) is record:
                    del self.loaded[record.name]
                record.status = "waiting"
                waiting.insert(0, (record, point))
                raise

    def _load_one(self, record: PluginRecord, point: metadata.EntryPoint) -> None:
        """Import a plugin, and add its components and recipes; its other hooks are called when they are needed."""
        if not KEBAB.fullmatch(point.name) or point.name in RESERVED:
            raise PluginError(f"an entry point's name is kebab-case and none of {', '.join(RESERVED)}: {point.name!r}")
        if not metadata.EntryPoint.pattern.match(point.value):
            raise PluginError(
                f"its entry point is {shortened(point.value, 100)!r}; wanted a module, such as 'my_package'"
            )
        if point.name in self.loaded:
            raise PluginError(f"another distribution already claims the entry-point name {point.name!r}; rename one")
        started = time.perf_counter()
        try:
            hooks = hooks_of(point.load())
            record.hooks = [hook for hook in HOOKS if hook in hooks]
            record.status = "ok"
            self.loaded[point.name] = record
            with self._attributed(record, "pml_ext_components"):
                record.components = self._add_components(point.name, hooks)
            with self._attributed(record, "pml_ext_recipes"):
                self._add_recipes(point.name, hooks)
            self._hooks[point.name] = hooks
        finally:
            record.seconds = time.perf_counter() - started

    def _add_components(self, plugin: str, hooks: Mapping[str, Callable[[], Any]]) -> int:
        """Add a plugin's components, all of them or none, and return their number."""
        components: dict[tuple[str, str], Component] = {}
        for each in items_of(hooks, "pml_ext_components", "Component(...) entries"):
            component = validated(each, plugin)
            other = components.setdefault((component.kind, component.name), component)
            if other is not component:
                twice = f"{component.kind} {component.name!r} twice ({other.class_name} and {component.class_name})"
                raise PluginError(f"pml_ext_components names the {twice}; names are unique per kind")
        for component in components.values():
            self.add(component)
        return len(components)

    def _add_recipes(self, plugin: str, hooks: Mapping[str, Callable[[], Any]]) -> None:
        """Add a plugin's recipes, those of all of its folders or none."""
        recipes: list[tuple[str, Path]] = []
        for folder in items_of(hooks, "pml_ext_recipes", "folders"):
            recipes += recipe_files(plugin, folder)
        for name, file in recipes:
            self._register("recipe", name, plugin, file)

    def add(self, component: Component) -> None:
        """Add a plugin's component under its name and its class name; replace one of the same name."""
        self._register(component.kind, component.name, component.plugin, component)
        self._register("class", component.class_name, component.plugin, component)

    def _register(self, kind: str, name: str, plugin: str, value: Any) -> None:
        self._registered[kind].setdefault(name, {})[plugin] = value

    @contextlib.contextmanager
    def _attributed(self, record: PluginRecord, hook: str = "") -> Iterator[None]:
        """Attribute an error inside the block to a plugin, which is recorded as broken; output goes to stderr.

        The block imports the plugin, or calls one of its hooks.
        """
        try:
            with contextlib.redirect_stdout(sys.stderr):
                yield
        except (KeyboardInterrupt, PluginWarning, StoppedError):  # a PluginWarning: where warnings are errors
            raise
        except BaseException as error:  # also SystemExit, and skip exceptions of test frameworks
            left_out = f"the answer of {hook}" if hook else "it"
            record.add_error(error, hook)
            advice = f"pml-ext plugins -v shows where; PML_EXT_BLOCK={record.name} leaves it out"
            reason = reason_of(error, record.package)
            text = f"the plugin {record} is broken and {left_out} was left out: {reason} ({advice})"
            warnings.warn(text, PluginWarning, stacklevel=4)

    def registered(self, kind: str) -> dict[str, dict[str, Any]]:
        """Return ``{name: {plugin: value}}`` of a kind of component, ``"class"``, ``"recipe"`` or a key of TABLES.

        UnknownNameError for another kind.
        """
        if kind not in self._registered:
            raise UnknownNameError(unknown("kind", kind, self._registered))
        self.load()
        if kind in TABLES:
            with self._lock:
                self._call_hooks_of(kind)
        return self._registered[kind]

    def _call_hooks_of(self, kind: str) -> None:
        """Call the hooks that return values of a kind, each once; one that raises is called again next time."""
        hook = TABLES[kind].hook
        plugins = [plugin for plugin, hooks in self._hooks.items() if hook in hooks]
        for plugin in plugins:
            function = self._hooks[plugin].pop(hook)
            try:
                self._call_attributed(plugin, kind, function)
            except PluginWarning:  # where warnings are errors: the plugin is recorded as broken
                raise
            except BaseException:
                self._hooks[plugin][hook] = function
                raise

    def _call_attributed(self, plugin: str, kind: str, function: Callable[[], Any]) -> None:
        """Call a hook; one that fails is recorded.

        Errors of the layer's own hooks are ours, and raised. Only a missing extra is kept: :func:`find`
        raises it when a name is looked up.
        """
        if plugin in self.loaded:
            with self._attributed(self.loaded[plugin], TABLES[kind].hook):
                self._call(plugin, kind, function)
            return
        try:
            self._call(plugin, kind, function)
        except MissingExtraError as error:
            self.missing_extras[kind] = error

    def _call(self, plugin: str, kind: str, function: Callable[[], Any]) -> None:
        """Call a hook, and register the values that it returns; none of them if a name or a value is wrong."""
        table = TABLES[kind]
        answer = function()
        if not isinstance(answer, Mapping):
            shown = shortened(repr(answer), 100)
            raise PluginError(f"{table.hook} returned {shown}; it must return a mapping with names as keys")
        for name, value in answer.items():
            is_valid = isinstance(name, str) and table.names.fullmatch(name) and table.is_valid(value)
            if not is_valid:
                shown = shortened(repr(value), 100)
                raise PluginError(f"{table.hook}: {name!r} is {shown}, wanted {table.wanted}")
        for name, value in answer.items():
            self._register(kind, name, plugin, value)

    def ships(self, plugin: str) -> bool:
        """Return whether a plugin belongs to this distribution."""
        if plugin in self.loaded:
            return self.loaded[plugin].shipped
        return plugin != LOCAL


def _being_imported(path: str) -> bool:
    """Return whether the module of an import path, or its top package, is being imported right now."""
    for name in (path.partition(":")[0], package_of(path)):
        spec = getattr(sys.modules.get(name), "__spec__", None)
        if getattr(spec, "_initializing", False):
            return True
    return False
