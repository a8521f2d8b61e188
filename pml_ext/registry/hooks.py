"""The hooks that a plugin may implement. A plugin is a module named by an entry point of group ``pml_ext``.

.. code-block:: toml

    [project.entry-points.pml_ext]
    mine = "my_package"

A hook is a function of ``my_package`` with one of these names, marked with :data:`pml_ext.plugin.hookimpl`; a marked
function of another name is an error. All hooks are optional.
"""

from __future__ import annotations

import dataclasses
import importlib.resources
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, NamedTuple

import pluggy

from ..errors import PluginError, shortened, unknown
from .components import KINDS, Command, Component, Paper

hookspec = pluggy.HookspecMarker("pml_ext")
hookimpl = pluggy.HookimplMarker("pml_ext")


def packaged(module: str) -> tuple[Callable[[], list[Traversable]], Callable[[], dict[str, Traversable]]]:
    """Return the hooks ``pml_ext_recipes`` and ``pml_ext_papers`` of a package with folders ``recipes``, ``papers``."""
    files = importlib.resources.files(module)

    @hookimpl
    def recipes() -> list[Traversable]:
        return [files / "recipes"]

    @hookimpl
    def papers() -> dict[str, Traversable]:
        found = (files / "papers").iterdir()
        return {file.name.removesuffix(".toml"): file for file in found if file.name.endswith(".toml")}

    return recipes, papers


@hookspec
def pml_ext_components() -> Sequence[Component]:  # type: ignore[empty-body]
    """Return classes to register, as components; names are kebab-case and unique per kind."""


@hookspec
def pml_ext_recipes() -> Sequence[Traversable]:  # type: ignore[empty-body]
    """Return folders of the package; a file ``sub/name.toml`` in one becomes the recipe ``ENTRY-POINT/sub/name``."""


@hookspec
def pml_ext_papers() -> Mapping[str, Traversable]:  # type: ignore[empty-body]
    """Return files with tables of papers, by name; a recipe refers to one by ``[paper] table = "mine/2"``."""


@hookspec
def pml_ext_datasets() -> Mapping[str, Callable[..., Any]]:  # type: ignore[empty-body]
    """Return factories of data sets by name; called when a data set is first looked up.

    For a recipe's ``[data]`` table, ``factory(root, **options)`` returns a :class:`pml_ext.plugin.DataSplits` or raises
    :class:`pml_ext.errors.DataError`. ``root`` is the :class:`pathlib.Path` of ``--data`` or None. ``options`` are the
    keys of the table that are parameters of the factory.
    """


@hookspec
def pml_ext_trunks() -> Mapping[str, Callable[..., Any]]:  # type: ignore[empty-body]
    """Return factories of networks from images ``[B, C, H, W]`` to features ``[B, F]``, by name.

    ``factory(in_channels, image_size, **options)`` gets its options from the table ``[model.trunk]``.
    """


@hookspec
def pml_ext_transforms() -> Mapping[str, Callable[..., Any]]:  # type: ignore[empty-body]
    """Return factories of transforms of training images by name, for ``transforms`` of ``[data.augment]``.

    ``factory(**options)`` returns a function from an image, uint8 ``[C, H, W]``, to one of the same type and shape. It
    draws random numbers from torch's generator alone, and can be pickled. ``options`` are the settings in the recipe.
    """


@hookspec
def pml_ext_metrics() -> Mapping[str, Callable[..., Any]]:  # type: ignore[empty-body]
    """Return metrics by name (``snake_case``), in the form of PML's ``calculate_NAME``.

    ``function(**kwargs)`` returns a number. It gets the arguments of PML's methods: ``query_labels`` ``[Q]``,
    ``knn_labels`` and ``knn_distances`` ``[Q, K]`` (nearest first; in a run K is the size of the largest class),
    ``not_lone_query_mask``, ``label_counts``, ``query``, ``reference``; ``cluster_labels`` ``[Q]`` if a parameter.
    """


@hookspec
def pml_ext_trackers() -> Mapping[str, Callable[..., Any]]:  # type: ignore[empty-body]
    """Return factories of :class:`pml_ext.plugin.Tracker` by name, for a recipe's ``[track]`` and ``--track``.

    Rank 0 calls ``factory(folder, recipe, **options)`` when a run starts and again when it is resumed. ``recipe`` has
    the settings by dotted key. ``options`` are the keys of the table that are parameters of the factory. The parameters
    ``iteration`` and ``epoch``, if it has them, get those of the checkpoint that the run resumes from.
    """


