"""What plugins may answer to hooks, and what is said of anything else.

See :mod:`pml_ext.hookspecs`. Importing this module imports neither torch nor any plugin.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources.abc import Traversable
from typing import Any

from . import hookspecs
from .components import CAPABILITIES, Component, Paper, capabilities
from .errors import PluginError

HOOKS = tuple(name for name in vars(hookspecs) if name.startswith("pml_ext_"))
TABLES = (
    "pml_ext_papers",
    "pml_ext_datasets",
    "pml_ext_trunks",
    "pml_ext_benchmark_peers",
)  # hooks that return {name: ...}
KEBAB = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_IMPORT = "from pml_ext.plugin import hookimpl"


def check_marks(plugin: object) -> None:
    """Refuses a function that has a hook's name, or nearly, and is not marked as one.

    Args:
        plugin: the module that an entry point names.

    Raises:
        PluginError: naming the function and what to write.
    """
    own = getattr(plugin, "__name__", None)
    for name, value in vars(plugin).items() if hasattr(plugin, "__dict__") else ():
        if not name.startswith("pml_ext_") or not inspect.isfunction(value) or hasattr(value, "pml_ext_impl"):
            continue
        if name in HOOKS:
            raise PluginError(
                f"{name} is not marked as a hook, so that nobody would call it; write {_IMPORT!r}, and "
                f"'@hookimpl' above 'def {name}'"
            )
        near = difflib.get_close_matches(name, HOOKS, n=1, cutoff=0.8)
        if near and value.__module__ == own:
            raise PluginError(
                f"{name} is no hook and not marked as one; for {near[0]} write {_IMPORT!r}, and "
                f"'@hookimpl' above 'def {near[0]}'; for anything else take another name"
            )


def components_in(answers: Sequence[Any], plugin: str) -> list[Component]:
    """The components of a plugin.

    Args:
        answers: what its ``pml_ext_components`` gave.
        plugin: its name.

    Raises:
        PluginError: something else than components, or one name twice.
    """
    components = [checked(component, plugin) for component in _flatten("pml_ext_components", answers)]
    seen: dict[tuple[str, str], type] = {}
    for component in components:
        key = (component.kind, component.name)
        if key in seen:
            classes = " and ".join(dict.fromkeys((seen[key].__name__, component.cls.__name__)))
            raise PluginError(
                f"pml_ext_components names the {component.kind} {component.name!r} twice ({classes}); "
                "names are unique per kind"
            )
        seen[key] = component.cls
    return components


def checked(component: Any, plugin: str) -> Component:
    """A component with its plugin's name.

    Args:
        component: what a plugin, or a user, calls one.
        plugin: its name.

    Raises:
        PluginError: it is none.
        TypeError: its class is of no kind.
    """
    if not isinstance(component, Component):
        raise PluginError(f"pml_ext_components must return Component(...) entries, not {component!r}")
    if not isinstance(component.cls, type):
        raise PluginError(f"a component is a class, not {component.cls!r}")
    if not isinstance(component.name, str) or not KEBAB.fullmatch(component.name):
        raise PluginError(
            f"a component's name is kebab-case (letters a-z, digits, single hyphens), not {component.name!r}"
        )
    if component.paper is not None and not isinstance(component.paper, Paper):
        raise PluginError(f"{component.name}: paper must be a Paper(...), not {component.paper!r}")
    _ = component.kind, component.summary, component.settings  # a class of which these cannot be told is of no use
    unknown = set(capabilities(component.cls)) - CAPABILITIES if _declares_plainly(component.cls) else set()
    if unknown:
        raise PluginError(f"{component.name}: unknown capabilities {sorted(unknown)}; known are {sorted(CAPABILITIES)}")
    return dataclasses.replace(component, plugin=plugin)


def _declares_plainly(cls: type) -> bool:
    """Whether ``capabilities`` is a plain value of the class; a wrapper may have a property that asks what it wraps."""
    return not isinstance(inspect.getattr_static(cls, "capabilities", None), property)


def _flatten(hook: str, answers: Sequence[Any]) -> Iterator[Any]:
    for answer in answers:
        if isinstance(answer, (str, bytes, Mapping)) or not isinstance(answer, Iterable):
            raise PluginError(f"{hook} must return a list, not {answer!r}")
        yield from answer


def recipes_in(answers: Sequence[Any], plugin: str) -> dict[str, Traversable]:
    """The recipe files of a plugin by name.

    Args:
        answers: what its ``pml_ext_recipes`` gave.
        plugin: its name.

    Raises:
        PluginError: something else than folders, or two files of one name.
    """
    files: dict[str, Traversable] = {}
    for folder in _flatten("pml_ext_recipes", answers):
        if not hasattr(folder, "iterdir"):
            raise PluginError(
                f"pml_ext_recipes names {folder!r}, which is no folder of a package; write "
                'importlib.resources.files(__name__) / "recipes"'
            )
        if not folder.is_dir():
            raise PluginError(f"pml_ext_recipes of {plugin!r} names {folder}, which is not a folder")
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


def table_in(hook: str, answers: Sequence[Any], components: Iterable[Component]) -> dict[str, Any]:
    """What a hook of :data:`TABLES` gave, by name.

    Args:
        hook: its name.
        answers: what a plugin gave.
        components: that plugin's.

    Raises:
        PluginError: no mapping from names to what can be called, or peers of what is no component of the plugin.
    """
    table: dict[str, Any] = {}
    for answer in answers:
        if not isinstance(answer, Mapping) or not all(isinstance(key, str) for key in answer):
            raise PluginError(f"{hook} must return a mapping with names as keys, not {answer!r}")
        for name, value in answer.items():
            if hook == "pml_ext_benchmark_peers":
                _check_peers(name, value, [c.name for c in components])
            elif hook == "pml_ext_papers":
                _check_file(name, value)
            else:
                _check_factory(hook, name, value)
        table |= answer
    return table


def _check_factory(hook: str, name: str, factory: Any) -> None:
    if not re.fullmatch(r"[^\s:@]+", name):
        raise PluginError(f"{hook}: a name has no space, ':' or '@' in it, not {name!r}")
    if not callable(factory):
        raise PluginError(f"{hook}: {name!r} is {factory!r}, wanted a function that makes it")


def _check_file(name: str, file: Any) -> None:
    if not KEBAB.fullmatch(name):
        raise PluginError(f"pml_ext_papers: a paper's name is kebab-case, my-paper, not {name!r}")
    if not (hasattr(file, "read_text") and hasattr(file, "is_file") and file.is_file()):
        raise PluginError(
            f"pml_ext_papers: {name!r} is {str(file)!r}, wanted a file of the package; write "
            'importlib.resources.files(__name__) / "papers" / "mine.toml"'
        )


def _check_peers(name: str, peers: Any, known: Sequence[str]) -> None:
    if name not in known:
        raise PluginError(
            f"pml_ext_benchmark_peers: {name!r} is no component of this plugin; it has {', '.join(known) or 'none'}"
        )
    if not isinstance(peers, Mapping) or not all(map(callable, peers.values())):
        raise PluginError(f"pml_ext_benchmark_peers: {name!r} is {peers!r}, wanted {{label: function}}")
