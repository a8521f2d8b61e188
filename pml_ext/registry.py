"""Look-up of components, recipes, data sets and trunks by name, and instances of components.

:mod:`pml_ext.plugins` finds plugins by their entry points, PML's own classes are here as ``pml/...``, and
:func:`register` adds a class of the running process. Importing this module imports neither torch nor any plugin; the
first look-up does.

A name that several plugins claim means that of ``home``, the plugin whose recipe has the name; else that of a plugin of
this distribution, so that nobody's plugin changes what our recipes mean; else it is an error that names both.
``entry-point:name`` reaches each.
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
_warned: set[str] = set()  # plugins whose classes have names of ours
_HOOKS = {"data set": "pml_ext_datasets", "trunk": "pml_ext_trunks"}


def load() -> bool:
    """Load the plugins, unless that was done; return whether that goes on, so that later ones are not there yet."""
    _plugins.load()
    return _plugins.loading


def plugins() -> list[PluginRecord]:
    """Return the entry points found, with what became of them; all their hooks are called."""
    for hook in TABLES:
        _plugins.table(hook)
    owners: dict[tuple[str, str], list[str]] = {}
    for component in _plugins.components:
        owners.setdefault((component.kind, component.name), []).append(component.plugin)
    for what, hook in _HOOKS.items():
        owners |= {(what, name): [*factories] for name, factories in _claims(hook).items()}
    for class_name, named in class_names().items():
        owners["class", class_name] = [*dict.fromkeys(c.plugin for c in named)]
    for record in _plugins.records:
        record.clashes = []
    for (what, name), claiming in owners.items():
        chosen = _chosen(claiming)
        means = f"means that of {chosen[0]!r}" if len(chosen) == 1 else "is an error"
        for plugin in claiming if len(claiming) > 1 else ():
            others = " and ".join(repr(other) for other in claiming if other != plugin)
            if plugin in _plugins.loaded:
                text = f"{what} {name!r}: also of {others}; the bare name {means}"
                _plugins.loaded[plugin].clashes.append(text)
    return list(_plugins.records)


@contextlib.contextmanager
def isolated() -> Iterator[None]:
    """Read the entry points anew, and forget what is found and registered inside the block."""
    global _plugins, _warned
    before, _plugins, _warned = (_plugins, _warned), Plugins(), set()
    try:
        yield
    finally:
        _plugins, _warned = before


def _chosen(claiming: Iterable[str], home: str = "") -> list[str]:
    """Return the plugins that a name claimed by several means; more than one where nothing decides."""
    claiming = list(claiming)
    for wanted in ([p for p in claiming if p == home], [p for p in claiming if _plugins.ships(p)]):
        if wanted:
            return wanted
    return claiming


def _clash(name: str, claims: Mapping[str, str], form: str = "{!r}") -> PluginError:
    """Return the error for a name that nothing decides; ``claims`` are plugins by qualified name."""
    texts = " and ".join(f"{form.format(full)} ({_plugins.owner(plugin)})" for full, plugin in claims.items())
    return PluginError(f"{name!r} is claimed by two plugins; use {texts}, or leave one out with PML_EXT_BLOCK")


# Components


def components(kind: str | None = None) -> list[Component]:
    """Return all components, or all of one kind of :data:`KINDS`, sorted by name."""
    if kind is not None and kind not in KINDS:
        raise UnknownNameError(f"no kind {kind!r}; kinds are {', '.join(KINDS)}")
    load()
    chosen = [c for c in _plugins.components if kind is None or c.kind == kind]
    return sorted(chosen, key=lambda c: (c.name.startswith("pml/"), c.name, c.plugin))


def get(name: str, kind: str | None = None, home: str = "") -> Component:
    """Return the component of a name.

    Args:
        name: ``"my-loss"``, ``"pml/multi-similarity"``, or ``"entry-point:name"``.
        kind: one of :data:`KINDS`; needed where two kinds share the name.
        home: the plugin of the recipe that has the name, whose own components come first.

    Raises:
        UnknownNameError: nothing, or more than one kind, has the name.
        PluginError: two plugins claim the name.
    """
    named = candidates(name, kind, home)
    if len(named) == 1:
        return named[0]
    if not named:
        raise UnknownNameError(unknown(kind or "component", name, (c.name for c in components(kind))))
    if len({c.kind for c in named}) > 1:
        kinds = " and ".join(f"a {c.kind}" for c in named)
        raise UnknownNameError(f"{name!r} is {kinds}; say which, for example kind={named[0].kind!r}")
    raise _clash(name, {c.qualified_name: c.plugin for c in named})


def candidates(name: str, kind: str | None = None, home: str = "") -> list[Component]:
    """Return the components that a name (see :func:`get`) may mean, of several kinds or of several plugins."""
    known = components(kind)
    if exact := [c for c in known if c.qualified_name == name]:
        return exact
    named = [c for c in known if c.name == name]
    chosen = _chosen([c.plugin for c in named], home)
    return [c for c in named if c.plugin in chosen]


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
    meant = candidates(component.name, component.kind)
    if LOCAL not in {other.plugin for other in meant}:
        warnings.warn(
            f"{component.name!r} is a {component.kind} of {meant[0].plugin!r} too, which the bare name means; "
            f"{LOCAL}:{component.name} is yours",
            PluginWarning,
            stacklevel=2,
        )
    return cls


def unregister_local() -> None:
    """Forget the classes that :func:`register` added."""
    _plugins.forget_local()


def class_names() -> dict[str, list[Component]]:
    """Return registered classes, PML's left out, by class name: what ``from pml_ext import X`` offers."""
    names: dict[str, list[Component]] = {}
    for component in components():
        if not component.name.startswith("pml/"):
            names.setdefault(component.cls.__name__, []).append(component)
    return names


