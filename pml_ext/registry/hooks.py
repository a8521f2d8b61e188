"""The hooks that a plugin may implement, in the module that its entry point names.

.. code-block:: toml

    [project.entry-points.pml_ext]
    mine = "my_package"

A hook is a function of ``my_package`` with one of these names, marked with :data:`pml_ext.plugin.hookimpl`.
"""

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
    """Return the hooks for a package's folders ``recipes`` and ``papers``."""
    files = importlib.resources.files(module)

    def papers() -> dict[str, Traversable]:
        found = (files / "papers").iterdir()
        return {file.name.removesuffix(".toml"): file for file in found if file.name.endswith(".toml")}

    return hookimpl(lambda: [files / "recipes"]), hookimpl(papers)


@hookspec
def pml_ext_components() -> Sequence[Component]:  # type: ignore[empty-body]
    """Return components; their names are kebab-case and unique per kind."""


@hookspec
def pml_ext_recipes() -> Sequence[Traversable]:  # type: ignore[empty-body]
    """Return folders of recipes: ``sub/name.toml`` becomes ``ENTRY-POINT/sub/name``."""


@hookspec
def pml_ext_papers() -> Mapping[str, Traversable]:  # type: ignore[empty-body]
    """Return files with papers' tables, by name, for ``[paper] table = "mine/2"``."""


@hookspec
def pml_ext_datasets() -> Mapping[str, Callable[..., Any]]:  # type: ignore[empty-body]
    """Return factories of data sets by name.

    ``factory(root, **options)`` returns a :class:`pml_ext.plugin.DataSplits` or raises
    :class:`pml_ext.errors.DataError`.
    ``root`` is the path of ``--data`` or None. ``options`` come from ``[data]``.
    """


@hookspec
def pml_ext_trunks() -> Mapping[str, Callable[..., Any]]:  # type: ignore[empty-body]
    """Return factories of networks from images ``[B, C, H, W]`` to features ``[B, F]``.

    They are called as ``factory(in_channels, image_size, **options)``, with the options of ``[model.trunk]``.
    """


@hookspec
def pml_ext_transforms() -> Mapping[str, Callable[..., Any]]:  # type: ignore[empty-body]
    """Return factories of augmentations by name, for ``transforms`` of ``[data.augment]``.

    ``factory(**options)`` returns a function of an image, uint8 ``[C, H, W]``, that keeps type and shape, can be
    pickled and uses only torch's random generator.
    """


@hookspec
def pml_ext_metrics() -> Mapping[str, Callable[..., Any]]:  # type: ignore[empty-body]
    """Return metrics by name (``snake_case``), functions like PML's ``calculate_NAME``.

    ``function(**kwargs)`` returns a number, given PML's arguments: ``query``, ``reference``, ``query_labels`` ``[Q]``,
    ``knn_labels`` and ``knn_distances`` ``[Q, K]`` (nearest first; in a run K is the size of the largest class),
    ``not_lone_query_mask``, ``label_counts``, and ``cluster_labels`` ``[Q]`` if it is a parameter.
    """


@hookspec
def pml_ext_trackers() -> Mapping[str, Callable[..., Any]]:  # type: ignore[empty-body]
    """Return factories of :class:`pml_ext.plugin.Tracker` by name, for ``[track]``, ``--track``.

    Rank 0 calls ``factory(folder, recipe, **options)`` when a run starts or resumes. ``recipe`` has the settings by
    dotted key; ``options`` come from ``[track]``. Parameters ``iteration`` and ``epoch`` get the checkpoint's values.
    """


@hookspec
def pml_ext_stores() -> Mapping[str, Callable[..., Any]]:  # type: ignore[empty-body]
    """Return factories of :class:`pml_ext.plugin.Store` by scheme, for ``--to SCHEME:ADDRESS``.

    In ``factory(address, table, size)``, ``table`` names one state of a network, and ``size`` is the embedding size.
    """


@hookspec
def pml_ext_services() -> Mapping[str, Callable[..., Any]]:  # type: ignore[empty-body]
    """Return services for other tools by name: functions that return an object.

    :func:`pml_ext.registry.service` calls them. :mod:`pml_ext_train.retrieval` has the protocol of each service.
    """


@hookspec
def pml_ext_checks() -> Mapping[str, Callable[..., Any]]:  # type: ignore[empty-body]
    """Return conformance checks by kind: ``{"store": check_store}``.

    ``check_store(named)`` gets a :class:`pml_ext.testing.Named`. It returns a line about what it tried, or raises
    AssertionError with a finding or :class:`pml_ext.testing.SkipCheck` with a reason.
    """


@hookspec
def pml_ext_commands() -> Mapping[str, Command]:  # type: ignore[empty-body]
    """Return commands of ``pml-ext`` by name (kebab-case).

    In ``Command("my_package.commands:my_command", "One line for --help.")`` the function has typer's annotations. Its
    module is imported when the command runs.
    """