@hookspec
def pml_ext_stores() -> Mapping[str, Callable[..., Any]]:  # type: ignore[empty-body]
    """Return factories of :class:`pml_ext.plugin.Store` by scheme, for ``--to SCHEME:ADDRESS`` and ``--store``.

    ``factory(address, table, size)`` gets the text after the colon, the name of a table for one state of a network,
    and the embedding size.
    """


@hookspec
def pml_ext_services() -> Mapping[str, Callable[..., Any]]:  # type: ignore[empty-body]
    """Return what a tool does for other tools, by name: functions without arguments that return an object.

    A tool imports no other; ``pml_ext.registry.service("stores", "--to STORE")`` calls the function of the service
    ``stores``. The methods of a service are written in :mod:`pml_ext_train.retrieval`.
    """


@hookspec
def pml_ext_checks() -> Mapping[str, Callable[..., Any]]:  # type: ignore[empty-body]
    """Return the conformance checks of kinds that this tool uses, by kind: ``{"store": check_store}``.

    ``pml-ext check`` calls ``check_store(named)`` with a :class:`pml_ext.testing.Named`, the name and the factory of a
    plugin. It returns a line about what was tried, raises AssertionError with a finding, and
    :class:`pml_ext.testing.SkipCheck` with the reason why it cannot try.
    """


@hookspec
def pml_ext_commands() -> Mapping[str, Command]:  # type: ignore[empty-body]
    """Return commands of ``pml-ext`` by name (kebab-case).

    ``Command("my_package.commands:my_command", "One line for --help.")`` names a function with typer's annotations. Its
    module is imported when the command is called, so that ``pml-ext --help`` stays fast. The function imports torch
    when it runs.
    """


_FUNCTION = "a function (and a name without space, ':' and '@')"
_KEBAB_FUNCTION = "a function (and a name in kebab-case)"
KEBAB = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
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


class HookTable(NamedTuple):
    """What a hook's mapping has: names, and values of one kind, such as data sets."""

    kind: str
    names: re.Pattern[str]  # of valid names
    is_valid: Callable[[Any], bool]  # whether the hook may return a value
    wanted: str  # valid values and names in words, for errors


# By hook.
TABLES = {
    "pml_ext_datasets": HookTable("data set", _NAME, callable, _FUNCTION),
    "pml_ext_trunks": HookTable("trunk", _NAME, callable, _FUNCTION),
    "pml_ext_transforms": HookTable("transform", _NAME, callable, _FUNCTION),
    "pml_ext_metrics": HookTable(
        "metric", re.compile("[a-z][a-z0-9_]*"), _is_metric, "a function(**kwargs) (and a name in snake_case)"
    ),
    "pml_ext_trackers": HookTable("tracker", KEBAB, callable, _KEBAB_FUNCTION),
    "pml_ext_commands": HookTable(
        "command",
        KEBAB,
        _is_command,
        'Command("package.module:function", "One line for --help.") (and a name in kebab-case)',
    ),
    "pml_ext_stores": HookTable("store", KEBAB, callable, _KEBAB_FUNCTION),
    "pml_ext_services": HookTable("service", KEBAB, callable, _KEBAB_FUNCTION),
    "pml_ext_checks": HookTable(
        "check", re.compile("[^:@]+"), callable, "a function (and the name of a kind, such as 'store')"
    ),
    "pml_ext_papers": HookTable(
        "paper",
        KEBAB,
        lambda value: isinstance(value, Path) and value.is_file(),
        'a file: importlib.resources.files(__name__) / "papers/mine.toml"',
    ),
}

# The hook that names things of a kind. "class" are the classes of components, by the names of the classes.
HOOK_OF = {
    **dict.fromkeys(KINDS, "pml_ext_components"),
    "recipe": "pml_ext_recipes",
    **{table.kind: hook for hook, table in TABLES.items()},
    "class": "pml_ext_components",
}

Entry = tuple[str, str, Any]  # kind, name and value of what a plugin registers