def class_by_name(class_name: str) -> type:
    """Return the registered class of a class name; of several, that of this distribution, with one warning.

    Raises:
        UnknownNameError: no such class.
        PluginError: several plugins have such a class, and none is of this distribution.
    """
    names = class_names()
    owners = names.get(class_name, [])
    chosen = _chosen([c.plugin for c in owners])
    classes = {c.cls: c for c in owners if c.plugin in chosen}
    if len(classes) > 1:
        claims = {c.qualified_name: c.plugin for c in classes.values()}
        raise _clash(class_name, claims, "pml_ext.registry.get({!r}).cls")
    if not classes:
        raise UnknownNameError(unknown("class", class_name, names))
    for other in owners:
        if other.cls not in classes and other.plugin not in _warned:
            _warned.add(other.plugin)
            shared = ", ".join(name for name, all_of in names.items() if {c.plugin for c in all_of} > {other.plugin})
            warnings.warn(
                f"the plugin {other.plugin!r} ({_plugins.owner(other.plugin)}) has classes of names that pml_ext "
                f"ships: {shared}; pml_ext's are taken, and pml_ext.registry.get({other.qualified_name!r}, "
                f"{other.kind!r}).cls is the other {other.cls.__name__}",
                PluginWarning,
                stacklevel=3,
            )
    return next(iter(classes))


# Recipes, data sets, trunks, peers


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


def papers() -> dict[str, Traversable]:
    """Return files of papers by name; one that its bare name does not mean is there as ``entry-point:name``."""
    return _by_name("pml_ext_papers")


def datasets() -> dict[str, Callable[..., Any]]:
    """Return factories of data sets by name; one that its bare name does not mean is there as ``entry-point:name``."""
    return _by_name("pml_ext_datasets")


def dataset(name: str) -> Callable[..., Any]:
    """Return the factory of a data set: see :func:`pml_ext.hookspecs.pml_ext_datasets`."""
    return _claimant("data set", name)[1]


def trunks() -> dict[str, Callable[..., Any]]:
    """Return factories of trunks by name; one that its bare name does not mean is there as ``entry-point:name``."""
    return _by_name("pml_ext_trunks")


def trunk(name: str) -> Callable[..., Any]:
    """Return the factory of a trunk: see :func:`pml_ext.hookspecs.pml_ext_trunks`."""
    return _claimant("trunk", name)[1]


def metrics() -> dict[str, Callable[..., Any]]:
    """Return metrics of plugins by name; one that its bare name does not mean is there as ``entry-point:name``."""
    return _by_name("pml_ext_metrics")


def benchmark_peers(component: Component) -> dict[str, Callable[..., Any]]:
    """Return what ``pml-ext bench`` measures a loss against, by label."""
    return dict(_plugins.table("pml_ext_benchmark_peers").get(component.plugin, {}).get(component.name, {}))


