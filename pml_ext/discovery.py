"""Finds plugins by entry points of group ``pml_ext``, each in a guard of its own, and asks their hooks.

See :mod:`pml_ext.hookspecs` for what a plugin may answer. Importing this module imports no plugin.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import os
import re
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from importlib.resources.abc import Traversable
from typing import Any

import pluggy

from . import hookspecs
from .catalogue import pml_classes
from .components import CAPABILITIES, Component, Paper, capabilities, kind_of
from .errors import PluginError, PluginWarning

GROUP = "pml_ext"
LOCAL = "local"  # the plugin name of classes registered in the running process
BUILTIN = "pml"  # the plugin name of what the core itself registers; not open to entry points
_PML_NAME = "pytorch-metric-learning"  # the plugin name of PML's own classes
_BUILTIN_MODULE = "pml_ext.builtin"
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_TABLES = ("pml_ext_datasets", "pml_ext_trunks", "pml_ext_benchmark_peers")  # hooks that return {name: ...}
_PML = Paper("PyTorch Metric Learning", "Musgrave et al.", 2020, "https://arxiv.org/abs/2008.09164")


@dataclasses.dataclass
class PluginRecord:
    """An entry point and what became of it.

    Args:
        name: the entry point's name.
        distribution: the distribution that declares it.
        version: that distribution's version.
        module: what the entry point names.
        status: ``"ok"``, ``"broken"``, ``"blocked"`` (by PML_EXT_BLOCK) or ``"not allowed"`` (by PML_EXT_PLUGINS).
        error: why it is broken.
    """

    name: str
    distribution: str
    version: str
    module: str
    status: str = "ok"
    error: str = ""


class Discovery:
    """What plugins offer, with PML's own classes and the components registered by the running process.

    Entry points are read once, by :meth:`load`. Each is imported, checked and asked in a guard of its own: one that
    fails is reported in a :class:`PluginWarning`, recorded as broken, and otherwise ignored. The environment variable
    ``PML_EXT_PLUGINS`` is an allow-list of entry-point names, comma-separated (empty: none), ``PML_EXT_BLOCK`` a
    deny-list.

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

    def load(self) -> None:
        """Reads the entry points, unless that was done already."""
        with self._lock:
            if self._loaded or self.loading:
                return
            self.loading = True
            try:
                self._adopt(BUILTIN, importlib.import_module(_BUILTIN_MODULE))
                self.components += [Component(cls, name, _PML, plugin=_PML_NAME) for name, cls in pml_classes()]
                self._load_entry_points()
                self._loaded = True
            finally:
                self.loading = False

    def _load_entry_points(self) -> None:
        allowed, blocked = _names_in("PML_EXT_PLUGINS"), _names_in("PML_EXT_BLOCK") or set()
        seen: set[tuple[str, str, str]] = set()
        for point in sorted(metadata.entry_points(group=GROUP), key=lambda point: point.name):
            distribution = point.dist.name if point.dist else "unknown"
            key = (point.name, point.value, distribution)
            if key in seen:  # an editable install and its folder on the path both show the same one
                continue
            seen.add(key)
            record = PluginRecord(point.name, distribution, point.dist.version if point.dist else "", point.value)
            self.records.append(record)
            if point.name in blocked:
                record.status = "blocked"
            elif allowed is not None and point.name not in allowed:
                record.status = "not allowed"
            else:
                self._guarded(record, functools.partial(self._load_one, point))
        for name in sorted((allowed or set()) - {record.name for record in self.records}):
            installed = ", ".join(sorted({record.name for record in self.records})) or "none"
            warnings.warn(f"PML_EXT_PLUGINS names {name!r}, which is not installed (installed: {installed})",
                          PluginWarning, stacklevel=2)  # fmt: skip

    def _load_one(self, point: metadata.EntryPoint) -> None:
        if not _NAME.fullmatch(point.name) or point.name in (LOCAL, BUILTIN):
            raise PluginError(
                f"an entry point's name is kebab-case and not {LOCAL!r} or {BUILTIN!r}, not {point.name!r}"
            )
        if self._manager.has_plugin(point.name):
            raise PluginError(f"another distribution already claims the entry-point name {point.name!r}; "
                              "rename one of them")  # fmt: skip
        self._adopt(point.name, point.load())

    def _adopt(self, name: str, plugin: object) -> None:
        """Registers a plugin's module, checks its hooks, and takes what it offers; all or nothing."""
        self._manager.register(plugin, name=name)
        try:
            self._manager.check_pending()
            components = [_checked(component, name) for component in _flatten(self._ask(name, "pml_ext_components"))]
            recipes = dict(_recipes_in(name, _flatten(self._ask(name, "pml_ext_recipes"))))
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

    def _ask(self, plugin: str, hook: str) -> list[Any]:
        others = [other for name, other in self._manager.list_name_plugin() if name != plugin]
        return list(self._manager.subset_hook_caller(hook, others)())

    def _guarded(self, record: PluginRecord, action: Callable[[], None]) -> None:
        """Runs one plugin's code; if it fails, the plugin is recorded as broken and reported."""
        try:
            action()
        except (Exception, SystemExit) as error:
            record.status, record.error = "broken", f"{type(error).__name__}: {error}"
            warnings.warn(
                f"the plugin {record.name!r} of {record.distribution} {record.version} is broken and was left out: "
                f"{record.error} (PML_EXT_BLOCK={record.name} leaves it out silently)", PluginWarning, stacklevel=2,
            )  # fmt: skip

    def ask_all(self) -> None:
        """Asks every hook of every plugin, so that a broken one is known."""
        for hook in _TABLES:
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
            return self._tables[hook]

    def _take_table(self, plugin: str, hook: str) -> None:
        try:
            self._tables[hook][plugin] = self._table(plugin, hook)
        except BaseException:
            self._drop(plugin)
            raise

    def _table(self, plugin: str, hook: str) -> dict[str, Any]:
        table: dict[str, Any] = {}
        for answer in self._ask(plugin, hook):
            if not isinstance(answer, Mapping) or not all(isinstance(key, str) for key in answer):
                raise PluginError(f"{hook} must return a mapping with names as keys, not {answer!r}")
            table |= answer
        return table

    def owner(self, plugin: str) -> str:
        """The distribution and version of a plugin, for texts."""
        records = [record for record in self.records if record.name == plugin and record.status == "ok"]
        return f"{records[0].distribution} {records[0].version}" if records else "this process"

    # Classes of the running process

    def add_local(self, component: Component) -> None:
        """Adds a class of the running process; one of the same name and kind is replaced."""
        component = _checked(component, LOCAL)
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


