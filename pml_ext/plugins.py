"""Plugins: entry points of group ``pml_ext``, each imported and called in a guard of its own.

:mod:`pml_ext.hookspecs` describes the hooks. Importing this module imports no plugin.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import importlib
import inspect
import os
import re
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from importlib.resources.abc import Traversable
from typing import Any

import pluggy

from . import hookspecs
from .components import CAPABILITIES, Component, capabilities, pml_components
from .errors import MissingExtraError, PluginError, PluginWarning, StoppedError, one_line, unknown

GROUP = "pml_ext"
LOCAL = "local"  # the plugin name of classes registered in the running process
BUILTIN = "pml"  # the plugin name of the core's own components; not open to entry points
RESERVED = (LOCAL, BUILTIN, "folder")  # "folder:PATH" is a data set
SHIPPED = "pml-ext"  # the distribution whose plugins come before others
SLOW = 2.0  # seconds of import after which a plugin of others is named

HOOKS = tuple(name for name in vars(hookspecs) if name.startswith("pml_ext_"))
_KEBAB = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@dataclasses.dataclass
class PluginRecord:
    """An entry point, the module that it names, the distribution that declares it, and what became of it.

    Args:
        status: ``"ok"``, ``"broken"`` (``error`` says why), ``"blocked"`` (by PML_EXT_BLOCK), ``"not allowed"`` (by
            PML_EXT_PLUGINS) or ``"waiting"`` (somebody is importing it right now).
        components: how many it has.
        clashes: names that others claim too, and what they mean; filled in by :func:`pml_ext.registry.plugins`.
        seconds: the time of importing it and calling its first hooks.
    """

    name: str
    distribution: str
    version: str
    module: str
    status: str = "waiting"
    error: str = ""
    hooks: list[str] = dataclasses.field(default_factory=list)
    components: int = 0
    clashes: list[str] = dataclasses.field(default_factory=list)
    seconds: float = 0.0
    traceback: str = ""

    def __str__(self) -> str:
        return f"{self.name!r} of {self.distribution} {self.version}"

    @property
    def shipped(self) -> bool:
        """True for a plugin of this distribution."""
        return self.distribution.replace("_", "-").lower() == SHIPPED


class Plugins:
    """The offers of all plugins, with PML's own classes and the components registered by the running process.

    Entry points are read once, those of this distribution first. A plugin that fails to load is reported in a
    :class:`PluginWarning`, recorded as broken, and otherwise ignored; a hook that is called later and fails costs what
    it offers. ``PML_EXT_PLUGINS`` is an allow list of entry-point names, comma-separated (empty: none),
    ``PML_EXT_BLOCK`` a deny list.
    """

    def __init__(self) -> None:
        self.records: list[PluginRecord] = []
        self.loaded: dict[str, PluginRecord] = {}
        self.components: list[Component] = []
        self.recipes: dict[str, Traversable] = {}
        self.loading = False  # whether plugins are being imported right now
        self.lacking_extra: dict[str, MissingExtraError] = {}  # by hook: the core's own failed on a bare install
        self._hooks: dict[str, dict[str, Callable[[], Any]]] = {}  # {plugin: {hook: function}}
        self._tables: dict[str, dict[str, dict[str, Any]]] = {}  # {hook: {plugin: {name: ...}}}
        self._waiting: list[tuple[PluginRecord, metadata.EntryPoint]] | None = None
        self._lock = threading.RLock()

    def load(self) -> None:
        """Load the plugins, unless that was done already.

        Raises:
            PluginError: PML_EXT_PLUGINS or PML_EXT_BLOCK names a plugin that is not installed.
        """
        with self._lock:
            if self.loading or self._waiting == []:
                return
            self.loading = True
            try:
                if self._waiting is None:
                    self._waiting = self._read_entry_points()
                    self._add(BUILTIN, importlib.import_module("pml_ext.builtin"))
                    self.components += pml_components()
                for record, point in list(self._waiting):
                    if not _being_imported(point.module):  # its hooks are not there yet
                        self._waiting.remove((record, point))
                        self._guarded(record, functools.partial(self._load_one, record, point))
                        if record.seconds > SLOW and not record.shipped:
                            leave_out = f"(PML_EXT_BLOCK={record.name} leaves it out)"
                            text = f"the plugin {record} took {record.seconds:.1f} s to import {leave_out}"
                            warnings.warn(text, PluginWarning, stacklevel=2)
            finally:
                self.loading = False

    def _read_entry_points(self) -> list[tuple[PluginRecord, metadata.EntryPoint]]:
        """Record each entry point and return those to load."""
        points = {}  # an editable install and its folder on the path both show the same one
        for point in metadata.entry_points(group=GROUP):
            name, version = (point.dist.name, point.dist.version) if point.dist else ("unknown", "")
            points[point.name, point.value, name] = PluginRecord(point.name, name, version, point.value), point
        found = sorted(points.values(), key=lambda pair: (not pair[0].shipped, pair[0].name))
        self.records = [record for record, _ in found]
        names = [record.name for record in self.records]
        for variable, status in (("PML_EXT_PLUGINS", "not allowed"), ("PML_EXT_BLOCK", "blocked")):
            if variable not in os.environ:
                continue
            listed = {name.strip() for name in os.environ[variable].split(",") if name.strip()}
            for name in sorted(listed - {*names}):
                installed = ", ".join(names) or "none"
                raise PluginError(f"{variable}: {unknown('installed plugin', name, names)}; installed: {installed}")
            for record in self.records:
                if (record.name in listed) == (status == "blocked"):
                    record.status = status
        return [(record, point) for record, point in found if record.status == "waiting"]

    def _load_one(self, record: PluginRecord, point: metadata.EntryPoint) -> None:
        name = point.name
        if not _KEBAB.fullmatch(name) or name in RESERVED:
            raise PluginError(
                f"an entry point's name is kebab-case and not {' or '.join(map(repr, RESERVED))}: {name!r}"
            )
        if name in self._hooks:
            raise PluginError(f"another distribution already claims the entry-point name {name!r}; rename one of them")
        started = time.perf_counter()
        try:
            self._add(name, point.load())
        finally:
            record.seconds = time.perf_counter() - started
        record.status, record.hooks = "ok", [hook for hook in HOOKS if hook in self._hooks[name]]
        record.components = sum(component.plugin == name for component in self.components)
        self.loaded[name] = record

    def _add(self, name: str, module: object) -> None:
        """Take a plugin's hooks, components and recipes; all or nothing."""
        hooks = _hooks_of(module)
        components: dict[tuple[str, str], Component] = {}
        for component in _listed(hooks, "pml_ext_components"):
            component = _checked(component, name)
            other = components.setdefault((component.kind, component.name), component)
            if other is not component:
                raise PluginError(
                    f"pml_ext_components names the {component.kind} {component.name!r} twice "
                    f"({other.cls.__name__} and {component.cls.__name__}); names are unique per kind"
                )
        recipes = dict(file for folder in _listed(hooks, "pml_ext_recipes") for file in _recipe_files(name, folder))
        self._hooks[name] = hooks
        self.components += components.values()
        self.recipes |= recipes

    def _guarded(self, record: PluginRecord, action: Callable[[], None], hook: str = "") -> None:
        """Run one plugin's code; if it fails, record the plugin as broken. Its output goes to stderr."""
        try:
            with contextlib.redirect_stdout(sys.stderr):
                action()
        except (KeyboardInterrupt, StoppedError):
            raise
        except BaseException as error:  # SystemExit, and what test frameworks raise to skip
            where = f"{hook}: " if hook else ""
            record.status, record.error = "broken", f"{where}{type(error).__name__}: {error}"
            record.traceback = "".join(traceback.format_exception(error))
            warnings.warn(
                f"the plugin {record} is broken and {f'the answer of {hook}' if hook else 'it'} was left out: "
                f"{one_line(error)} (pml-ext plugins -v shows where; PML_EXT_BLOCK={record.name} leaves it out)",
                PluginWarning,
                stacklevel=2,
            )

    def table(self, hook: str) -> dict[str, dict[str, Any]]:
        """Return the answers of a hook that gives ``{name: ...}``, by plugin; each plugin's hook is called once."""
        self.load()
        with self._lock:
            tables = self._tables.setdefault(hook, {})
            for plugin in [name for name, hooks in self._hooks.items() if hook in hooks and name not in tables]:
                tables[plugin] = {}
                if plugin in self.loaded:
                    self._guarded(self.loaded[plugin], functools.partial(self._call, plugin, hook), hook)
                    continue
                try:
                    self._call(plugin, hook)
                except MissingExtraError as error:
                    self.lacking_extra[hook] = error
        return tables

    def _call(self, plugin: str, hook: str) -> None:
        answer = self._hooks[plugin][hook]()
        if not isinstance(answer, Mapping) or not all(isinstance(key, str) for key in answer):
            raise PluginError(f"{hook} returned {answer!r}; it must return a mapping with names as keys")
        form, serves, wanted = TABLES[hook]
        for name, value in answer.items():
            if not form.fullmatch(name) or not serves(value):
                raise PluginError(f"{hook}: {name!r} is {value!r}, wanted {wanted}")
        self._tables[hook][plugin] = dict(answer)

    def owner(self, plugin: str) -> str:
        """Return the distribution and version of a plugin, for error texts."""
        record = self.loaded.get(plugin)
        return f"{record.distribution} {record.version}" if record else "this process"

    def ships(self, plugin: str) -> bool:
        """Return whether a plugin is of this distribution, or the core itself."""
        return self.loaded[plugin].shipped if plugin in self.loaded else plugin != LOCAL

    def add_local(self, component: Component) -> None:
        """Add a class of the running process; one of the same name and kind is replaced."""
        component = _checked(component, LOCAL)
        self.load()
        key = (component.qualified_name, component.kind)
        self.components = [c for c in self.components if (c.qualified_name, c.kind) != key] + [component]


