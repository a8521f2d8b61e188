"""What the names of a recipe mean.

A name means what the plugin of the recipe that has it calls so; else what this distribution does; else the only one
there is (:mod:`pml_ext.registry`). Where a plugin has a name of its own for what ours have too, the tables
that are read say ``plugin:name``, so that they mean the same wherever they go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ... import registry
from ...errors import PluginError, PmlExtError

_NAMES_ALONE = ("trunk", "miner", "regularizer")  # keys whose value may be a name instead of a table with it
Rename = Callable[[str, str], str]


def home_of(name: str, run: Mapping[str, Any]) -> str:
    """The plugin that a recipe is of; of a run's, the plugin of the recipe that was trained; nothing of other files.

    Args:
        name: a registered recipe or the path of a ``.toml`` file.
        run: what a run says of itself in the file.
    """
    packaged = str(run.get("recipe", "")) if name.endswith(".toml") else name
    return "" if ".toml" in packaged else packaged.partition("/")[0]


def settled(tables: dict[str, Any], home: str) -> dict[str, Any]:
    """Tables that mean the same wherever they are read: ``plugin:name`` where ``name`` alone means another plugin's.

    Args:
        tables: of a recipe, or a part of it.
        home: the plugin of the recipe.
    """

    def settle(what: str, name: str) -> str:
        try:
            mine = registry.plugin_of(what, name, home)
        except PmlExtError:  # told, with its key, when the recipe is checked
            return name
        try:
            same = registry.plugin_of(what, name) == mine
        except PluginError:
            same = False
        return name if same or ":" in name else f"{mine}:{name}"

    ours = not home or registry.version_of(home).get("distribution") in (None, registry.SHIPPED)
    return tables if ours else renamed(tables, "", settle)


def all_names(tables: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Everything that a recipe names, and what each is: ``("loss", "cbml")``, ``("data set", "digits")``.

    Args:
        tables: of the recipe.
    """
    names: set[tuple[str, str]] = set()

    def note(what: str, name: str) -> str:
        names.add((what, name))
        return name

    renamed(tables, "", note)
    return names


def plugins_in(tables: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """The plugins whose components, data set or trunk a recipe uses.

    Args:
        tables: of the recipe.

    Returns:
        ``{plugin: {"distribution": ..., "version": ...}}``; the core, PML and classes of the running process left out.
    """
    plugins = {}
    for what, name in sorted(all_names(tables)):
        try:
            plugin = registry.plugin_of(what, name)
        except PmlExtError:  # "shuffle" and "folder:PATH" are of no plugin
            continue
        if about := registry.version_of(plugin):
            plugins[plugin] = about
    return plugins


def renamed(value: Any, key: str, rename: Rename) -> Any:
    """Tables with other names for what they name.

    Args:
        value: of the key.
        key: the last part of a key, or nothing.
        rename: from what something is, and its name, to the new name.
    """
    if isinstance(value, str):
        return rename(key, value) if key in _NAMES_ALONE else value
    if isinstance(value, list):
        return [renamed(each, key, rename) for each in value]
    if not isinstance(value, Mapping):
        return value
    new: dict[str, Any] = {}
    for inner, each in value.items():
        *owners, last = inner.split(".")  # a key of [sweep] has dots
        what = _kind(owners[-1] if owners else key)
        new[inner] = _one_or_all(each, what, rename) if last == "name" and what else renamed(each, last, rename)
    return new


def _one_or_all(value: Any, what: str, rename: Rename) -> Any:
    if isinstance(value, list):
        return [_one_or_all(each, what, rename) for each in value]
    return rename(what, value) if isinstance(value, str) else value


def _kind(key: str) -> str:
    """What the ``name`` of a table is the name of; nothing where it is of no plugin."""
    kind = key.rsplit("_", 1)[-1]
    return "data set" if key == "data" else kind if kind in ("trunk", *registry.KINDS) else ""
