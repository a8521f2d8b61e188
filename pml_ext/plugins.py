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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from importlib.resources.abc import Traversable
from typing import Any

import pluggy

from . import hookspecs
from .components import CAPABILITIES, Component, Paper, capabilities, pml_components
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
        status: ``"ok"``, ``"broken"``, ``"blocked"`` (by PML_EXT_BLOCK), ``"not allowed"`` (by PML_EXT_PLUGINS) or
            ``"waiting"`` (somebody is importing it right now).
        error: why it is broken.
        components: the number of its components.
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
        self._warnings: list[str] = []
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
            finally:
                self.loading = False
        self._emit_warnings()

    def _read_entry_points(self) -> list[tuple[PluginRecord, metadata.EntryPoint]]:
        """Record each entry point and return those to load."""
        points: dict[tuple[str, str, str], metadata.EntryPoint] = {}
        for point in metadata.entry_points(group=GROUP):
            # an editable install and its folder on the path both show the same one
            points.setdefault((point.name, point.value, point.dist.name if point.dist else ""), point)
        found = [
            (PluginRecord(p.name, p.dist.name if p.dist else "unknown", p.dist.version if p.dist else "", p.value), p)
            for p in points.values()
        ]
        found.sort(key=lambda pair: (not pair[0].shipped, pair[0].name))
        names = [point.name for _, point in found]
        allowed, blocked = (_names_in(variable, names) for variable in ("PML_EXT_PLUGINS", "PML_EXT_BLOCK"))
        self.records = [record for record, _ in found]
        for record in self.records:
            if blocked is not None and record.name in blocked:
                record.status = "blocked"
            elif allowed is not None and record.name not in allowed:
                record.status = "not allowed"
        return [(record, point) for record, point in found if record.status == "waiting"]

    def _load_one(self, record: PluginRecord, point: metadata.EntryPoint) -> None:
        if not _KEBAB.fullmatch(point.name) or point.name in RESERVED:
            names = " or ".join(map(repr, RESERVED))
            raise PluginError(f"an entry point's name is kebab-case and not {names}, not {point.name!r}")
        if point.name in self._hooks:
            raise PluginError(
                f"another distribution already claims the entry-point name {point.name!r}; rename one of them"
            )
        started = time.perf_counter()
        try:
            self._add(point.name, point.load())
        finally:
            record.seconds = time.perf_counter() - started
        record.status, record.hooks = "ok", [hook for hook in HOOKS if hook in self._hooks[point.name]]
        record.components = sum(component.plugin == point.name for component in self.components)
        self.loaded[point.name] = record
        if record.seconds > SLOW and not record.shipped:
            self._warnings.append(
                f"the plugin {record} took {record.seconds:.1f} s to import (PML_EXT_BLOCK={record.name} leaves it out)"
            )

    def _add(self, name: str, module: object) -> None:
        """Take a plugin's hooks, components and recipes; all or nothing."""
        hooks = _hooks_of(module)
        components = [*_components(hooks["pml_ext_components"](), name)] if "pml_ext_components" in hooks else []
        recipes = _recipes(hooks["pml_ext_recipes"](), name) if "pml_ext_recipes" in hooks else {}
        self._hooks[name] = hooks
        self.components += components
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
            self._warnings.append(
                f"the plugin {record} is broken and {f'the answer of {hook}' if hook else 'it'} was left out: "
                f"{one_line(error)} (pml-ext plugins -v shows where; PML_EXT_BLOCK={record.name} leaves it out)"
            )

    def _emit_warnings(self) -> None:
        """Emit the collected warnings, outside of all work that an error would leave half done."""
        while self._warnings:
            warnings.warn(self._warnings.pop(0), PluginWarning, stacklevel=3)

    def table(self, hook: str) -> dict[str, dict[str, Any]]:
        """Return the answers of a hook that gives ``{name: ...}``, by plugin; each plugin's hook is called once."""
        self.load()
        with self._lock:
            tables = self._tables.setdefault(hook, {})
            for plugin in [name for name, hooks in self._hooks.items() if hook in hooks and name not in tables]:
                tables[plugin] = {}
                call = functools.partial(self._call, plugin, hook)
                if plugin in self.loaded:
                    self._guarded(self.loaded[plugin], call, hook)
                    continue
                try:
                    call()
                except MissingExtraError as error:
                    self.lacking_extra[hook] = error
        self._emit_warnings()
        return tables

    def _call(self, plugin: str, hook: str) -> None:
        names = [component.name for component in self.components if component.plugin == plugin]
        self._tables[hook][plugin] = _table(hook, self._hooks[plugin][hook](), names)

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
        with self._lock:
            self.components = [c for c in self.components if (c.qualified_name, c.kind) != key] + [component]

    def forget_local(self) -> None:
        """Forget the classes of the running process."""
        self.components = [component for component in self.components if component.plugin != LOCAL]


def _names_in(variable: str, known: Sequence[str]) -> set[str] | None:
    """Return the plugins that an environment variable names; None if it is not set."""
    if variable not in os.environ:
        return None
    names = {name.strip() for name in os.environ[variable].split(",") if name.strip()}
    for name in sorted(names - {*known}):
        installed = ", ".join(known) or "none"
        raise PluginError(f"{variable}: {unknown('installed plugin', name, known)}; installed: {installed}")
    return names


def _being_imported(module: str) -> bool:
    """Return whether a module, or a package that it is in, is being imported by somebody else right now."""
    parts = module.split(".")
    specs = (getattr(sys.modules.get(".".join(parts[:n])), "__spec__", None) for n in range(1, len(parts) + 1))
    return any(getattr(spec, "_initializing", False) for spec in specs)