def _being_imported(module: str) -> bool:
    """Return whether a module, or the package that it is in, is being imported by somebody else right now."""
    specs = (getattr(sys.modules.get(name), "__spec__", None) for name in (module, module.partition(".")[0]))
    return any(getattr(spec, "_initializing", False) for spec in specs)


# Validation of what hooks return


def _hooks_of(module: object) -> dict[str, Callable[[], Any]]:
    """Return a plugin's hooks by name; raise for a marked function that is no hook and for an unmarked one that is."""
    for name, value in vars(module).items():
        if not name.startswith("pml_ext_") or not inspect.isfunction(value) or hasattr(value, "pml_ext_impl"):
            continue
        if near := difflib.get_close_matches(name, HOOKS, n=1, cutoff=0.8):
            raise PluginError(
                f"{name} is not marked as a hook, so that nobody would call it; for {near[0]} write "
                f"'from pml_ext.plugin import hookimpl', and '@hookimpl' above 'def {near[0]}'"
            )
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(hookspecs)
    manager.register(module)
    manager.check_pending()
    return {caller.name: caller.get_hookimpls()[0].function for caller in manager.get_hookcallers(module) or ()}


def _listed(hooks: Mapping[str, Callable[[], Any]], hook: str) -> Sequence[Any]:
    answer = hooks[hook]() if hook in hooks else ()
    if not isinstance(answer, (list, tuple)):
        raise PluginError(f"{hook} returned {answer!r}; it must return a list")
    return answer


