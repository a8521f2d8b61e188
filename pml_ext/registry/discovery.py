"""Plugins: entry points of group ``pml_ext``. A broken one does not affect the others."""

import contextlib
import dataclasses
import importlib.util
import os
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
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
LOCAL = "local"  # "plugin" of classes registered in the current process
BUILTIN = "pml"  # "plugin" of what the layer and pml_ext_train register
RESERVED = (LOCAL, BUILTIN, "folder")  # "folder:PATH" is a data set


@dataclasses.dataclass
class PluginRecord:
    """An entry point and the result of loading it."""

    name: str
    distribution: str
    version: str
    module: str
    status: str = "waiting"  # before its import; then "ok", "broken", "blocked", "not allowed", "not installed"
    error: str = ""  # why it is not "ok"
    hooks: list[str] = dataclasses.field(default_factory=list)
    seconds: float = 0.0  # import time
    traceback: str = ""

    def __str__(self) -> str:
        return f"{self.name!r} of {self.distribution} {self.version}"

    @property
    def package(self) -> str:
        """The top package."""
        return package_of(self.module)

    @property
    def shipped(self) -> bool:
        """Whether it belongs to this distribution."""
        return self.distribution.replace("_", "-").lower() == "pml-ext"

    def add_error(self, error: BaseException, hook: str = "") -> None:
        """Mark the plugin as broken, for one more reason."""
        reason = f"{hook and f'{hook}: '}{reason_of(error, self.package)}"
        self.status = "broken"
        self.error = f"{self.error}; {reason}" if self.error else reason
        self.traceback += "".join(traceback.format_exception(error))


def read_entry_points() -> list[PluginRecord]:
    """All entry points, this distribution's first.

    PluginError if an environment variable names a plugin that is not installed.
    """
    found = []
    for point in metadata.entry_points(group=GROUP):
        dist: Any = point.dist
        record = PluginRecord(point.name, dist.name or "unknown", dist.version or "", point.value)
        if variable := _left_out_by(record.name):
            record.status = "blocked" if variable == BLOCK else "not allowed"
            record.error = f"by {variable}"
        elif record.shipped and importlib.util.find_spec(record.package) is None:
            record.status = "not installed"
            record.error = "run: pip install --force-reinstall pml-ext"
        found.append(record)
    found.sort(key=lambda record: (not record.shipped, record.name))
    names = [record.name for record in found]
    for variable in (ALLOW, BLOCK):
        for name in sorted(_listed_in(variable).difference(names)):
            raise PluginError(
                f"{variable}: {unknown('installed plugin', name, names)}; installed: {', '.join(names) or 'none'}"
            )
    return found


def _listed_in(variable: str) -> set[str]:
    return {name.strip() for name in os.environ.get(variable, "").split(",")} - {""}


def _left_out_by(name: str) -> str:
    if ALLOW in os.environ and name not in _listed_in(ALLOW) | {BUILTIN}:
        return ALLOW
    return BLOCK if name in _listed_in(BLOCK) - {BUILTIN} else ""


def is_allowed(name: str) -> bool:
    """Whether the environment variables allow an entry point."""
    return not _left_out_by(name)