_FUNCTION = "a function (and a name without space, ':' and '@')"
_KEBAB_FUNCTION = "a function (and a name in kebab-case)"
KEBAB = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_NAME = re.compile(r"[^\s:@]+")
_IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")  # "package.module:name"


def _is_metric(value: Any) -> bool:
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):  # not callable, or written in C
        return False
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def _is_import_path(value: Any) -> bool:
    return isinstance(value, str) and _IMPORT_PATH.fullmatch(value) is not None


class HookTable(NamedTuple):
    """What a hook's mapping may contain."""

    kind: str
    names: re.Pattern[str]  # of valid names
    is_valid: Callable[[Any], bool]  # whether a value is valid
    expected: str  # valid values and names in words, for errors


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
        lambda value: isinstance(value, Command) and _is_import_path(value.function) and isinstance(value.summary, str),
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

# The hook of each kind. "class" has the components by the name of their class.
HOOK_OF = {
    **dict.fromkeys(KINDS, "pml_ext_components"),
    "recipe": "pml_ext_recipes",
    **{table.kind: hook for hook, table in TABLES.items()},
    "class": "pml_ext_components",
}

Entry = tuple[str, str, Any]  # kind, name and value of what a plugin registers


def check_marks(module: object) -> None:
    """Raise PluginError unless a module's hooks have known names and are marked."""
    if not hasattr(module, "__dict__"):
        raise PluginError(f"its entry point names {shortened(repr(module), 100)}; expected a module with hooks")
    for name, value in vars(module).items():
        marked = hasattr(value, "pml_ext_impl")
        if not inspect.isfunction(value) or name.startswith("_") or not (marked or name.startswith("pml_ext_")):
            continue
        if name not in HOOK_OF.values():
            raise PluginError(unknown("hook", name, HOOK_OF.values()))
        if not marked:
            raise PluginError(f"{name} is not marked as a hook; write '@pml_ext.plugin.hookimpl' above 'def {name}'")
        if inspect.signature(value).parameters:
            raise PluginError(f"the hook {name} must have no parameters; found {inspect.signature(value)}")


def entries(hook: str, plugin: str, answer: Any) -> list[Entry]:
    """Return what a hook's answer registers; PluginError if any part is invalid."""
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
            raise PluginError(
                f"pml_ext_components names the {component.kind} {component.name!r} twice ({other.class_name} and "
                f"{component.class_name}); names are unique per kind"
            )
        found += entries_of_component(component)
    return found


def entries_of_component(component: Component) -> list[Entry]:
    """A component under its own name and its class's name."""
    return [(component.kind, component.name, component), ("class", component.class_name, component)]


def _entries_of_recipes(plugin: str, answer: Any) -> list[Entry]:
    found: list[Entry] = []
    for folder in _listed("pml_ext_recipes", answer, "folders"):
        if not isinstance(folder, Path) or not folder.is_dir():
            raise PluginError(
                f"pml_ext_recipes names {str(folder)!r}, which is not a package's folder; "
                'write importlib.resources.files(__name__) / "recipes"'
            )
        for file in sorted(folder.rglob("*.toml")):
            name = file.relative_to(folder).with_suffix("").as_posix()
            found.append(("recipe", f"{plugin}/{name}", file))
    return found


def _entries_of_table(hook: str, answer: Any) -> list[Entry]:
    table = TABLES[hook]
    if not isinstance(answer, Mapping):
        raise PluginError(f"{hook} returned {shortened(repr(answer), 100)}; it must return a mapping by name")
    for name, value in answer.items():
        if not (isinstance(name, str) and table.names.fullmatch(name) and table.is_valid(value)):
            raise PluginError(f"{hook}: {name!r} is {shortened(repr(value), 100)}; expected {table.expected}")
    return [(table.kind, name, value) for name, value in answer.items()]


def _listed(hook: str, answer: Any, expected: str) -> list[Any]:
    if isinstance(answer, (str, bytes, Mapping)) or not isinstance(answer, Iterable):
        raise PluginError(f"{hook} returned {shortened(repr(answer), 100)}; it must return a list of {expected}")
    return list(answer)


def validated(component: Any, plugin: str) -> Component:
    """Return a component with its plugin's name; PluginError or TypeError if invalid."""
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
    for field, (is_valid, expected) in rules.items():
        if not is_valid:
            raise PluginError(
                f"{field} of the component {name!r} is {shortened(repr(getattr(component, field)), 100)}; "
                f"expected {expected}"
            )
    named: Component = dataclasses.replace(component, plugin=plugin)
    _ = named.kind  # raises for a class without a kind
    if isinstance(source, type):
        _ = named.settings  # raises for a class without a readable signature
    return named
