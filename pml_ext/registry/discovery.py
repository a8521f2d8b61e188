"""Plugins: entry points of group ``pml_ext``, loaded so that a broken one does not affect the others."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import os
import re
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import pluggy

from ..errors import (
    MissingExtraError,
    PluginError,
    PluginWarning,
    StoppedError,
    UnknownNameError,
    one_line,
    shortened,
    unknown,
)
from . import hooks as hookspecs
from .components import KINDS, Command, Component, Paper, pml_components
from .imports import package_of, place_in, reason_of

GROUP = "pml_ext"
ALLOW = "PML_EXT_PLUGINS"  # environment variables with names of entry points
BLOCK = "PML_EXT_BLOCK"
LOCAL = "local"  # plugin name of classes registered in the current process
BUILTIN = "pml"  # the plugin name of the core's own components; not open to entry points
RESERVED = (LOCAL, BUILTIN, "folder")  # "folder:PATH" is a data set

HOOKS = tuple(name for name in vars(hookspecs) if name.startswith("pml_ext_"))
_A_FILE = 'a file: importlib.resources.files(__name__) / "papers/mine.toml"'
_A_COMMAND = 'Command("package.module:function", "One line for --help.") (and a name in kebab-case)'
_A_METRIC = "a function(**kwargs) (and a name in snake_case)"
_KEBAB = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_SNAKE = re.compile("[a-z][a-z0-9_]*")
_NAME = re.compile(r"[^\s:@]+")
_IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")  # "package.module:name"


def _is_metric(value: Any) -> bool:
    """Return whether a value is a function that takes any keyword, as metrics are called with all that is known."""
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):  # not callable, or written in C
        return False
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def _is_command(value: Any) -> bool:
    return isinstance(value, Command) and _is_import_path(value.function) and isinstance(value.summary, str)


def _is_import_path(value: Any) -> bool:
    return isinstance(value, str) and _IMPORT_PATH.fullmatch(value) is not None


def _is_file(value: Any) -> bool:
    return isinstance(value, Path) and value.is_file()


class HookTable(NamedTuple):
    """A hook that returns a mapping from names to values of one kind, such as data sets."""

    hook: str
    names: re.Pattern[str]  # of valid names
    is_valid: Callable[[Any], bool]  # whether the hook may return a value
    wanted: str  # valid values and names in words, for errors


# By kind.
TABLES = {
    "data set": HookTable("pml_ext_datasets", _NAME, callable, "a function (and a name without space, ':' and '@')"),
    "trunk": HookTable("pml_ext_trunks", _NAME, callable, "a function (and a name without space, ':' and '@')"),
    "transform": HookTable("pml_ext_transforms", _NAME, callable, "a function (and a name without space, ':' and '@')"),
    "metric": HookTable("pml_ext_metrics", _SNAKE, _is_metric, _A_METRIC),
    "tracker": HookTable("pml_ext_trackers", _KEBAB, callable, "a function (and a name in kebab-case)"),
    "command": HookTable("pml_ext_commands", _KEBAB, _is_command, _A_COMMAND),
    "store": HookTable("pml_ext_stores", _KEBAB, callable, "a function (and a name in kebab-case)"),
    "service": HookTable("pml_ext_services", _KEBAB, callable, "a function (and a name in kebab-case)"),
    "check": HookTable("pml_ext_checks", _NAME, callable, "a function (and the name of a kind, such as 'store')"),
    "paper": HookTable("pml_ext_papers", _KEBAB, _is_file, _A_FILE),
}


@dataclasses.dataclass
class PluginRecord:
    """An entry point, its module and distribution, and the result of loading it."""

    name: str
    distribution: str
    version: str
    module: str
    status: str = "waiting"  # before its import; then "ok", "broken", "blocked" or "not allowed"
    error: str = ""  # the reasons, unless the status is "waiting" or "ok"
    hooks: list[str] = dataclasses.field(default_factory=list)
    components: int = 0
    commands: list[str] = dataclasses.field(default_factory=list)  # filled in by pml_ext.registry.diagnosis
    clashes: list[str] = dataclasses.field(default_factory=list)  # filled in by pml_ext.registry.diagnosis
    seconds: float = 0.0  # time to import it and call its first hooks
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
        reason = f"{type(error).__name__}: {error}"
        place = place_in(self.package, error)
        if place:
            reason = f"{reason}, in {place}"
        if hook:
            reason = f"{hook}: {reason}"
        self.status = "broken"
        self.error = f"{self.error}; {reason}" if self.error else reason
        self.traceback += "".join(traceback.format_exception(error))


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
                    waiting = self._read_entry_points()
                    self._add_builtin()
                    self._waiting = waiting  # last, so that nothing is missing after an interruption
                self._load_waiting(self._waiting)
            finally:
                self._loading = False

    def _add_builtin(self) -> None:
        """Add what the core and PML have."""
        hooks = _hooks_of(importlib.import_module("pml_ext.registry.builtin"))
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

    def _read_entry_points(self) -> list[tuple[PluginRecord, metadata.EntryPoint]]:
        """Record each entry point and return those to load."""
        points, unreadable = _entry_points()
        found = []
        for point in points:
            distribution, version = _distribution_of(point)
            found.append((PluginRecord(point.name, distribution, version, point.value), point))
        found.sort(key=lambda pair: (not pair[0].shipped, pair[0].name))
        self.records = [record for record, _ in found]
        self._leave_out(ALLOW, "not allowed")
        self._leave_out(BLOCK, "blocked")
        for record, error in unreadable:
            self.records.append(record)
            record.add_error(error)
            text = f"entry points of the distribution {record.distribution!r} cannot be read: {one_line(error)}"
            advice = f"plugins in it are left out; type: pip install --force-reinstall {record.distribution}"
            warnings.warn(f"{text} ({advice})", PluginWarning, stacklevel=4)
        return [(record, point) for record, point in found if record.status == "waiting"]

    def _leave_out(self, variable: str, status: str) -> None:
        """Set the status of plugins that an environment variable, the allow list or the deny list, leaves out."""
        names = [record.name for record in self.records]
        not_installed = sorted(_listed_in(variable).difference(names))
        if not_installed:
            name = not_installed[0]
            installed = ", ".join(names) or "none"
            raise PluginError(f"{variable}: {unknown('installed plugin', name, names)}; installed: {installed}")
        for record in self.records:
            if record.status == "waiting" and not _allowed_by(variable, record.name):
                record.status = status
                record.error = f"by {variable}"

    def _load_one(self, record: PluginRecord, point: metadata.EntryPoint) -> None:
        """Import a plugin, and add its components and recipes; its other hooks are called when they are needed."""
        if not _KEBAB.fullmatch(point.name) or point.name in RESERVED:
            raise PluginError(f"an entry point's name is kebab-case and none of {', '.join(RESERVED)}: {point.name!r}")
        if not metadata.EntryPoint.pattern.match(point.value):
            raise PluginError(
                f"its entry point is {shortened(point.value, 100)!r}; wanted a module, such as 'my_package'"
            )
        if point.name in self.loaded:
            raise PluginError(f"another distribution already claims the entry-point name {point.name!r}; rename one")
        started = time.perf_counter()
        try:
            hooks = _hooks_of(point.load())
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
        for each in _items(hooks, "pml_ext_components", "Component(...) entries"):
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
        for folder in _items(hooks, "pml_ext_recipes", "folders"):
            recipes += _recipe_files(plugin, folder)
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


EntryPoints = tuple[list[metadata.EntryPoint], list[tuple[PluginRecord, Exception]]]
"""Entry points, and a record of each distribution whose entry points cannot be read."""


def _entry_points() -> EntryPoints:
    """Return the entry points of all distributions; a damaged file of any of them stops importlib's function."""
    try:
        return list(metadata.entry_points(group=GROUP)), []
    except Exception:  # of a parser: anything
        return _readable_entry_points()


