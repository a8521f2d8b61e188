"""Finds plugins by entry points of group ``pml_ext``, each in a guard of its own, and asks their hooks.

See :mod:`pml_ext.hookspecs` for what a plugin may answer. Importing this module imports no plugin.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import os
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from importlib import metadata
from importlib.resources.abc import Traversable
from typing import Any

import pluggy

from . import hookspecs
from .answers import HOOKS, KEBAB, TABLES, check_marks, checked, components_in, recipes_in, table_in
from .catalogue import pml_classes
from .components import Component, Paper
from .errors import PluginError, PluginWarning, StoppedError, one_line, unknown

GROUP = "pml_ext"
LOCAL = "local"  # the plugin name of classes registered in the running process
BUILTIN = "pml"  # the plugin name of what the core itself registers; not open to entry points
RESERVED = (LOCAL, BUILTIN, "folder")  # "folder:PATH" is a data set
SHIPPED = "pml-ext"  # the distribution whose plugins come before others
_PML_NAME = "pytorch-metric-learning"  # the plugin name of PML's own classes
_BUILTIN_MODULE = "pml_ext.builtin"
_PML = Paper("PyTorch Metric Learning", "Musgrave et al.", 2020, "https://arxiv.org/abs/2008.09164")


@dataclasses.dataclass
class PluginRecord:
    """An entry point and what became of it.

    Args:
        name: the entry point's name.
        distribution: the distribution that declares it.
        version: that distribution's version.
        module: what the entry point names.
        status: ``"ok"``, ``"broken"``, ``"blocked"`` (by PML_EXT_BLOCK), ``"not allowed"`` (by PML_EXT_PLUGINS) or
            ``"waiting"`` (somebody is importing it right now).
        error: why it is broken.
        hooks: the hooks that it implements.
        components: how many components it has.
        clashes: names that others claim too, and what they mean; filled in by :meth:`Registry.plugins`.
        seconds: what importing it and asking its first hooks took.
        traceback: where it broke.
    """

    name: str
    distribution: str
    version: str
    module: str
    status: str = "ok"
    error: str = ""
    hooks: list[str] = dataclasses.field(default_factory=list)
    components: int = 0
    clashes: list[str] = dataclasses.field(default_factory=list)
    seconds: float = 0.0
    traceback: str = ""


class Discovery:
    """What plugins offer, with PML's own classes and the components registered by the running process.

    Entry points are read once, by :meth:`load`, those of this distribution first. Each is imported, checked and asked
    in a guard of its own: one that fails is reported in a :class:`PluginWarning`, recorded as broken, and otherwise
    ignored. The environment variable ``PML_EXT_PLUGINS`` is an allow-list of entry-point names, comma-separated (empty:
    none), ``PML_EXT_BLOCK`` a deny-list.

    Attributes:
        records: the entry points found.
        components: all components.
        recipes: recipe files by name.
        loading: whether plugins are being imported right now.
    """

    def __init__(self) -> None:
        self.records: list[PluginRecord] = []
        self.components: list[Component] = []
        self.recipes: dict[str, Traversable] = {}
        self.loading = False
        self._loaded = False
        self._lock = threading.RLock()
        self._manager = pluggy.PluginManager(GROUP)
        self._manager.add_hookspecs(hookspecs)
        self._tables: dict[str, dict[str, dict[str, Any]]] = {}  # {hook: {plugin: {name: ...}}}
        self._waiting: list[tuple[PluginRecord, metadata.EntryPoint]] = []
        self._untold: list[str] = []

    def load(self) -> None:
        """Reads the entry points, unless that was done already.

        Raises:
            PluginError: PML_EXT_PLUGINS names a plugin that is not installed.
        """
        with self._lock:
            if self.loading or (self._loaded and not self._waiting):
                return
            self.loading = True
            try:
                self._take_waiting() if self._loaded else self._load_all()
            finally:
                self.loading = False
        self._tell()

    def _load_all(self) -> None:
        points = _entry_points()
        allowed, blocked = _names_in("PML_EXT_PLUGINS"), _names_in("PML_EXT_BLOCK") or set()
        names = [point.name for point in points]
        for name in sorted((allowed or set()) - {*names}):
            raise PluginError(
                f"PML_EXT_PLUGINS: {unknown('installed plugin', name, names)}; installed: {', '.join(names) or 'none'}"
            )
        if not self._manager.has_plugin(BUILTIN):
            self._adopt(BUILTIN, importlib.import_module(_BUILTIN_MODULE))
            self.components += [Component(cls, name, _PML, plugin=_PML_NAME) for name, cls in pml_classes()]
        for point in points:
            record = PluginRecord(
                point.name, _distribution(point), point.dist.version if point.dist else "", point.value
            )
            self.records.append(record)
            if point.name in blocked:
                record.status = "blocked"
            elif allowed is not None and point.name not in allowed:
                record.status = "not allowed"
            else:
                self._guarded(record, functools.partial(self._load_one, record, point))
        self._loaded = True

    def _load_one(self, record: PluginRecord, point: metadata.EntryPoint) -> None:
        if not KEBAB.fullmatch(point.name) or point.name in RESERVED:
            names = " or ".join(map(repr, RESERVED))
            raise PluginError(f"an entry point's name is kebab-case and not {names}, not {point.name!r}")
        if self._manager.has_plugin(point.name):
            raise PluginError(
                f"another distribution already claims the entry-point name {point.name!r}; rename one of them"
            )
        if _being_imported(point.module):  # its hooks are not there yet
            record.status = "waiting"
            self._waiting.append((record, point))
            return
        started = time.perf_counter()
        try:
            self._adopt(point.name, point.load())
        finally:
            record.seconds = time.perf_counter() - started
        record.hooks = [hook for hook in HOOKS if self._implements(point.name, hook)]
        record.components = sum(component.plugin == point.name for component in self.components)

    def _take_waiting(self) -> None:
        """Adopts what was being imported when the entry points were read."""
        waiting, self._waiting = self._waiting, []
        for record, point in waiting:
            record.status = "ok"
            self._guarded(record, functools.partial(self._load_one, record, point))
            if record.status == "ok":
                self._tables.clear()  # asked again, it included

    def _adopt(self, name: str, plugin: object) -> None:
        """Registers a plugin's module, checks its hooks, and takes what it offers; all or nothing."""
        check_marks(plugin)
        self._manager.register(plugin, name=name)
        try:
            self._manager.check_pending()
            components = components_in(self._ask(name, "pml_ext_components"), name)
            recipes = recipes_in(self._ask(name, "pml_ext_recipes"), name)
        except BaseException:
            self._drop(name)
            raise
        self.components += components
        self.recipes |= recipes

    def _drop(self, name: str) -> None:
        """Forgets a plugin and all that it offered."""
        self._manager.unregister(name=name)
        self.components = [component for component in self.components if component.plugin != name]
        self.recipes = {recipe: path for recipe, path in self.recipes.items() if not recipe.startswith(f"{name}/")}
        for tables in self._tables.values():
            tables.pop(name, None)

    def _caller(self, plugin: str, hook: str) -> pluggy.HookCaller:
        others = [other for name, other in self._manager.list_name_plugin() if name != plugin]
        return self._manager.subset_hook_caller(hook, others)

    def _implements(self, plugin: str, hook: str) -> bool:
        return any(each.plugin_name == plugin for each in self._caller(plugin, hook).get_hookimpls())

    def _ask(self, plugin: str, hook: str) -> list[Any]:
        caller = self._caller(plugin, hook)
        answers = list(caller())
        if not answers and caller.get_hookimpls():  # pluggy leaves None out
            raise PluginError(f"{hook} returned None; it must return a {'mapping' if hook in TABLES else 'list'}")
        return answers

    def _guarded(self, record: PluginRecord, action: Callable[[], None]) -> None:
        """Runs one plugin's code; if it fails, the plugin is recorded as broken and reported.

        What it prints goes to stderr, since stdout is for results.
        """
        try:
            with contextlib.redirect_stdout(sys.stderr):
                action()
        except (KeyboardInterrupt, StoppedError):
            raise
        except BaseException as error:  # SystemExit, and what test frameworks raise to skip
            record.status, record.error = "broken", f"{type(error).__name__}: {error}"
            record.traceback = "".join(traceback.format_exception(error))
            self._untold.append(
                f"the plugin {record.name!r} of {record.distribution} {record.version} is broken and was left out: "
                f"{one_line(error)} (pml-ext plugins -v shows where; PML_EXT_BLOCK={record.name} leaves it out "
                "silently)"
            )

    def _tell(self) -> None:
        """Warns of what was found, now that nothing is half done."""
        while self._untold:
            warnings.warn(self._untold.pop(0), PluginWarning, stacklevel=3)

    def ask_all(self) -> None:
        """Asks every hook of every plugin, so that a broken one is known."""
        for hook in TABLES:
            self.tables(hook)

    def tables(self, hook: str) -> dict[str, dict[str, Any]]:
        """What each plugin returns from a hook that gives ``{name: ...}``, asked once.

        Args:
            hook: its name.
        """
        self.load()
        with self._lock:
            if hook not in self._tables:
                self._tables[hook] = {BUILTIN: self._table(BUILTIN, hook)}
                for record in self.records:
                    if record.status == "ok":
                        self._guarded(record, functools.partial(self._take_table, record.name, hook))
            tables = self._tables[hook]
        self._tell()
        return tables

    def _take_table(self, plugin: str, hook: str) -> None:
        try:
            self._tables[hook][plugin] = self._table(plugin, hook)
        except BaseException:
            self._drop(plugin)
            raise

    def _table(self, plugin: str, hook: str) -> dict[str, Any]:
        components = [component for component in self.components if component.plugin == plugin]
        return table_in(hook, self._ask(plugin, hook), components)

    # Who a plugin is

    def record(self, plugin: str) -> PluginRecord | None:
        """What is known of a plugin that is in use; None of the core, of PML and of the running process."""
        return next((r for r in self.records if r.name == plugin and r.status == "ok"), None)

    def owner(self, plugin: str) -> str:
        """The distribution and version of a plugin, for texts."""
        record = self.record(plugin)
        return f"{record.distribution} {record.version}" if record else "this process"

    def ships(self, plugin: str) -> bool:
        """Whether a plugin is of this distribution, or the core itself."""
        record = self.record(plugin)
        return plugin in (BUILTIN, _PML_NAME) or (record is not None and _ships(record.distribution))

    # Classes of the running process

    def add_local(self, component: Component) -> None:
        """Adds a class of the running process; one of the same name and kind is replaced."""
        component = checked(component, LOCAL)
        with self._lock:
            self.load()
            key = (component.qualified_name, component.kind)
            self.components = [c for c in self.components if (c.qualified_name, c.kind) != key] + [component]

    def forget_local(self) -> None:
        """Forgets the classes of the running process."""
        self.components = [component for component in self.components if component.plugin != LOCAL]


# Helpers


def _names_in(variable: str) -> set[str] | None:
    value = os.environ.get(variable)
    return None if value is None else {name.strip() for name in value.split(",") if name.strip()}


def _distribution(point: metadata.EntryPoint) -> str:
    return point.dist.name if point.dist else "unknown"


def _entry_points() -> Sequence[metadata.EntryPoint]:
    """Each once, those of this distribution first, so that nobody takes their names."""
    points: dict[tuple[str, str, str], metadata.EntryPoint] = {}
    for point in metadata.entry_points(group=GROUP):
        # an editable install and its folder on the path both show the same one
        points.setdefault((point.name, point.value, _distribution(point)), point)
    return sorted(points.values(), key=lambda point: (not _ships(_distribution(point)), point.name))


def _ships(distribution: str) -> bool:
    return distribution.replace("_", "-").lower() == SHIPPED


def _being_imported(module: str) -> bool:
    """Whether a module, or a package that it is in, is being imported by somebody else right now."""
    parts = module.split(".")
    specs = (getattr(sys.modules.get(".".join(parts[:n])), "__spec__", None) for n in range(1, len(parts) + 1))
    return any(getattr(spec, "_initializing", False) for spec in specs)
