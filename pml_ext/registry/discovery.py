"""Plugins: entry points of group ``pml_ext``, loaded so that a broken one does not affect the others."""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any

import pluggy

from ..errors import MissingExtraError, PluginError, PluginWarning, StoppedError, UnknownNameError, shortened, unknown
from . import hooks
from .answers import HOOK_OF, KEBAB, Entry, check_marks, entries
from .entry_points import BUILTIN, GROUP, LOCAL, RESERVED, PluginRecord, read_entry_points
from .imports import package_of, reason_of

BUILTIN_MODULE = "pml_ext.builtin"  # it imports what is above the registry, which imports it by its name


class Plugins:
    """The names registered by all plugins, by PML's own classes and by components registered in the current process.

    Entry points are read once, those of this distribution first. A plugin that fails is recorded as broken, with a
    :class:`PluginWarning`; a hook that fails loses only its own names. ``PML_EXT_PLUGINS`` is an allow list of
    entry-point names, comma-separated (empty: none), ``PML_EXT_BLOCK`` a deny list.
    """

    def __init__(self) -> None:
        self.loaded: dict[str, PluginRecord] = {}
        self.missing_extras: dict[str, MissingExtraError] = {}  # {hook of the core: its error}
        self._manager = pluggy.PluginManager(GROUP)
        self._manager.add_hookspecs(hooks)
        self._points: list[tuple[PluginRecord, metadata.EntryPoint]] | None = None  # None before they are read
        self._loading = False  # whether plugins are being imported right now
        self._called: set[tuple[str, str]] = set()  # plugins and their hooks
        # {kind, a key of HOOK_OF: {name: {plugin: value}}}
        self._registered: dict[str, dict[str, dict[str, Any]]] = {kind: {} for kind in HOOK_OF}
        self._lock = threading.RLock()

    @property
    def records(self) -> list[PluginRecord]:
        """The records of all entry points, also of those that are blocked or broken."""
        return [record for record, _ in self._points or []]

    def load(self) -> None:
        """Import the plugins once; PluginError if the allow or deny list names a plugin that is not installed.

        A plugin whose import is under way, and calls this, is loaded by the next call, like one whose import was
        interrupted.
        """
        with self._lock:
            if self._loading:
                return
            self._loading = True
            try:
                if self._points is None:
                    points = read_entry_points()
                    self._add_builtin()
                    self._points = points
                for record, point in self._points:
                    if record.status == "waiting" and not _being_imported(record.module):
                        with self._attributed(record):
                            self._load_one(record, point)
            finally:
                self._loading = False

    def _add_builtin(self) -> None:
        """Add what the core and PML have."""
        builtin = importlib.import_module(BUILTIN_MODULE)
        for component in builtin.pml_components():
            self.register(component.plugin, [(component.kind, component.name, component)])
        self._manager.register(builtin, BUILTIN)

    def _load_one(self, record: PluginRecord, point: metadata.EntryPoint) -> None:
        """Import a plugin; its hooks are called when they are needed."""
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
            module = point.load()
        finally:
            record.seconds = time.perf_counter() - started
        record.hooks = self._add_hooks(module, point.name)
        record.status = "ok"
        self.loaded[point.name] = record

    def _add_hooks(self, module: Any, plugin: str) -> list[str]:
        """Add the hooks of a plugin, and return their names; raise for a marked function of another name."""
        check_marks(module)
        other = self._manager.get_name(module)
        if other is not None:
            raise PluginError(f"its module is that of the entry point {other!r} already; remove one of them")
        try:
            self._manager.register(module, plugin)
            self._manager.check_pending()
        except Exception:
            if self._manager.has_plugin(plugin):
                self._manager.unregister(name=plugin)
            raise
        return [caller.name for caller in self._manager.get_hookcallers(module) or []]

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
        """Return ``{name: {plugin: value}}`` of a kind, a key of HOOK_OF; UnknownNameError for another one."""
        if kind not in HOOK_OF:
            raise UnknownNameError(unknown("kind", kind, HOOK_OF))
        self.load()
        with self._lock:
            self._call(HOOK_OF[kind])
        return self._registered[kind]

    def _call(self, hook: str) -> None:
        """Call a hook of each plugin that has it, once; one that was interrupted is called again."""
        for implementation in getattr(self._manager.hook, hook).get_hookimpls():
            plugin = implementation.plugin_name
            if (plugin, hook) in self._called:
                continue
            self._called.add((plugin, hook))
            try:
                self._call_one(hook, plugin, implementation.function)
            except PluginWarning:  # where warnings are errors: the plugin is recorded as broken
                raise
            except BaseException:
                self._called.remove((plugin, hook))
                raise

    def _call_one(self, hook: str, plugin: str, function: Callable[[], Any]) -> None:
        """Register what a hook of a plugin returns; one that fails is recorded, and none of its names is registered.

        Errors of the layer's own hooks are ours, and raised. Only a missing extra is kept: :func:`find`
        raises it when a name is looked up.
        """
        if plugin in self.loaded:
            with self._attributed(self.loaded[plugin], hook):
                self.register(plugin, entries(hook, plugin, function()))
            return
        try:
            self.register(plugin, entries(hook, plugin, function()))
        except MissingExtraError as error:
            self.missing_extras[hook] = error

    def register(self, plugin: str, found: list[Entry]) -> None:
        """Register what a plugin names; a value replaces that plugin's own of the same name."""
        for kind, name, value in found:
            self._registered[kind].setdefault(name, {})[plugin] = value

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
