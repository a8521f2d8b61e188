"""Look-up of components, recipes, data sets and trunks by name, and instances of components.

:mod:`pml_ext.plugins` finds plugins by their entry points, PML's own classes are here as ``pml/...``, and
:func:`register` adds a class of the running process. Importing this module imports neither torch nor any plugin; the
first look-up does.

A name that several plugins claim means that of a plugin of this distribution, so that nobody's plugin changes what our
recipes mean; else it is an error that names both. ``entry-point:name`` reaches each.
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.resources.abc import Traversable
from typing import Any, TypedDict

from .components import CAPABILITIES as CAPABILITIES
from .components import KINDS as KINDS
from .components import Component as Component
from .components import Paper as Paper
from .components import capabilities as capabilities
from .components import kebab
from .components import kind_of as kind_of
from .components import settings_of as settings_of
from .errors import ConfigError, PluginError, PluginWarning, UnknownNameError
from .errors import unknown as unknown
from .plugins import LOCAL as LOCAL
from .plugins import SHIPPED as SHIPPED
from .plugins import TABLES, PluginRecord, Plugins

_plugins = Plugins()
_HOOKS = {  # of what is registered by name beside components and recipes
    "data set": "pml_ext_datasets",
    "trunk": "pml_ext_trunks",
    "metric": "pml_ext_metrics",
    "paper": "pml_ext_papers",
}


def load() -> bool:
    """Load the plugins, unless that was done; return whether that goes on, so that later ones are not there yet."""
    _plugins.load()
    return _plugins.loading


def plugins() -> list[PluginRecord]:
    """Return the entry points found, with what became of them; all their hooks are called."""
    for hook in TABLES:
        _plugins.table(hook)
    for record in _plugins.records:
        record.clashes = []
    for what in (*KINDS, *_HOOKS, "class"):
        for name, owners in _claims(what).items():
            chosen = _chosen(owners)
            means = f"means that of {next(iter(chosen))!r}" if len(chosen) == 1 else "is an error"
            for plugin in owners.keys() & _plugins.loaded.keys() if len(owners) > 1 else ():
                others = " and ".join(repr(other) for other in owners if other != plugin)
                text = f"{what} {name!r}: also of {others}; the bare name {means}"
                _plugins.loaded[plugin].clashes.append(text)
    return list(_plugins.records)


@contextlib.contextmanager
def isolated() -> Iterator[None]:
    """Read the entry points anew, and forget what is found and registered inside the block."""
    global _plugins
    before, _plugins = _plugins, Plugins()
    try:
        yield
    finally:
        _plugins = before


# Names of components of a kind, of classes ("class") and of what _HOOKS lists


def _claims(what: str) -> dict[str, dict[str, Any]]:
    """Return ``{name: {plugin: value}}``."""
    if what in _HOOKS:
        tables = _plugins.table(_HOOKS[what])
        entries = [(name, plugin, value) for plugin, table in tables.items() for name, value in table.items()]
    elif what == "class":
        ours = (c for c in components() if not c.name.startswith("pml/"))
        entries = [(c.cls.__name__, c.plugin, c) for c in ours]
    else:
        entries = [(c.name, c.plugin, c) for c in components(what)]
    names: dict[str, dict[str, Any]] = {}
    for name, plugin, value in entries:
        names.setdefault(name, {})[plugin] = value
    return names


def _chosen(owners: Mapping[str, Any]) -> dict[str, Any]:
    """Return the owners that a name claimed by several means; more than one where nothing decides."""
    return {plugin: value for plugin, value in owners.items() if _plugins.ships(plugin)} or dict(owners)


def _candidates(what: str, name: str) -> dict[str, Any]:
    """Return what a name, or ``entry-point:name``, may mean, by plugin."""
    claims = _claims(what)
    plugin, _, short = name.rpartition(":")
    if plugin in claims.get(short, {}):
        return {plugin: claims[short][plugin]}
    return _chosen(claims.get(name, {}))


def _find(what: str, name: str) -> tuple[str, Any]:
    """Return the plugin and the value that a name means."""
    found = _candidates(what, name)
    if not found:
        if error := _plugins.lacking_extra.get(_HOOKS.get(what, "")):
            raise error
        raise UnknownNameError(unknown(what, name, _claims(what)))
    if len(found) > 1:
        texts = " and ".join(f"'{plugin}:{name}' ({_plugins.owner(plugin)})" for plugin in found)
        raise PluginError(f"{name!r} is claimed by two plugins; use {texts}, or leave one out with PML_EXT_BLOCK")
    return next(iter(found.items()))


# Components


def components(kind: str | None = None) -> list[Component]:
    """Return all components, or all of one kind of :data:`KINDS`, sorted by name."""
    if kind is not None and kind not in KINDS:
        raise UnknownNameError(f"no kind {kind!r}; kinds are {', '.join(KINDS)}")
    load()
    chosen = [c for c in _plugins.components if kind is None or c.kind == kind]
    return sorted(chosen, key=lambda c: (c.name.startswith("pml/"), c.name, c.plugin))


def get(name: str, kind: str | None = None) -> Component:
    """Return the component of a name.

    Args:
        name: ``"my-loss"``, ``"pml/multi-similarity"``, or ``"entry-point:name"``.
        kind: one of :data:`KINDS`; needed where two kinds share the name.

    Raises:
        UnknownNameError: nothing, or more than one kind, has the name.
        PluginError: two plugins claim the name.
    """
    if kind is None:
        kinds = list(dict.fromkeys(c.kind for c in candidates(name)))
        if not kinds:
            raise UnknownNameError(unknown("component", name, (c.name for c in components())))
        if len(kinds) > 1:
            named = " and ".join(f"a {kind}" for kind in kinds)
            raise UnknownNameError(f"{name!r} is {named}; say which, for example kind={kinds[0]!r}")
        kind = kinds[0]
    component: Component = _find(kind, name)[1]
    return component


def candidates(name: str, kind: str | None = None) -> list[Component]:
    """Return the components that a name (see :func:`get`) may mean, of several kinds or of several plugins."""
    return [c for each in ([kind] if kind else KINDS) for c in _candidates(each, name).values()]


def short_name(component: Component) -> str:
    """Return the shortest name that reaches a component: its own, or with its plugin's before it."""
    alone = candidates(component.name, component.kind) == [component]
    return component.name if alone else component.qualified_name