def _readable_entry_points() -> EntryPoints:
    """Read the entry points of one distribution after the other, which takes longer."""
    points: list[metadata.EntryPoint] = []
    unreadable: list[tuple[PluginRecord, Exception]] = []
    seen = set()  # the first distribution of a name on the path is meant
    for distribution in metadata.distributions():
        name = _metadata_of(distribution, "name")
        if name in seen:
            continue
        if name:
            seen.add(name)
        try:
            points += distribution.entry_points.select(group=GROUP)
        except Exception as error:
            version = _metadata_of(distribution, "version")
            unreadable.append((PluginRecord(name or "unknown", name or "unknown", version, ""), error))
    return points, unreadable


def _distribution_of(point: metadata.EntryPoint) -> tuple[str, str]:
    """Return name and version of an entry point's distribution, ``"unknown"`` and "" if its metadata have none."""
    if point.dist is None:
        return "unknown", ""
    return _metadata_of(point.dist, "name") or "unknown", _metadata_of(point.dist, "version")


def _metadata_of(distribution: metadata.Distribution, attribute: str) -> str:
    """Return the name or the version of a distribution; "" if its file ``METADATA`` is damaged or missing."""
    try:
        return str(getattr(distribution, attribute) or "")
    except Exception:  # depends on the version of Python
        return ""


