"""Names that several plugins claim: which is meant, and what is said of the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from .components import Component
from .discovery import PluginRecord


def chosen(plugins: Sequence[str], home: str, ships: Callable[[str], bool]) -> list[str]:
    """The plugins meant by a name that several claim; more than one where nothing decides.

    Args:
        plugins: that claim it.
        home: the plugin of the recipe that has the name, or nothing.
        ships: whether a plugin is of this distribution.
    """
    for wanted in ([p for p in plugins if p == home], [p for p in plugins if ships(p)]):
        if wanted:
            return wanted
    return list(plugins)


def clash(name: str, owners: Mapping[str, str], form: str = "{!r}") -> str:
    """What an error says of a name that nothing decides.

    Args:
        name: it.
        owners: by qualified name, the distribution that claims it.
        form: how a qualified name is typed.
    """
    claims = " and ".join(f"{form.format(qualified)} ({owner})" for qualified, owner in owners.items())
    return f"{name!r} is claimed by two plugins; use {claims}, or leave one out with PML_EXT_BLOCK"


def lines(owners: Mapping[tuple[str, str], Sequence[str]], ships: Callable[[str], bool]) -> dict[str, list[str]]:
    """By plugin, a line for each name that another plugin claims too.

    Args:
        owners: the plugins that claim a name, by what it is of (``"loss"``, ``"data set"``, ...) and the name.
        ships: whether a plugin is of this distribution.
    """
    clashes: dict[str, list[str]] = {}
    for (what, name), plugins in owners.items():
        meant = chosen(plugins, "", ships)
        means = f"means that of {meant[0]!r}" if len(meant) == 1 else "is an error"
        for plugin in plugins if len(plugins) > 1 else ():
            others = " and ".join(repr(other) for other in plugins if other != plugin)
            clashes.setdefault(plugin, []).append(f"{what} {name!r}: also of {others}; the bare name {means}")
    return clashes


def shadowed(other: Component, owner: str, names: Sequence[str]) -> str:
    """What is said once of a plugin whose classes have names that are this distribution's.

    Args:
        other: one of its components.
        owner: its distribution.
        names: of the classes.
    """
    return (
        f"the plugin {other.plugin!r} ({owner}) has classes of names that pml_ext ships: {', '.join(names)}; "
        f"pml_ext's are taken, and pml_ext.registry.get({other.qualified_name!r}, {other.kind!r}).cls is the "
        f"other {other.cls.__name__}"
    )


def lacking(wanted: Mapping[str, Mapping[str, str]], records: Sequence[PluginRecord]) -> str:
    """What to do about plugins that something was made with and that are not in use, on one line; or nothing.

    Args:
        wanted: distribution and version by plugin; nothing of one that needs no installing.
        records: the plugins that there are.
    """
    why = {"blocked": "left out by PML_EXT_BLOCK", "not allowed": "not named in PML_EXT_PLUGINS"}
    texts = []
    for plugin, about in wanted.items():
        mine = [record for record in records if record.name == plugin]
        if not about or any(record.status == "ok" for record in mine):
            continue
        if mine:
            status = mine[0].status
            texts.append(f"the plugin {plugin!r} is {why.get(status, status)}; pml-ext plugins -v shows more")
        else:
            name, version = about.get("distribution", plugin), about.get("version", "")
            exact = f"{name}=={version}" if version else name
            texts.append(f"the plugin {plugin!r} of {name} {version} is not installed; type: pip install {exact}")
    return ". ".join(texts)