def register(cls: type | None = None, *, name: str | None = None, paper: Paper | None = None) -> Any:
    """Register a class in the running process, as ``@register`` or ``@register(name="mine", paper=Paper(...))``.

    The class is then known to :func:`get`, :func:`build` and ``from pml_ext import X``. Registering the same name again
    replaces the class. The name is kebab-case, by default that of the class (``MyOwnLoss`` becomes ``my-own``).
    """
    if cls is None:
        return lambda target: register(target, name=name, paper=paper)
    component = Component(cls, name or kebab(cls.__name__), paper)
    _plugins.add_local(component)
    meant = _candidates(component.kind, component.name)
    if LOCAL not in meant:
        warnings.warn(
            f"{component.name!r} is a {component.kind} of {next(iter(meant))!r} too, which the bare name means; "
            f"{LOCAL}:{component.name} is yours",
            PluginWarning,
            stacklevel=2,
        )
    return cls


def unregister_local() -> None:
    """Forget the classes that :func:`register` added."""
    _plugins.components = [component for component in _plugins.components if component.plugin != LOCAL]


def class_names() -> dict[str, dict[str, Component]]:
    """Return ``{class name: {plugin: component}}``, PML's left out: what ``from pml_ext import X`` offers."""
    return _claims("class")


def class_by_name(class_name: str) -> type:
    """Return the registered class of a class name; of several, that of this distribution.

    Raises:
        UnknownNameError: no such class.
        PluginError: several plugins have such a class, and none is of this distribution.
    """
    names = class_names()
    if class_name not in names:
        raise UnknownNameError(unknown("class", class_name, names))
    chosen: dict[str, type] = {plugin: component.cls for plugin, component in _chosen(names[class_name]).items()}
    if len({*chosen.values()}) > 1:
        components = " and ".join(f"registry.get({names[class_name][p].qualified_name!r}).cls" for p in chosen)
        raise PluginError(f"{class_name!r} is a class of two plugins; use {components} of pml_ext")
    return next(iter(chosen.values()))