def _listed_in(variable: str) -> set[str]:
    """Return the entry-point names in an environment variable, which separates them by commas."""
    names = {name.strip() for name in os.environ.get(variable, "").split(",")}
    return names - {""}


def _allowed_by(variable: str, name: str) -> bool:
    """Return whether an environment variable, the allow list or the deny list, lets a plugin in."""
    if variable not in os.environ:
        return True
    is_listed = name in _listed_in(variable)
    return is_listed if variable == ALLOW else not is_listed


def is_allowed(name: str) -> bool:
    """Return whether the allow list and the deny list let a plugin in, by the name of its entry point."""
    return _allowed_by(ALLOW, name) and _allowed_by(BLOCK, name)


def _being_imported(path: str) -> bool:
    """Return whether the module of an import path, or its top package, is being imported right now."""
    for name in (path.partition(":")[0], package_of(path)):
        spec = getattr(sys.modules.get(name), "__spec__", None)
        if getattr(spec, "_initializing", False):
            return True
    return False


def _hooks_of(module: object) -> dict[str, Callable[[], Any]]:
    """Return a plugin's hooks by name; raise for a marked function with an unknown name or an unmarked hook."""
    if not hasattr(module, "__dict__"):
        raise PluginError(f"its entry point names {shortened(repr(module), 100)}; wanted a module with hooks")
    for name, value in vars(module).items():
        if name.startswith("pml_ext_") and inspect.isfunction(value) and not hasattr(value, "pml_ext_impl"):
            advice = f"write 'from pml_ext.plugin import hookimpl', and '@hookimpl' above 'def {name}'"
            raise PluginError(f"{name} is not marked as a hook, so that nobody would call it; {advice}")
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(hookspecs)
    manager.register(module)
    manager.check_pending()
    functions = {}
    for caller in manager.get_hookcallers(module) or []:
        functions[caller.name] = caller.get_hookimpls()[0].function
    return functions


def _items(hooks: Mapping[str, Callable[[], Any]], hook: str, wanted: str) -> list[Any]:
    """Return the answer of a hook as a list, [] if the plugin has none; PluginError if it is no list."""
    if hook not in hooks:
        return []
    answer = hooks[hook]()
    if isinstance(answer, (str, bytes, Mapping)) or not isinstance(answer, Iterable):
        raise PluginError(f"{hook} returned {shortened(repr(answer), 100)}; it must return a list of {wanted}")
    return list(answer)


def validated(component: Any, plugin: str) -> Component:
    """Return a component with its plugin's name; PluginError if it is invalid, TypeError for a class of no kind."""
    if not isinstance(component, Component):
        raise PluginError(f"pml_ext_components must return Component(...) entries, not {component!r}")
    if not isinstance(component.name, str) or not _KEBAB.fullmatch(component.name):
        raise PluginError(f"a component's name is kebab-case (a-z, digits, single hyphens), not {component.name!r}")
    if not isinstance(component.source, type) and not _is_import_path(component.source):
        found = shortened(repr(component.source), 100)
        raise PluginError(f'{component.name!r} is {found}, wanted a class or its path, "package.module:Class"')
    if component.named_kind and component.named_kind not in KINDS:
        raise PluginError(f"named_kind of {component.name!r}: {unknown('kind', str(component.named_kind), KINDS)}")
    if not isinstance(component.summary, str):
        raise PluginError(f"summary of {component.name!r} must be text, one line; not {component.summary!r}")
    if component.paper is not None and not isinstance(component.paper, Paper):
        raise PluginError(f"paper of {component.name!r} must be a Paper(...), not {component.paper!r}")
    named: Component = dataclasses.replace(component, plugin=plugin)
    _ = named.kind  # raises for a class without a kind
    if not isinstance(named.source, str):
        _ = named.settings  # raises for a class whose signature cannot be read
    return named


def _recipe_files(plugin: str, folder: Any) -> list[tuple[str, Path]]:
    if not isinstance(folder, Path) or not folder.is_dir():
        wanted = 'importlib.resources.files(__name__) / "recipes"'
        raise PluginError(f"pml_ext_recipes names {str(folder)!r}, which is no folder of a package; write {wanted}")
    recipes = []
    for file in sorted(folder.rglob("*.toml")):
        if not file.is_file():
            continue
        name = file.relative_to(folder).with_suffix("").as_posix()
        recipes.append((f"{plugin}/{name}", file))
    return recipes
