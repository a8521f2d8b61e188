"""Plugins: entry points of group ``pml_ext``, loaded so that a broken one does not affect the others."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import pluggy

from ..errors import MissingExtraError, PluginError, PluginWarning, StoppedError, UnknownNameError, unknown
from . import hooks
from .components import package_of, reason_of
from .hooks import HOOK_OF, KEBAB, Entry, check_marks, entries

GROUP = "pml_ext"
ALLOW = "PML_EXT_PLUGINS"  # environment variables with names of entry points
BLOCK = "PML_EXT_BLOCK"
LOCAL = "local"  # plugin name of classes registered in the current process
BUILTIN = "pml"  # the name of what the layer and pml_ext_train register; not open to other entry points
RESERVED = (LOCAL, BUILTIN, "folder")  # "folder:PATH" is a data set
BUILTIN_MODULE = "pml_ext.builtin"  # it imports what is above the registry, which imports it by its name


@dataclasses.dataclass
class PluginRecord:
    """An entry point, its module and distribution, and the result of loading it."""

    name: str
    distribution: str
    version: str
    module: str
    status: str = "waiting"  # before its import; then "ok", "broken", "blocked", "not allowed", "not installed"
    error: str = ""  # the reasons, unless the status is "waiting" or "ok"
    hooks: list[str] = dataclasses.field(default_factory=list)
    seconds: float = 0.0  # time to import it
    traceback: str = ""

    def __str__(self) -> str:
        return f"{self.name!r} of {self.distribution} {self.version}"

    @property
    def package(self) -> str:
        """The top package of its module."""
        return package_of(self.module)

    @property
    def shipped(self) -> bool:
        """True for a plugin of this distribution."""
        return self.distribution.replace("_", "-").lower() == "pml-ext"

    def add_error(self, error: BaseException, hook: str = "") -> None:
        """Record the plugin as broken, with one more reason."""
        reason = f"{hook and f'{hook}: '}{reason_of(error, self.package)}"
        self.status = "broken"
        self.error = f"{self.error}; {reason}" if self.error else reason
        self.traceback += "".join(traceback.format_exception(error))


def read_entry_points() -> list[tuple[PluginRecord, metadata.EntryPoint]]:
    """Return each entry point with its record, those of this distribution first.

    PluginError if the allow or deny list names a plugin that is not installed.
    """
    found = []
    for point in metadata.entry_points(group=GROUP):
        assert point.dist is not None, "entry_points() sets it"
        record = PluginRecord(point.name, point.dist.name or "unknown", point.dist.version or "", point.value)
        if variable := _left_out_by(record.name):
            record.status = "blocked" if variable == BLOCK else "not allowed"
            record.error = f"by {variable}"
        elif record.shipped and importlib.util.find_spec(record.package) is None:
            record.status = "not installed"
            record.error = "type: pip install --force-reinstall pml-ext"
        found.append((record, point))
    found.sort(key=lambda pair: (not pair[0].shipped, pair[0].name))
    names = [record.name for record, _ in found]
    for variable in (ALLOW, BLOCK):
        for name in sorted(_listed_in(variable).difference(names)):
            installed = ", ".join(names) or "none"
            raise PluginError(f"{variable}: {unknown('installed plugin', name, names)}; installed: {installed}")
    return found


def _listed_in(variable: str) -> set[str]:
    """Return the entry-point names in an environment variable, which separates them by commas."""
    return {name.strip() for name in os.environ.get(variable, "").split(",")} - {""}


def _left_out_by(name: str) -> str:
    """Return the environment variable that leaves a plugin out, or an empty string."""
    if name == BUILTIN:
        return ""
    if ALLOW in os.environ and name not in _listed_in(ALLOW):
        return ALLOW
    return BLOCK if name in _listed_in(BLOCK) else ""


def is_allowed(name: str) -> bool:
    """Return whether the allow list and the deny list let a plugin in, by the name of its entry point."""
    return not _left_out_by(name)


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
                    self._points = read_entry_points()
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
        self.register(BUILTIN, entries("pml_ext_components", BUILTIN, builtin.components()))

    def _load_one(self, record: PluginRecord, point: metadata.EntryPoint) -> None:
        """Import a plugin; its hooks are called when they are needed."""
        if not KEBAB.fullmatch(point.name) or (point.name in RESERVED and not record.shipped):
            raise PluginError(f"an entry point's name is kebab-case and none of {', '.join(RESERVED)}: {point.name!r}")
        if not metadata.EntryPoint.pattern.match(point.value):
            raise PluginError(f"its entry point is {point.value!r}; wanted a module, such as 'my_package'")
        if point.name in self.loaded:
            raise PluginError(f"another distribution already claims the entry-point name {point.name!r}; rename one")
        started = time.perf_counter()
        module = point.load()
        record.seconds = time.perf_counter() - started
        check_marks(module)
        if (other := self._manager.get_name(module)) is not None:
            raise PluginError(f"its module is that of the entry point {other!r} already; remove one of them")
        self._manager.register(module, point.name)
        record.hooks = [caller.name for caller in self._manager.get_hookcallers(module) or []]
        record.status = "ok"
        self.loaded[point.name] = record

    @contextlib.contextmanager
    def _attributed(self, record: PluginRecord, hook: str = "") -> Iterator[None]:
        """Attribute an error inside the block to a plugin, which is recorded as broken; output goes to stderr.

        The block imports the plugin, or calls one of its hooks. Errors of pml_ext_train are ours,
        and raised. Only its missing extras are kept: :func:`find` raises them when a name is looked up.
        """
        try:
            with contextlib.redirect_stdout(sys.stderr):
                yield
        except (KeyboardInterrupt, PluginWarning, StoppedError):  # a PluginWarning: where warnings are errors
            raise
        except BaseException as error:  # also SystemExit, and skip exceptions of test frameworks
            if record.name != BUILTIN:
                record.add_error(error, hook)
                left_out = f"the answer of {hook}" if hook else "it"
                advice = f"pml-ext plugins -v shows where; PML_EXT_BLOCK={record.name} leaves it out"
                reason = reason_of(error, record.package)
                text = f"the plugin {record} is broken and {left_out} was left out: {reason} ({advice})"
                warnings.warn(text, PluginWarning, stacklevel=4)
            elif isinstance(error, MissingExtraError):
                self.missing_extras[hook] = error
            else:
                raise

    def registered(self, kind: str) -> dict[str, dict[str, Any]]:
        """Return ``{name: {plugin: value}}`` of a kind, a key of HOOK_OF; UnknownNameError for another one."""
        if kind not in HOOK_OF:
            raise UnknownNameError(unknown("kind", kind, HOOK_OF))
        self.load()
        hook = HOOK_OF[kind]
        with self._lock:
            if hook == "pml_ext_components" and (BUILTIN, hook) not in self._called:
                self._add_builtin()
                self._called.add((BUILTIN, hook))
            self._call(hook)
        return self._registered[kind]

    def _call(self, hook: str) -> None:
        """Call a hook of each plugin that has it, once, and register what it returns; if it fails, none of its names.

        A hook that was interrupted is called again.
        """
        for implementation in getattr(self._manager.hook, hook).get_hookimpls():
            plugin = implementation.plugin_name
            if (plugin, hook) in self._called:
                continue
            self._called.add((plugin, hook))
            try:
                with self._attributed(self.loaded[plugin], hook):
                    self.register(plugin, entries(hook, plugin, implementation.function()))
            except BaseException as error:
                if not isinstance(error, PluginWarning):  # with that, the plugin is recorded as broken
                    self._called.remove((plugin, hook))
                raise

    def register(self, plugin: str, found: list[Entry]) -> None:
        """Register what a plugin names; a value replaces that plugin's own of the same name."""
        for kind, name, value in found:
            self._registered[kind].setdefault(name, {})[plugin] = value

    def ships(self, plugin: str) -> bool:
        """Return whether a plugin belongs to this distribution."""
        return self.loaded[plugin].shipped if plugin in self.loaded else plugin != LOCAL


def _being_imported(path: str) -> bool:
    """Return whether the module of an import path, or its top package, is being imported right now."""
    modules = [sys.modules.get(name) for name in (path.partition(":")[0], package_of(path))]
    return any(getattr(getattr(module, "__spec__", None), "_initializing", False) for module in modules)