# Recipes, data sets, trunks, metrics, peers


def recipes() -> dict[str, Traversable]:
    """Return recipe files by name, sorted."""
    load()
    return dict(sorted(_plugins.recipes.items()))


def recipe(name: str) -> Traversable:
    """Return the file of a recipe; raise UnknownNameError with the nearest names."""
    known = recipes()
    if name not in known:
        raise UnknownNameError(unknown("recipe", name, known))
    return known[name]


def factories(what: str) -> dict[str, Any]:
    """Return what hooks give of one sort (``"data set"``, ``"trunk"``, ``"metric"``, ``"paper"``), by name.

    A name that others have too, and that does not mean this one, is there as ``entry-point:name``.
    """
    names: dict[str, Any] = {}
    for name, owners in _claims(what).items():
        means = [*_chosen(owners)]
        names |= {name if means == [plugin] else f"{plugin}:{name}": value for plugin, value in owners.items()}
    return dict(sorted(names.items()))


def factory(what: str, name: str) -> Callable[..., Any]:
    """Return the factory of a ``"data set"`` or a ``"trunk"``: see :mod:`pml_ext.hookspecs`."""
    found: Callable[..., Any] = _find(what, name)[1]
    return found


def benchmark_peers(component: Component) -> dict[str, Callable[..., Any]]:
    """Return what ``pml-ext bench`` measures a loss against, by label."""
    return dict(_plugins.table("pml_ext_benchmark_peers").get(component.plugin, {}).get(component.name, {}))


def plugin_of(what: str, name: str) -> str:
    """Return the plugin that a name of a kind, a ``"data set"`` or a ``"trunk"`` means: see :func:`get`."""
    return _find(what, name)[0]


def version_of(plugin: str) -> dict[str, str]:
    """Return the distribution and version of a plugin; nothing for the core, PML and classes of this process."""
    load()
    record = _plugins.loaded.get(plugin)
    return {"distribution": record.distribution, "version": record.version} if record else {}


def lacking(wanted: Mapping[str, Mapping[str, str]]) -> str:
    """Return, on one line, what to do about plugins that are not in use; ``wanted`` has their :func:`version_of`."""
    load()
    status = {record.name: record.status for record in _plugins.records}
    reasons = {"blocked": "left out by PML_EXT_BLOCK", "not allowed": "not named in PML_EXT_PLUGINS"}
    texts = []
    for plugin, about in wanted.items():
        if about and plugin not in _plugins.loaded:
            exact = "{distribution} {version} is not installed; type: pip install {distribution}=={version}"
            here = f"is {reasons.get(status.get(plugin, ''), 'broken')}; pml-ext plugins -v shows more"
            texts.append(f"the plugin {plugin!r} " + (here if plugin in status else "of " + exact.format(**about)))
    return ". ".join(texts)


# Instances


