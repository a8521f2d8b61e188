"""Looks up components, recipes, data sets and trunks by name, and builds instances of components.

Plugins are found by entry points of group ``pml_ext`` (see :mod:`pml_ext.hookspecs`), PML's own classes are here as
``pml/...``, and :func:`register` adds a class of the running process. Importing this module imports neither torch nor
any plugin; the first look-up does.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.resources.abc import Traversable
from typing import Any

from . import claims
from .building import instance, required
from .catalogue import kebab
from .components import CAPABILITIES, KINDS, Component, Paper, capabilities, kind_of, settings_of
from .discovery import LOCAL, SHIPPED, Discovery, PluginRecord
from .errors import PluginError, PluginWarning, UnknownNameError, unknown

__all__ = [
    "CAPABILITIES",
    "KINDS",
    "LOCAL",
    "SHIPPED",
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
    "isolated",
    "kind_of",
    "lacking",
    "load",
    "loading",
    "meant",
    "papers",
    "plugin_of",
    "plugins",
    "recipe",
    "recipes",
    "register",
    "required",
    "settings_of",
    "short_name",
    "trunk",
    "trunks",
    "unknown",
    "unregister_local",
    "version_of",
]

_HOOKS = {"data set": "pml_ext_datasets", "trunk": "pml_ext_trunks"}


class Registry:
    """Components, recipes, data sets and trunks of all plugins; see :class:`pml_ext.discovery.Discovery`.

    A name that several plugins claim means that of ``home``, the plugin of the recipe that has the name; else that of a
    plugin of this distribution, so that nobody's plugin changes what our recipes mean; else it is an error that names
    both. ``entry-point:name`` reaches each.
    """

    def __init__(self) -> None:
        self._discovery = Discovery()
        self._warned: set[str] = set()

    def load(self) -> None:
        """Reads the entry points, unless that was done already.

        Raises:
            PluginError: PML_EXT_PLUGINS names a plugin that is not installed.
        """
        self._discovery.load()

    def loading(self) -> bool:
        """Whether the caller runs while plugins are being imported, so that those that follow are not there yet."""
        self.load()  # waits for another thread
        return self._discovery.loading

    def plugins(self) -> list[PluginRecord]:
        """The entry points found, with what became of them; all their hooks are asked."""
        self._discovery.ask_all()
        clashes = self._clashes()
        for record in self._discovery.records:
            record.clashes = clashes.get(record.name, []) if record.status == "ok" else []
        return list(self._discovery.records)

    @contextlib.contextmanager
    def isolated(self) -> Iterator[None]:
        """Reads the entry points anew, and forgets what is found and registered inside when it is left."""
        before, self._discovery = self._discovery, Discovery()
        warned, self._warned = self._warned, set()
        try:
            yield
        finally:
            self._discovery, self._warned = before, warned

    def _chosen(self, plugins: Sequence[str], home: str = "") -> list[str]:
        return claims.chosen(plugins, home, self._discovery.ships)

    def _clashes(self) -> dict[str, list[str]]:
        owners: dict[tuple[str, str], list[str]] = {}
        for component in self._discovery.components:
            owners.setdefault((component.kind, component.name), []).append(component.plugin)
        for what, hook in _HOOKS.items():
            for name, factories in self._claims(hook).items():
                owners[what, name] = [*factories]
        for class_name, components in self.class_names().items():
            owners["class", class_name] = [*dict.fromkeys(c.plugin for c in components)]
        return claims.lines(owners, self._discovery.ships)

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

    def get(self, name: str, kind: str | None = None, home: str = "") -> Component:
        """The component of a name.

        Args:
            name: ``"my-loss"``, ``"pml/multi-similarity"``, or ``"entry-point:name"``.
            kind: one of :data:`KINDS`; needed where two kinds share the name.
            home: the plugin of the recipe that has the name, whose own components come first.

        Raises:
            UnknownNameError: nothing, or more than one kind, has the name.
            PluginError: two plugins claim the name.
        """
        named = self.meant(name, kind, home)
        if len(named) == 1:
            return named[0]
        if not named:
            raise UnknownNameError(unknown(kind or "component", name, (c.name for c in self.components(kind))))
        if len({c.kind for c in named}) > 1:
            kinds = " and ".join(f"a {c.kind}" for c in named)
            raise UnknownNameError(f"{name!r} is {kinds}; say which, for example kind={named[0].kind!r}")
        raise PluginError(claims.clash(name, {c.qualified_name: self._discovery.owner(c.plugin) for c in named}))

    def meant(self, name: str, kind: str | None = None, home: str = "") -> list[Component]:
        """All components that a name may mean: of several kinds, or of plugins that nothing decides between.

        Args:
            name: as in :meth:`get`.
            kind: as in :meth:`get`.
            home: as in :meth:`get`.
        """
        components = self.components(kind)
        if exact := [c for c in components if c.qualified_name == name]:
            return exact
        named = [c for c in components if c.name == name]
        plugins = self._chosen([c.plugin for c in named], home)
        return [c for c in named if c.plugin in plugins]

    def short_name(self, component: Component) -> str:
        """The shortest name that reaches a component: its own, or with its plugin's before it."""
        return component.name if self.meant(component.name, component.kind) == [component] else component.qualified_name

    def plugin_of(self, what: str, name: str, home: str = "") -> str:
        """The plugin that a name of a recipe means.

        Args:
            what: one of :data:`KINDS`, ``"data set"`` or ``"trunk"``.
            name: as in :meth:`get`.
            home: as in :meth:`get`.

        Raises:
            UnknownNameError: nothing has the name.
            PluginError: two plugins claim it.
        """
        if what not in _HOOKS:
            return self.get(name, what, home).plugin
        return self._claimant(what, name, home)[0]

    def version_of(self, plugin: str) -> dict[str, str]:
        """The distribution and version of a plugin, empty for the core, PML and classes of the running process."""
        self.load()
        record = self._discovery.record(plugin)
        return {"distribution": record.distribution, "version": record.version} if record else {}

    def lacking(self, wanted: Mapping[str, Mapping[str, str]]) -> str:
        """What to do about plugins that something was made with and that are not in use, on one line; or nothing.

        Args:
            wanted: what :meth:`version_of` says, by plugin.
        """
        self.load()
        return claims.lacking(wanted, self._discovery.records)

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
        component = Component(cls, name, paper)
        self._discovery.add_local(component)
        meant = self.meant(name, component.kind)
        if LOCAL not in {other.plugin for other in meant}:
            warnings.warn(
                f"{name!r} is a {component.kind} of {meant[0].plugin!r} too, which the bare name means; "
                f"{LOCAL}:{name} is yours",
                PluginWarning,
                stacklevel=4,
            )

    def unregister_local(self) -> None:
        """Forgets the classes that :meth:`register` added."""
        self._discovery.forget_local()

    def class_names(self) -> dict[str, list[Component]]:
        """Registered classes, PML's left out, by class name: what ``from pml_ext import X`` offers."""
        names: dict[str, list[Component]] = {}
        for component in self.components():
            if not component.name.startswith("pml/"):
                names.setdefault(component.cls.__name__, []).append(component)
        return names

    def class_by_name(self, class_name: str) -> type:
        """The registered class of a class name; of several, that of a plugin of this distribution, with one warning.

        Raises:
            UnknownNameError: no such class; the text has the nearest ones.
            PluginError: two plugins have a class of that name, and neither is of this distribution.
        """
        names = self.class_names()
        owners = names.get(class_name, [])
        plugins = self._chosen([c.plugin for c in owners])
        classes = {c.cls: c for c in owners if c.plugin in plugins}
        if len(classes) > 1:
            claimed = {c.qualified_name: self._discovery.owner(c.plugin) for c in classes.values()}
            raise PluginError(claims.clash(class_name, claimed, "pml_ext.registry.get({!r}).cls"))
        if not classes:
            raise UnknownNameError(unknown("class", class_name, names))
        for other in owners:
            if other.cls not in classes and other.plugin not in self._warned:
                self._warned.add(other.plugin)
                also = [name for name, all_of in names.items() if {c.plugin for c in all_of} > {other.plugin}]
                text = claims.shadowed(other, self._discovery.owner(other.plugin), also)
                warnings.warn(text, PluginWarning, stacklevel=3)
        return next(iter(classes))

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

    def papers(self) -> dict[str, Traversable]:
        """Files of papers by name; one that its bare name does not mean is there as ``entry-point:name``."""
        return self._by_name("pml_ext_papers")

    def datasets(self) -> dict[str, Callable[..., Any]]:
        """Factories of data sets by name; one that its bare name does not mean is there as ``entry-point:name``."""
        return self._by_name("pml_ext_datasets")

    def dataset(self, name: str) -> Callable[..., Any]:
        """The factory of a data set: see :func:`pml_ext.hookspecs.pml_ext_datasets`."""
        return self._claimant("data set", name)[1]

    def trunks(self) -> dict[str, Callable[..., Any]]:
        """Factories of trunks by name; one that its bare name does not mean is there as ``entry-point:name``."""
        return self._by_name("pml_ext_trunks")

    def trunk(self, name: str) -> Callable[..., Any]:
        """The factory of a trunk: see :func:`pml_ext.hookspecs.pml_ext_trunks`."""
        return self._claimant("trunk", name)[1]

    def benchmark_peers(self, component: Component) -> dict[str, Callable[..., Any]]:
        """What ``pml-ext bench`` measures a loss against, by label."""
        return dict(self._discovery.tables("pml_ext_benchmark_peers").get(component.plugin, {}).get(component.name, {}))

    def _claims(self, hook: str) -> dict[str, dict[str, Any]]:
        """``{name: {plugin: factory}}``."""
        names: dict[str, dict[str, Any]] = {}
        for plugin, table in self._discovery.tables(hook).items():
            for name, factory in table.items():
                names.setdefault(name, {})[plugin] = factory
        return names

    def _by_name(self, hook: str) -> dict[str, Any]:
        names: dict[str, Any] = {}
        for name, owners in self._claims(hook).items():
            chosen = self._chosen([*owners])
            for plugin, factory in owners.items():
                names[name if chosen == [plugin] else f"{plugin}:{name}"] = factory
        return dict(sorted(names.items()))

    def _claimant(self, what: str, name: str, home: str = "") -> tuple[str, Callable[..., Any]]:
        """The plugin and the factory that the name of a data set or a trunk means."""
        names = self._claims(_HOOKS[what])
        plugin, _, short = name.partition(":")
        if short in names and plugin in names[short]:
            return plugin, names[short][plugin]
        if name not in names:
            raise UnknownNameError(unknown(what, name, names))
        chosen = self._chosen([*names[name]], home)
        if len(chosen) > 1:
            raise PluginError(claims.clash(name, {f"{p}:{name}": self._discovery.owner(p) for p in chosen}))
        return chosen[0], names[name][chosen[0]]


# The registry of the process

_registry = Registry()
load = _registry.load
loading = _registry.loading
plugins = _registry.plugins
isolated = _registry.isolated
meant = _registry.meant
short_name = _registry.short_name
plugin_of = _registry.plugin_of
version_of = _registry.version_of
lacking = _registry.lacking
components = _registry.components
unregister_local = _registry.unregister_local
get = _registry.get
build = _registry.build
class_names = _registry.class_names
class_by_name = _registry.class_by_name
recipes = _registry.recipes
recipe = _registry.recipe
papers = _registry.papers
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