# Validation of what hooks return


def _hooks_of(module: object) -> dict[str, Callable[[], Any]]:
    """Return a plugin's hooks by name; raise for a marked function that is no hook and for an unmarked one that is."""
    for name, value in vars(module).items() if hasattr(module, "__dict__") else ():
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


def _listed(hook: str, answer: Any) -> Iterable[Any]:
    if isinstance(answer, (str, bytes, Mapping)) or not isinstance(answer, Iterable):
        raise PluginError(f"{hook} returned {answer!r}; it must return a list")
    return answer


def _components(answer: Any, plugin: str) -> Iterator[Component]:
    seen: dict[tuple[str, str], type] = {}
    for component in _listed("pml_ext_components", answer):
        component = _checked(component, plugin)
        key = (component.kind, component.name)
        if key in seen:
            classes = " and ".join(dict.fromkeys((seen[key].__name__, component.cls.__name__)))
            raise PluginError(
                f"pml_ext_components names the {component.kind} {component.name!r} twice ({classes}); "
                "names are unique per kind"
            )
        seen[key] = component.cls
        yield component


def _checked(component: Any, plugin: str) -> Component:
    """Return a component with its plugin's name; raise PluginError or, for a class of no kind, TypeError."""
    if not isinstance(component, Component):
        raise PluginError(f"pml_ext_components must return Component(...) entries, not {component!r}")
    if not isinstance(component.cls, type):
        raise PluginError(f"a component is a class, not {component.cls!r}")
    if not isinstance(component.name, str) or not _KEBAB.fullmatch(component.name):
        raise PluginError(
            f"a component's name is kebab-case (letters a-z, digits, single hyphens), not {component.name!r}"
        )
    if component.paper is not None and not isinstance(component.paper, Paper):
        raise PluginError(f"{component.name}: paper must be a Paper(...), not {component.paper!r}")
    _ = component.kind, component.summary, component.settings  # raise for a class that has none
    wrapper = isinstance(inspect.getattr_static(component.cls, "capabilities", None), property)  # asks what it wraps
    if others := set() if wrapper else set(capabilities(component.cls)) - CAPABILITIES:
        raise PluginError(f"{component.name}: unknown capabilities {sorted(others)}; known are {sorted(CAPABILITIES)}")
    return dataclasses.replace(component, plugin=plugin)


def _recipes(answer: Any, plugin: str) -> dict[str, Traversable]:
    files: dict[str, Traversable] = {}
    for folder in _listed("pml_ext_recipes", answer):
        if not hasattr(folder, "iterdir") or not folder.is_dir():
            raise PluginError(
                f"pml_ext_recipes names {str(folder)!r}, which is no folder of a package; write "
                'importlib.resources.files(__name__) / "recipes"'
            )
        for name, file in _recipe_files(plugin, folder):
            if name in files:
                raise PluginError(f"two files are the recipe {name!r}: {files[name]} and {file}; rename one of them")
            files[name] = file
    return files


def _recipe_files(prefix: str, folder: Traversable) -> Iterator[tuple[str, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _recipe_files(f"{prefix}/{entry.name}", entry)
        elif entry.name.endswith(".toml"):
            yield f"{prefix}/{entry.name.removesuffix('.toml')}", entry


def _table(hook: str, answer: Any, components: Sequence[str]) -> dict[str, Any]:
    if not isinstance(answer, Mapping) or not all(isinstance(key, str) for key in answer):
        raise PluginError(f"{hook} returned {answer!r}; it must return a mapping with names as keys")
    for name, value in answer.items():
        if problem := TABLES[hook](name, value, components):
            raise PluginError(f"{hook}: {problem}")
    return dict(answer)


def _factory_problem(name: str, factory: Any, _: Sequence[str]) -> str:
    if not re.fullmatch(r"[^\s:@]+", name):
        return f"a name has no space, ':' or '@' in it, not {name!r}"
    return "" if callable(factory) else f"{name!r} is {factory!r}, wanted a function that makes it"


def _metric_problem(name: str, metric: Any, _: Sequence[str]) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        return f"a metric's name is snake_case, my_metric, not {name!r}"
    return "" if callable(metric) else f"{name!r} is {metric!r}, wanted a function calculate_{name}(**kwargs)"


def _file_problem(name: str, file: Any, _: Sequence[str]) -> str:
    if not _KEBAB.fullmatch(name):
        return f"a paper's name is kebab-case, my-paper, not {name!r}"
    if hasattr(file, "read_text") and hasattr(file, "is_file") and file.is_file():
        return ""
    return (
        f"{name!r} is {str(file)!r}, wanted a file of the package; write "
        'importlib.resources.files(__name__) / "papers" / "mine.toml"'
    )


def _peers_problem(name: str, peers: Any, components: Sequence[str]) -> str:
    if name not in components:
        return f"{name!r} is no component of this plugin; it has {', '.join(components) or 'none'}"
    good = isinstance(peers, Mapping) and all(map(callable, peers.values()))
    return "" if good else f"{name!r} is {peers!r}, wanted {{label: function}}"


# The hooks that return {name: ...}, with the check of an entry.
TABLES: dict[str, Callable[[str, Any, Sequence[str]], str]] = {
    "pml_ext_papers": _file_problem,
    "pml_ext_datasets": _factory_problem,
    "pml_ext_trunks": _factory_problem,
    "pml_ext_metrics": _metric_problem,
    "pml_ext_benchmark_peers": _peers_problem,
}