class BuildContext(TypedDict, total=False):
    """Values known beside a component's own settings, by the name of the setting that each fills.

    A component may rely on these names and no others. Recipes, ``pml-ext bench`` and the conformance kit fill in what
    they know. ``embedding_size`` and ``num_classes`` fill settings without a default alone, the others any.

    Attributes:
        embedding_size: D.
        num_classes: of the training images, or of the batches that are timed or checked.
        class_labels: the labels of the training images, each once, sorted. Recipes alone.
        collect_stats: True, since a run records what is collected. Recipes alone, for the component itself; the others
            are for the components in its settings too.
        labels: one per training image, in their order. For samplers, as the following.
        batch_size: images per batch, of all processes together.
        length_before_new_iter: images per epoch.
        seed: the run's. Recipes alone.
    """

    embedding_size: int
    num_classes: int
    class_labels: list[int]
    collect_stats: bool
    labels: Any
    batch_size: int
    length_before_new_iter: int
    seed: int


def build(name: str, kind: str | None = None, context: Mapping[str, Any] | None = None, /, **settings: Any) -> Any:
    """Return an instance of the component of a name and a kind: see :func:`get`.

    ``context`` is a :class:`BuildContext`, which fills settings that are left out; ``settings`` are arguments of the
    class. A table with a ``name`` (``distance={"name": "pml/lp", "p": 2}``) is built first, as the kind that the
    setting's name ends in. ConfigError for a setting that the class does not have.
    """
    if kind is None and settings.get("kind") in KINDS:
        kind = settings.pop("kind")
    component, context = get(name, kind), context or {}
    check_settings(component.name, component.settings, settings)
    inner = {name: value for name, value in context.items() if name != "collect_stats"}
    for key, value in settings.items():
        of = key.rsplit("_", 1)[-1]
        if isinstance(value, Mapping) and "name" in value and of in KINDS:
            more = {name: setting for name, setting in value.items() if name != "name"}
            settings[key] = build(value["name"], of, inner, **more)
    return component.cls(**filled(component.cls, context, settings), **settings)


def check_settings(owner: str, accepted: Iterable[str], given: Iterable[str]) -> None:
    """Raise ConfigError for a setting that ``owner`` does not accept, with the nearest accepted ones."""
    accepted = list(accepted)
    for name in given:
        if name not in accepted:
            raise ConfigError(unknown(f"setting of {owner}", name, accepted))


def required(
    target: Callable[..., Any], context: Mapping[str, Any], given: Iterable[str] = ()
) -> tuple[dict[str, Any], list[str]]:
    """Return values of the settings of ``target`` without a default, and the names of those still missing.

    Values come from a :class:`BuildContext` (ConfigError for another key in it); a setting whose annotation is a
    component's class (``distance: My``) is an instance of that, made in the same way. Names in ``given`` need none.
    """
    for name in context:
        if name not in BuildContext.__annotations__:
            raise ConfigError(unknown("name of a BuildContext", name, BuildContext.__annotations__))
    values: dict[str, Any] = {}
    missing = []
    given = set(given)
    for name, parameter in settings_of(target).items():
        if parameter.default is not parameter.empty or name in given:
            continue
        if name in context:
            values[name] = context[name]
        elif (instance := _of_annotation(parameter.annotation, context)) is not None:
            values[name] = instance
        else:
            missing.append(name)
    return values, missing


def _of_annotation(annotation: Any, context: Mapping[str, Any]) -> Any:
    """Return an instance of a component's class that needs nothing but the context; None of any other annotation."""
    if not isinstance(annotation, type) or inspect.isabstract(annotation):
        return None
    if annotation.__module__.startswith(("pytorch_metric_learning.", "torch.")):  # any component of the kind will do
        return None
    try:
        kind_of(annotation)
    except TypeError:
        return None
    values, missing = required(annotation, context)
    return None if missing else annotation(**values)


def filled(target: Callable[..., Any], context: Mapping[str, Any], given: Iterable[str] = ()) -> dict[str, Any]:
    """Return all settings that a context fills; the arguments are those of :func:`required`."""
    given = set(given)
    values, _ = required(target, context, given)
    with_default = settings_of(target).keys() & context.keys() - given - {"embedding_size", "num_classes"}
    return values | {name: context[name] for name in with_default}