def _checked(component: Any, plugin: str) -> Component:
    """Return a component with its plugin's name; raise PluginError or, for a class of no kind, TypeError."""
    if not isinstance(component, Component):
        raise PluginError(f"pml_ext_components must return Component(...) entries, not {component!r}")
    if not isinstance(component.name, str) or not _KEBAB.fullmatch(component.name):
        raise PluginError(
            f"a component's name is kebab-case (letters a-z, digits, single hyphens), not {component.name!r}"
        )
    _ = component.kind, component.settings  # raise for a class that has none
    wrapper = isinstance(inspect.getattr_static(component.cls, "capabilities", None), property)  # asks what it wraps
    if others := set() if wrapper else set(capabilities(component.cls)) - CAPABILITIES:
        raise PluginError(f"{component.name}: unknown capabilities {sorted(others)}; known are {sorted(CAPABILITIES)}")
    return dataclasses.replace(component, plugin=plugin)


def _recipe_files(prefix: str, folder: Any) -> Iterator[tuple[str, Traversable]]:
    if not hasattr(folder, "iterdir") or not folder.is_dir():
        raise PluginError(
            f"pml_ext_recipes names {str(folder)!r}, which is no folder of a package; write "
            'importlib.resources.files(__name__) / "recipes"'
        )
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _recipe_files(f"{prefix}/{entry.name}", entry)
        elif entry.name.endswith(".toml"):
            yield f"{prefix}/{entry.name.removesuffix('.toml')}", entry


def _is_file(value: Any) -> bool:
    return hasattr(value, "is_file") and value.is_file()


def _are_factories(value: Any) -> bool:
    return isinstance(value, Mapping) and all(map(callable, value.values()))


_NAME = re.compile(r"[^\s:@]+")
_PAPER = 'a file of the package: importlib.resources.files(__name__) / "papers" / "mine.toml"'
# The hooks that return {name: value}: the form of a name, whether a value serves, and what is wanted.
TABLES: dict[str, tuple[re.Pattern[str], Callable[[Any], bool], str]] = {
    "pml_ext_papers": (_KEBAB, _is_file, _PAPER),
    "pml_ext_datasets": (_NAME, callable, "a function (and a name without space, ':' and '@')"),
    "pml_ext_trunks": (_NAME, callable, "a function (and a name without space, ':' and '@')"),
    "pml_ext_metrics": (re.compile("[a-z][a-z0-9_]*"), callable, "a function (and a name in snake_case)"),
    "pml_ext_benchmark_peers": (_KEBAB, _are_factories, "{label: function}"),
}
