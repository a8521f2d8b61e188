"""Names in recipes, and the plugins that own them."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from pml_ext import registry
from pml_ext.errors import ConfigError, PmlExtError, UnknownNameError, shortened

from .read import read_tables
from .tables import NAMES_ALONE

# tables with another name than the kind that they name
_KINDS_OF_TABLES = {"data": "data set", "track": "tracker", "transforms": "transform"}


def names_in(recipe: str) -> set[tuple[str, str]]:
    """Return kind and name, ``("loss", "cbml")``, of everything in a readable recipe."""
    with contextlib.suppress(ConfigError, UnknownNameError):
        return set(_names(read_tables(recipe)))
    return set()


def plugins_in(tables: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return distribution and version of a recipe's plugins, without the core and PML."""
    plugins = {}
    for kind, name in sorted(set(_names(tables))):
        with contextlib.suppress(PmlExtError):  # no plugin has "shuffle" and "folder:PATH"
            plugin, _ = registry.find(kind, name)
            record = registry.record_of(plugin)
            if record is not None:
                plugins[plugin] = {"distribution": record.distribution, "version": record.version}
    return plugins


def missing_plugins(wanted: Mapping[str, Mapping[str, str]]) -> str:
    """Say which of :func:`plugins_in` are missing, and how to install them."""
    records = {record.name: record for record in registry.plugins()}
    texts = []
    for plugin, about in wanted.items():
        record = records.get(plugin)
        if record is None:
            package = about["distribution"]
            texts.append(
                f"the plugin {plugin!r} of {package} {about['version']} is not installed; "
                f"run: pip install {package}=={about['version']}"
            )
        elif record.status != "ok":
            texts.append(f"the plugin {plugin!r} is {record.status}, {shortened(record.error, 200)}")
    return ". ".join(texts)


def _names(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield kind and name of everything named in a key's value."""
    values = value if isinstance(value, list) else [value]
    last = key.rpartition(".")[2]
    for each in values:
        if isinstance(each, dict):
            for inner, inner_value in each.items():
                if inner == "origin":  # texts about settings
                    continue
                inner_key = inner if "." in inner else f"{last}.{inner}"
                yield from _names(inner_value, inner_key)
        elif isinstance(each, str):
            kind = _kind_named_by(key)
            if kind:
                yield kind, each


def _kind_named_by(key: str) -> str:
    """Return ``"loss"`` for ``loss.name``, or an empty string."""
    owner, dot, last = key.rpartition(".")
    if last in NAMES_ALONE:
        return last
    if last == "transforms":
        return "transform"
    table = owner.rpartition(".")[2].rpartition("_")[2]
    kind = _KINDS_OF_TABLES.get(table, table)
    is_name = last == "name" and dot
    return kind if is_name and kind in ("data set", "trunk", "transform", "tracker", *registry.KINDS) else ""
