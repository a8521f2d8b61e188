"""What the hooks of a plugin may return, and what that registers."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import PluginError, shortened, unknown
from .components import KINDS, Command, Component, Paper

_A_FILE = 'a file: importlib.resources.files(__name__) / "papers/mine.toml"'
_A_COMMAND = 'Command("package.module:function", "One line for --help.") (and a name in kebab-case)'
_A_METRIC = "a function(**kwargs) (and a name in snake_case)"
KEBAB = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_SNAKE = re.compile("[a-z][a-z0-9_]*")
_NAME = re.compile(r"[^\s:@]+")
_KIND = re.compile(r"[^:@]+")
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
    "tracker": HookTable("pml_ext_trackers", KEBAB, callable, "a function (and a name in kebab-case)"),
    "command": HookTable("pml_ext_commands", KEBAB, _is_command, _A_COMMAND),
    "store": HookTable("pml_ext_stores", KEBAB, callable, "a function (and a name in kebab-case)"),
    "service": HookTable("pml_ext_services", KEBAB, callable, "a function (and a name in kebab-case)"),
    "check": HookTable("pml_ext_checks", _KIND, callable, "a function (and the name of a kind, such as 'store')"),
    "paper": HookTable("pml_ext_papers", KEBAB, _is_file, _A_FILE),
}

# The hook that names things of a kind. "class" are the classes of components, by the names of the classes.
HOOK_OF = {
    **dict.fromkeys(KINDS, "pml_ext_components"),
    "recipe": "pml_ext_recipes",
    **{kind: table.hook for kind, table in TABLES.items()},
    "class": "pml_ext_components",
}

Entry = tuple[str, str, Any]
"""Kind, name and value of what a plugin registers."""


def check_marks(module: object) -> None:
    """Raise PluginError for what is no module with hooks, and for a hook that is not marked as one."""
    if not hasattr(module, "__dict__"):
        raise PluginError(f"its entry point names {shortened(repr(module), 100)}; wanted a module with hooks")
    for name, value in vars(module).items():
        if name.startswith("pml_ext_") and inspect.isfunction(value) and not hasattr(value, "pml_ext_impl"):
            advice = f"write 'from pml_ext.plugin import hookimpl', and '@hookimpl' above 'def {name}'"
            raise PluginError(f"{name} is not marked as a hook, so that nobody would call it; {advice}")


def entries(hook: str, plugin: str, answer: Any) -> list[Entry]:
    """Return what a hook's answer registers; PluginError if any of it is wrong."""
    if hook == "pml_ext_components":
        return _entries_of_components(plugin, answer)
    if hook == "pml_ext_recipes":
        return _entries_of_recipes(plugin, answer)
    return _entries_of_table(hook, answer)


def _entries_of_components(plugin: str, answer: Any) -> list[Entry]:
    components: dict[tuple[str, str], Component] = {}
    for each in _listed("pml_ext_components", answer, "Component(...) entries"):
        component = validated(each, plugin)
        other = components.setdefault((component.kind, component.name), component)
        if other is not component:
            twice = f"{component.kind} {component.name!r} twice ({other.class_name} and {component.class_name})"
            raise PluginError(f"pml_ext_components names the {twice}; names are unique per kind")
    found: list[Entry] = []
    for component in components.values():
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
            if file.is_file():
                name = file.relative_to(folder).with_suffix("").as_posix()
                found.append(("recipe", f"{plugin}/{name}", file))
    return found


def _entries_of_table(hook: str, answer: Any) -> list[Entry]:
    (kind,) = [kind for kind, table in TABLES.items() if table.hook == hook]
    table = TABLES[kind]
    if not isinstance(answer, Mapping):
        shown = shortened(repr(answer), 100)
        raise PluginError(f"{hook} returned {shown}; it must return a mapping with names as keys")
    found: list[Entry] = []
    for name, value in answer.items():
        is_valid = isinstance(name, str) and table.names.fullmatch(name) and table.is_valid(value)
        if not is_valid:
            shown = shortened(repr(value), 100)
            raise PluginError(f"{hook}: {name!r} is {shown}, wanted {table.wanted}")
        found.append((kind, name, value))
    return found


def _listed(hook: str, answer: Any, wanted: str) -> list[Any]:
    if isinstance(answer, (str, bytes, Mapping)) or not isinstance(answer, Iterable):
        raise PluginError(f"{hook} returned {shortened(repr(answer), 100)}; it must return a list of {wanted}")
    return list(answer)


def validated(component: Any, plugin: str) -> Component:
    """Return a component with its plugin's name; PluginError if it is invalid, TypeError for a class of no kind."""
    if not isinstance(component, Component):
        raise PluginError(f"pml_ext_components must return Component(...) entries, not {component!r}")
    if not isinstance(component.name, str) or not KEBAB.fullmatch(component.name):
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
