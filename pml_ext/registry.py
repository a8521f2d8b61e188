"""Looks up components, recipes, data sets and trunks by name, and builds instances of components.

Plugins are found by entry points of group ``pml_ext`` (see :mod:`pml_ext.hookspecs`), PML's own classes are here as
``pml/...``, and :func:`register` adds a class of the running process. Importing this module imports neither torch nor
any plugin; the first look-up does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.resources.abc import Traversable
from typing import Any

from .building import instance, required
from .catalogue import kebab
from .components import CAPABILITIES, KINDS, Component, Paper, capabilities, kind_of, settings_of
from .discovery import LOCAL, Discovery, PluginRecord
from .errors import PluginError, PluginWarning, UnknownNameError, unknown

__all__ = [
    "CAPABILITIES",
    "KINDS",
    "LOCAL",
    "Component",
    "Paper",
    "PluginRecord",
    "PluginWarning",
    "Registry",
    "benchmark_peers",
    "build",
    "capabilities",
    "class_by_name",
    "class_names",
    "components",
    "dataset",
    "datasets",
    "get",
    "kind_of",
    "load",
    "plugins",
    "recipe",
    "recipes",
    "register",
    "required",
    "settings_of",
    "trunk",
    "trunks",
    "unknown",
    "unregister_local",
]


class Registry:
    """Components, recipes, data sets and trunks of all plugins; see :class:`pml_ext.discovery.Discovery`."""

    def __init__(self) -> None:
        self._discovery = Discovery()

    def load(self) -> None:
        """Reads the entry points, unless that was done already."""
        self._discovery.load()

    def plugins(self) -> list[PluginRecord]:
        """The entry points found, with what became of them; all their hooks are asked."""
        self._discovery.ask_all()
        return list(self._discovery.records)

    # Components

    def components(self, kind: str | None = None) -> list[Component]:
        """All components, or all of one kind, sorted by name.

        Args:
            kind: one of :data:`KINDS`.
        """
        if kind is not None and kind not in KINDS:
            raise UnknownNameError(f"no kind {kind!r}; kinds are {', '.join(KINDS)}")
        self.load()
        chosen = [c for c in self._discovery.components if kind is None or c.kind == kind]
        return sorted(chosen, key=lambda c: (c.name.startswith("pml/"), c.name, c.plugin))

    def get(self, name: str, kind: str | None = None) -> Component:
        """The component of a name.

        Args:
            name: ``"my-loss"``, ``"pml/multi-similarity"``, or ``"entry-point:name"``.
            kind: one of :data:`KINDS`; needed where two kinds share the name.

        Raises:
            UnknownNameError: nothing, or more than one kind, has the name.
            PluginError: two plugins claim the name.
        """
        components = self.components(kind)
        named = [c for c in components if name in (c.name, c.qualified_name)]
        if len(named) == 1:
            return named[0]
        if not named:
            raise UnknownNameError(unknown(kind or "component", name, (c.name for c in components)))
        if len({c.kind for c in named}) > 1:
            kinds = " and ".join(f"a {c.kind}" for c in named)
            raise UnknownNameError(f"{name!r} is {kinds}; say which, for example kind={named[0].kind!r}")
        raise PluginError(_clash(name, {c.qualified_name: self._discovery.owner(c.plugin) for c in named}))

    def build(
        self, name: str, kind: str | None = None, context: Mapping[str, Any] | None = None, /, **settings: Any
    ) -> Any:
        """An instance of a component.

        A setting that is a table with a ``name`` (``distance={"name": "pml/lp", "p": 2}``) is built first; its kind is
        that of the setting's name.

        Args:
            name: as in :meth:`get`.
            kind: as in :meth:`get`; ``kind="loss"`` is understood too, beside classes that have a setting ``kind``.
            context: a :class:`pml_ext.building.BuildContext`, from which settings are filled that are left out, here
                and in such tables.
            settings: keyword arguments of the class.

        Raises:
            ConfigError: a setting that the class does not have; the text has the nearest ones.
        """
        if kind is None and settings.get("kind") in KINDS:
            kind = settings.pop("kind")
        return instance(self.get(name, kind), self.get, context or {}, settings)

    def register(self, cls: type, name: str, paper: Paper | None = None) -> None:
        """Registers a class in the running process; the same name again replaces it."""
        self._discovery.add_local(Component(cls, name, paper))

    def unregister_local(self) -> None:
        """Forgets the classes that :meth:`register` added."""
        self._discovery.forget_local()

    def class_names(self) -> dict[str, list[Component]]:
        """Registered classes, PML's left out, by class name: what ``from pml_ext import X`` offers."""
        if self._discovery.loading:  # a plugin that imports another plugin's class while it is itself being loaded
            return {}
        names: dict[str, list[Component]] = {}
        for component in self.components():
            if not component.name.startswith("pml/"):
                names.setdefault(component.cls.__name__, []).append(component)
        return names

    def class_by_name(self, class_name: str) -> type:
        """The registered class of a class name.

        Raises:
            UnknownNameError: no such class; the text has the nearest ones.
            PluginError: two plugins have a class of that name.
        """
        names = self.class_names()
        classes = {c.cls: c for c in names.get(class_name, [])}
        if len(classes) == 1:
            return next(iter(classes))
        if classes:
            owners = {c.qualified_name: self._discovery.owner(c.plugin) for c in classes.values()}
            raise PluginError(_clash(class_name, owners, "pml_ext.registry.get({!r}).cls"))
        raise UnknownNameError(unknown("class", class_name, names))

    # Recipes, data sets, trunks, peers

    def recipes(self) -> dict[str, Traversable]:
        """Recipe files by name, sorted."""
        self.load()
        return dict(sorted(self._discovery.recipes.items()))

    def recipe(self, name: str) -> Traversable:
        """The file of a recipe.

        Raises:
            UnknownNameError: no such recipe; the text has the nearest names.
        """
        recipes = self.recipes()
        if name not in recipes:
            raise UnknownNameError(unknown("recipe", name, recipes))
        return recipes[name]

    def datasets(self) -> dict[str, Callable[..., Any]]:
        """Factories of data sets by name; a name that two plugins claim is there as ``entry-point:name``."""
        return self._by_name("pml_ext_datasets")

    def dataset(self, name: str) -> Callable[..., Any]:
        """The factory of a data set: see :func:`pml_ext.hookspecs.pml_ext_datasets`."""
        return self._one("data set", "pml_ext_datasets", name)

    def trunks(self) -> dict[str, Callable[..., Any]]:
        """Factories of trunks by name; a name that two plugins claim is there as ``entry-point:name``."""
        return self._by_name("pml_ext_trunks")

    def trunk(self, name: str) -> Callable[..., Any]:
        """The factory of a trunk: see :func:`pml_ext.hookspecs.pml_ext_trunks`."""
        return self._one("trunk", "pml_ext_trunks", name)

    def benchmark_peers(self, component: Component) -> dict[str, Callable[..., Any]]:
        """What ``pml-ext bench`` measures a loss against, by label."""
        return dict(self._discovery.tables("pml_ext_benchmark_peers").get(component.plugin, {}).get(component.name, {}))

    def _claims(self, hook: str) -> dict[str, dict[str, Any]]:
        """``{name: {plugin: factory}}``."""
        claims: dict[str, dict[str, Any]] = {}
        for plugin, table in self._discovery.tables(hook).items():
            for name, factory in table.items():
                claims.setdefault(name, {})[plugin] = factory
        return claims

    def _by_name(self, hook: str) -> dict[str, Any]:
        names: dict[str, Any] = {}
        for name, owners in self._claims(hook).items():
            if len(owners) == 1:
                names[name] = next(iter(owners.values()))
            else:
                names |= {f"{plugin}:{name}": factory for plugin, factory in owners.items()}
        return dict(sorted(names.items()))

    def _one(self, what: str, hook: str, name: str) -> Callable[..., Any]:
        claims = self._claims(hook)
        plugin, _, short = name.partition(":")
        if short in claims and plugin in claims[short]:
            return claims[short][plugin]  # type: ignore[no-any-return]
        if name not in claims:
            raise UnknownNameError(unknown(what, name, claims))
        if len(claims[name]) > 1:
            raise PluginError(_clash(name, {f"{p}:{name}": self._discovery.owner(p) for p in claims[name]}))
        return next(iter(claims[name].values()))  # type: ignore[no-any-return]