def check_marks(module: object) -> None:
    """Raise PluginError for what is no module with hooks, and for a hook that is not marked as one."""
    if not hasattr(module, "__dict__"):
        raise PluginError(f"its entry point names {shortened(repr(module), 100)}; wanted a module with hooks")
    for name, value in vars(module).items():
        marked = hasattr(value, "pml_ext_impl")
        if not inspect.isfunction(value) or name.startswith("_") or not (marked or name.startswith("pml_ext_")):
            continue
        if name not in HOOK_OF.values():
            raise PluginError(unknown("hook", name, HOOK_OF.values()))
        if not marked:
            advice = f"write 'from pml_ext.plugin import hookimpl', and '@hookimpl' above 'def {name}'"
            raise PluginError(f"{name} is not marked as a hook, so that nobody would call it; {advice}")
        if inspect.signature(value).parameters:
            raise PluginError(f"the hook {name} takes no arguments; found {inspect.signature(value)}")


def entries(hook: str, plugin: str, answer: Any) -> list[Entry]:
    """Return what a hook's answer registers; PluginError if any of it is wrong."""
    if hook == "pml_ext_components":
        return _entries_of_components(plugin, answer)
    if hook == "pml_ext_recipes":
        return _entries_of_recipes(plugin, answer)
    return _entries_of_table(hook, answer)


def _entries_of_components(plugin: str, answer: Any) -> list[Entry]:
    components: dict[tuple[str, str], Component] = {}
    found: list[Entry] = []
    for each in _listed("pml_ext_components", answer, "Component(...) entries"):
        component = validated(each, plugin)
        other = components.setdefault((component.kind, component.name), component)
        if other is not component:
            twice = f"{component.kind} {component.name!r} twice ({other.class_name} and {component.class_name})"
            raise PluginError(f"pml_ext_components names the {twice}; names are unique per kind")
        found += entries_of_component(component)
    return found


def entries_of_component(component: Component) -> list[Entry]:
    """Return a component under its name, and under the name of its class."""
    return [(component.kind, component.name, component), ("class", component.class_name, component)]


def _entries_of_recipes(plugin: str, answer: Any) -> list[Entry]:
    found: list[Entry] = []
    for folder in _listed("pml_ext_recipes", answer, "folders"):
        if not isinstance(folder, Path) or not folder.is_dir():
            wanted = 'importlib.resources.files(__name__) / "recipes"'
            raise PluginError(f"pml_ext_recipes names {str(folder)!r}, which is no folder of a package; write {wanted}")
        for file in sorted(folder.rglob("*.toml")):
            name = file.relative_to(folder).with_suffix("").as_posix()
            found.append(("recipe", f"{plugin}/{name}", file))
    return found


def _entries_of_table(hook: str, answer: Any) -> list[Entry]:
    table = TABLES[hook]
    if not isinstance(answer, Mapping):
        shown = shortened(repr(answer), 100)
        raise PluginError(f"{hook} returned {shown}; it must return a mapping with names as keys")
    for name, value in answer.items():
        if not (isinstance(name, str) and table.names.fullmatch(name) and table.is_valid(value)):
            raise PluginError(f"{hook}: {name!r} is {shortened(repr(value), 100)}, wanted {table.wanted}")
    return [(table.kind, name, value) for name, value in answer.items()]


def _listed(hook: str, answer: Any, wanted: str) -> list[Any]:
    if isinstance(answer, (str, bytes, Mapping)) or not isinstance(answer, Iterable):
        raise PluginError(f"{hook} returned {shortened(repr(answer), 100)}; it must return a list of {wanted}")
    return list(answer)


def validated(component: Any, plugin: str) -> Component:
    """Return a component with its plugin's name; PluginError if it is invalid, TypeError for a class of no kind."""
    if not isinstance(component, Component):
        raise PluginError(f"pml_ext_components must return Component(...) entries, not {component!r}")
    name, source, paper = component.name, component.source, component.paper
    rules = {
        "name": (isinstance(name, str) and KEBAB.fullmatch(name), "kebab-case (a-z, digits, single hyphens)"),
        "source": (isinstance(source, type) or _is_import_path(source), 'a class or its path, "package.module:Class"'),
        "named_kind": (component.named_kind in ("", *KINDS), f"one of {', '.join(KINDS)}"),
        "summary": (isinstance(component.summary, str), "text, one line"),
        "paper": (paper is None or isinstance(paper, Paper), "a Paper(...)"),
    }
    for field, (is_valid, wanted) in rules.items():
        if not is_valid:
            found = shortened(repr(getattr(component, field)), 100)
            raise PluginError(f"{field} of the component {name!r} is {found}, wanted {wanted}")
    named: Component = dataclasses.replace(component, plugin=plugin)
    _ = named.kind  # raises for a class without a kind
    if isinstance(source, type):
        _ = named.settings  # raises for a class whose signature cannot be read
    return named