def _flatten(answers: Sequence[Any]) -> Iterator[Any]:
    for answer in answers:
        if isinstance(answer, (str, bytes)) or not isinstance(answer, Iterable):
            raise PluginError(f"a hook must return a list, not {answer!r}")
        yield from answer


def _checked(component: Any, plugin: str) -> Component:
    if not isinstance(component, Component):
        raise PluginError(f"pml_ext_components must return Component(...) entries, not {component!r}")
    if not isinstance(component.cls, type):
        raise PluginError(f"a component is a class, not {component.cls!r}")
    if not _NAME.fullmatch(component.name):
        raise PluginError(
            f"a component's name is kebab-case (letters a-z, digits, single hyphens), not {component.name!r}"
        )
    if component.paper is not None and not isinstance(component.paper, Paper):
        raise PluginError(f"{component.name}: paper must be a Paper(...), not {component.paper!r}")
    kind_of(component.cls)
    unknown = set(capabilities(component.cls)) - CAPABILITIES if _declares_plainly(component.cls) else set()
    if unknown:
        raise PluginError(f"{component.name}: unknown capabilities {sorted(unknown)}; known are {sorted(CAPABILITIES)}")
    return dataclasses.replace(component, plugin=plugin)


def _declares_plainly(cls: type) -> bool:
    """Whether ``capabilities`` is a plain value of the class; a wrapper may have a property that asks what it wraps."""
    return not isinstance(inspect.getattr_static(cls, "capabilities", None), property)


def _recipes_in(plugin: str, folders: Iterable[Traversable]) -> Iterator[tuple[str, Traversable]]:
    for folder in folders:
        if not folder.is_dir():
            raise PluginError(f"pml_ext_recipes of {plugin!r} names {folder}, which is not a folder")
        yield from _recipe_files(plugin, folder)


def _recipe_files(prefix: str, folder: Traversable) -> Iterator[tuple[str, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _recipe_files(f"{prefix}/{entry.name}", entry)
        elif entry.name.endswith(".toml"):
            yield f"{prefix}/{entry.name.removesuffix('.toml')}", entry