def _clash(name: str, owners: Mapping[str, str], form: str = "{!r}") -> str:
    claims = " and ".join(f"{form.format(qualified)} ({owner})" for qualified, owner in owners.items())
    return f"{name!r} is claimed by two plugins; use {claims}, or leave one out with PML_EXT_BLOCK"


# The registry of the process

_registry = Registry()
load = _registry.load
plugins = _registry.plugins
components = _registry.components
unregister_local = _registry.unregister_local
get = _registry.get
build = _registry.build
class_names = _registry.class_names
class_by_name = _registry.class_by_name
recipes = _registry.recipes
recipe = _registry.recipe
datasets = _registry.datasets
dataset = _registry.dataset
trunks = _registry.trunks
trunk = _registry.trunk
benchmark_peers = _registry.benchmark_peers


def register(cls: type | None = None, *, name: str | None = None, paper: Paper | None = None) -> Any:
    """Registers a class in the running process, for notebooks and scripts.

    Use it as ``@register`` or ``@register(name="mine", paper=Paper(...))``. The class is then known to
    :func:`get`, :func:`build` and ``from pml_ext import X``. Registering the same name again replaces the class.

    Args:
        cls: the class.
        name: its name, kebab-case; by default made of the class name (``MyOwnLoss`` becomes ``my-own``).
        paper: where the method comes from.

    Returns:
        The class itself, so that it serves as a decorator.
    """

    def decorate(target: type) -> type:
        _registry.register(target, name or kebab(target.__name__), paper)
        return target

    return decorate if cls is None else decorate(cls)