def _claims(hook: str) -> dict[str, dict[str, Any]]:
    """Return ``{name: {plugin: value}}``."""
    names: dict[str, dict[str, Any]] = {}
    for plugin, table in _plugins.table(hook).items():
        for name, value in table.items():
            names.setdefault(name, {})[plugin] = value
    return names


def _by_name(hook: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    for name, owners in _claims(hook).items():
        chosen = _chosen(owners)
        names |= {name if chosen == [plugin] else f"{plugin}:{name}": value for plugin, value in owners.items()}
    return dict(sorted(names.items()))


def _claimant(what: str, name: str, home: str = "") -> tuple[str, Callable[..., Any]]:
    """Return the plugin and the factory that the name of a data set or a trunk means."""
    names = _claims(_HOOKS[what])
    plugin, _, short = name.partition(":")
    if plugin in names.get(short, {}):
        return plugin, names[short][plugin]
    if name not in names:
        if error := _plugins.lacking_extra.get(_HOOKS[what]):
            raise error
        raise UnknownNameError(unknown(what, name, names))
    chosen = _chosen(names[name], home)
    if len(chosen) > 1:
        raise _clash(name, {f"{plugin}:{name}": plugin for plugin in chosen})
    return chosen[0], names[name][chosen[0]]


def plugin_of(what: str, name: str, home: str = "") -> str:
    """Return the plugin that a name of a kind, a ``"data set"`` or a ``"trunk"`` means: see :func:`get`."""
    return _claimant(what, name, home)[0] if what in _HOOKS else get(name, what, home).plugin


def version_of(plugin: str) -> dict[str, str]:
    """Return the distribution and version of a plugin; nothing for the core, PML and classes of this process."""
    load()
    record = _plugins.loaded.get(plugin)
    return {"distribution": record.distribution, "version": record.version} if record else {}


def lacking(wanted: Mapping[str, Mapping[str, str]]) -> str:
    """Return, on one line, what to do about plugins that are not in use; ``wanted`` has their :func:`version_of`."""
    load()
    reasons = {"blocked": "left out by PML_EXT_BLOCK", "not allowed": "not named in PML_EXT_PLUGINS"}
    texts = []
    for plugin, about in wanted.items():
        if not about or plugin in _plugins.loaded:
            continue
        status = next((record.status for record in _plugins.records if record.name == plugin), "")
        name, version = about.get("distribution", plugin), about.get("version", "")
        exact = f"{name}=={version}" if version else name
        texts.append(
            f"the plugin {plugin!r} is {reasons.get(status, status)}; pml-ext plugins -v shows more"
            if status
            else f"the plugin {plugin!r} of {name} {version} is not installed; type: pip install {exact}"
        )
    return ". ".join(texts)


# Instances


class BuildContext(TypedDict, total=False):
    """Values known beside a component's own settings, by the name of the setting that each fills.

    A component may rely on these names and no others. Recipes, ``pml-ext bench`` and the conformance kit fill in what
    they know; what is not known where a component is built is left out.

    These fill settings that have no default:

    - ``embedding_size``: D. A recipe's ``[model] embedding_size``; the size of the batches that are timed or checked.
    - ``num_classes``: of the training images; of the batches that are timed or checked.

    These fill a setting with a default as well, since that cannot know the data:

    - ``class_labels``: the labels of the training images, each once, sorted. Recipes alone.
    - ``collect_stats``: True, since a run records what is collected. Recipes alone, and for the component itself; the
      other names are for the components in its settings too.
    - ``labels``: one per training image, in their order. For samplers of recipes, and in the kit.
    - ``batch_size``: images per batch, of all processes together. As ``labels``.
    - ``length_before_new_iter``: images per epoch. As ``labels``.
    - ``seed``: the run's. For samplers of recipes.
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

    Args:
        name: the component's name.
        kind: its kind, also as ``kind="loss"`` where its class has no such setting.
        context: a :class:`BuildContext`, which fills settings that are left out.
        settings: keyword arguments of the class. A table with a ``name`` (``distance={"name": "pml/lp", "p": 2}``) is
            built first, as the kind that the setting's name ends in.

    Raises:
        ConfigError: a setting that the class does not have; the text has the nearest ones.
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

    Values come from a :class:`BuildContext`; a setting whose annotation is a component's class (``distance: My``)
    is an instance of that, made from the context in the same way. Names in ``given`` need none.

    Raises:
        ConfigError: a key of the context that is no name of a :class:`BuildContext`.
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