class Plugins:
    """Everything registered by plugins, by PML's classes and in the current process.

    A plugin that fails is marked as broken, with a :class:`PluginWarning`; a hook that fails loses only its own names.
    ``PML_EXT_PLUGINS`` (allowed) and ``PML_EXT_BLOCK`` (blocked) list names of entry points, separated by commas.
    """

    def __init__(self) -> None:
        self.loaded: dict[str, PluginRecord] = {}
        self.missing_extras: dict[str, MissingExtraError] = {}  # {builtin hook: its error}
        self._manager = pluggy.PluginManager(GROUP)
        self._manager.add_hookspecs(hooks)
        self.records: list[PluginRecord] = []  # of all entry points, including blocked and broken ones
        self._loading = False  # whether plugins are being imported right now
        self._called: set[tuple[str, str]] = set()  # (plugin, hook)
        # {kind: {name: {plugin: value}}}
        self._registered: dict[str, dict[str, dict[str, Any]]] = {kind: {} for kind in HOOK_OF}
        self._lock = threading.RLock()

    def load(self) -> None:
        """Import the plugins once; PluginError for an unknown name in an environment variable.

        The next call loads a plugin whose import was interrupted, or is still running and calls this.
        """
        with self._lock:
            if self._loading:
                return
            self._loading = True
            try:
                if not self.records:
                    self.records = read_entry_points()
                for record in self.records:
                    if record.status == "waiting" and not _being_imported(record.module):
                        with self._attributed(record):
                            self._load_one(record)
            finally:
                self._loading = False

    def _load_one(self, record: PluginRecord) -> None:
        if not KEBAB.fullmatch(record.name) or (record.name in RESERVED and not record.shipped):
            raise PluginError(f"{record.name!r} is reserved or not kebab-case; rename the entry point")
        if not metadata.EntryPoint.pattern.match(record.module):
            raise PluginError(f"its entry point is {record.module!r}; expected a module, such as 'my_package'")
        if record.name in self.loaded:
            raise PluginError(f"another distribution already has an entry point named {record.name!r}; rename one")
        started = time.perf_counter()
        module = metadata.EntryPoint(record.name, record.module, GROUP).load()
        record.seconds = time.perf_counter() - started
        check_marks(module)
        if (other := self._manager.get_name(module)) is not None:
            raise PluginError(f"the entry point {other!r} already names its module; remove one of them")
        self._manager.register(module, record.name)
        record.hooks = [caller.name for caller in self._manager.get_hookcallers(module) or []]
        record.status = "ok"
        self.loaded[record.name] = record

    @contextlib.contextmanager
    def _attributed(self, record: PluginRecord, hook: str = "") -> Iterator[None]:
        """Mark a plugin as broken if the block fails, and send its output to stderr.

        Errors of pml_ext_train are raised; a missing extra is raised only when a name is looked up.
        """
        try:
            with contextlib.redirect_stdout(sys.stderr):
                yield
        except (KeyboardInterrupt, PluginWarning, StoppedError):  # a PluginWarning: where warnings are errors
            raise
        except BaseException as error:  # also SystemExit, and skip exceptions of test frameworks
            if record.name != BUILTIN:
                record.add_error(error, hook)
                what = f"{hook} of the plugin {record}" if hook else f"the plugin {record}"
                warnings.warn(
                    f"{what} is broken and was left out: {reason_of(error, record.package)}; "
                    f"see 'pml-ext plugins -v', or block it with PML_EXT_BLOCK={record.name}",
                    PluginWarning,
                    stacklevel=4,
                )
            elif isinstance(error, MissingExtraError):
                self.missing_extras[hook] = error
            else:
                raise

    def registered(self, kind: str) -> dict[str, dict[str, Any]]:
        """``{name: {plugin: value}}`` of a kind; UnknownNameError for an unknown kind."""
        if kind not in HOOK_OF:
            raise UnknownNameError(unknown("kind", kind, HOOK_OF))
        self.load()
        hook = HOOK_OF[kind]
        with self._lock:
            if hook == "pml_ext_components" and (BUILTIN, hook) not in self._called:
                builtin = importlib.import_module("pml_ext.builtin")  # by name, since it imports rooms above this one
                for component in builtin.pml_components():
                    self.register(component.plugin, [(component.kind, component.name, component)])
                self.register(BUILTIN, entries(hook, BUILTIN, builtin.components()))
                self._called.add((BUILTIN, hook))
            for implementation in getattr(self._manager.hook, hook).get_hookimpls():
                if (implementation.plugin_name, hook) not in self._called:
                    self._call(hook, implementation.plugin_name, implementation.function)
        return self._registered[kind]

    def _call(self, hook: str, plugin: str, function: Callable[[], Any]) -> None:
        self._called.add((plugin, hook))
        try:
            with self._attributed(self.loaded[plugin], hook):
                self.register(plugin, entries(hook, plugin, function()))
        except PluginWarning:  # the plugin is marked as broken
            raise
        except BaseException:
            self._called.remove((plugin, hook))
            raise

    def register(self, plugin: str, found: list[Entry]) -> None:
        """Register values of a plugin; they replace its own values of the same name."""
        for kind, name, value in found:
            self._registered[kind].setdefault(name, {})[plugin] = value

    def ships(self, plugin: str) -> bool:
        """Whether a plugin belongs to this distribution."""
        return self.loaded[plugin].shipped if plugin in self.loaded else plugin != LOCAL


def _being_imported(path: str) -> bool:
    """Whether a module or its top package is being imported right now."""
    modules = [sys.modules.get(name) for name in (path.partition(":")[0], package_of(path))]
    return any(getattr(getattr(module, "__spec__", None), "_initializing", False) for module in modules)
