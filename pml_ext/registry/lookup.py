"""Look-up of components, recipes, data sets, trunks ... by name, and construction of components.

If several plugins claim a name, the plugin of this distribution wins, so that third-party plugins cannot change our
recipes; without such a plugin it is an error. ``entry-point:name`` is always unambiguous.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.resources.abc import Traversable
from typing import Any, TypedDict

from ..errors import ConfigError, PluginError, PluginWarning, UnknownNameError, shortened
from ..errors import unknown as unknown
from ..settings import settings_of as settings_of
from .components import CAPABILITIES as CAPABILITIES
from .components import KINDS as KINDS
from .components import Command, kebab
from .components import Component as Component
from .components import Paper as Paper
from .components import capabilities as capabilities
from .components import kind_of as kind_of
from .discovery import LOCAL as LOCAL
from .discovery import TABLES, PluginRecord, Plugins, validated

_plugins = Plugins()


def plugins() -> list[PluginRecord]:
    """Return the record of each entry point, name clashes included; this calls all hooks."""
    for record in _plugins.records:
        record.clashes = []
        record.commands = []
    for name, owners in _plugins.claims("command").items():
        for plugin in owners.keys() & _plugins.loaded.keys():
            _plugins.loaded[plugin].commands.append(name)
    for what in (*KINDS, *TABLES, "class"):
        for name, owners in _plugins.claims(what).items():
            meant = [*_candidates(what, name)]
            means = f"means that of {meant[0]!r}" if len(meant) == 1 else "is an error"
            for plugin in owners.keys() & _plugins.loaded.keys() if len(owners) > 1 else ():
                others = " and ".join(repr(other) for other in owners if other != plugin)
                _plugins.loaded[plugin].clashes.append(f"{what} {name!r}: also of {others}; the bare name {means}")
    return list(_plugins.records)


@contextlib.contextmanager
def isolated() -> Iterator[None]:
    """Use a fresh registry inside the block, with entry points read again; restore the old one afterwards."""
    global _plugins
    before, _plugins = _plugins, Plugins()
    try:
        yield
    finally:
        _plugins = before


def _candidates(what: str, name: str) -> dict[str, Any]:
    """Return the candidates for a name, or ``entry-point:name``, by plugin: several if the name is ambiguous."""
    claims = _plugins.claims(what)
    plugin, _, short = name.rpartition(":")
    if plugin in claims.get(short, {}):
        return {plugin: claims[short][plugin]}
    owners = claims.get(name, {})
    return {plugin: value for plugin, value in owners.items() if _plugins.ships(plugin)} or owners


def find(what: str, name: str) -> tuple[str, Any]:
    """Return the plugin and the value of a name; ``what`` is a kind, ``"class"``, or as in :func:`factories`.

    Raise UnknownNameError for an unknown name, and PluginError if two plugins claim it.
    """
    found = _candidates(what, name)
    if not found:
        if error := _plugins.lacking_extra.get(what):
            raise error
        raise UnknownNameError(unknown(what, name, sorted(_plugins.claims(what))))
    if len(found) > 1:
        names = " or ".join(repr(getattr(v, "qualified_name", f"{plugin}:{name}")) for plugin, v in found.items())
        raise PluginError(f"{name!r} is claimed by two plugins; use {names}, or leave one out with PML_EXT_BLOCK")
    return next(iter(found.items()))


def components(kind: str | None = None) -> list[Component]:
    """Return all components, or all of one kind of :data:`KINDS`, sorted by name."""
    if kind is not None and kind not in KINDS:
        raise UnknownNameError(f"no kind {kind!r}; kinds are {', '.join(KINDS)}")
    owners = [each for chosen in ([kind] if kind else KINDS) for each in _plugins.claims(chosen).values()]
    found: list[Component] = [component for each in owners for component in each.values()]
    return sorted(found, key=lambda c: (c.name.startswith("pml/"), c.name, c.plugin))


def get(name: str, kind: str | None = None) -> Component:
    """Return the component with a name: ``"my-loss"``, ``"pml/multi-similarity"``, or ``"entry-point:name"``.

    ``kind`` is one of :data:`KINDS`, required if two kinds share the name; errors as in :func:`find`.
    """
    kinds = [kind] if kind else [each for each in KINDS if _candidates(each, name)]
    if not kinds:
        raise UnknownNameError(unknown("component", name, (c.name for c in components())))
    if len(kinds) > 1:
        named = " and ".join(f"a {kind}" for kind in kinds)
        raise UnknownNameError(f"{name!r} is {named}; say which, for example kind={kinds[0]!r}")
    return find(kinds[0], name)[1]  # type: ignore[no-any-return]


def candidates(name: str, kind: str | None = None) -> list[Component]:
    """Return the components that a name (see :func:`get`) may refer to: of several kinds or plugins."""
    return [c for each in ([kind] if kind else KINDS) for c in _candidates(each, name).values()]


def short_name(component: Component) -> str:
    """Return the shortest unambiguous name of a component: its own, or with its plugin's as prefix."""
    alone = candidates(component.name, component.kind) == [component]
    return component.name if alone else component.qualified_name


def register(cls: type | None = None, *, name: str | None = None, paper: Paper | None = None) -> Any:
    """Register a class in the running process, as ``@register`` or ``@register(name="mine", paper=Paper(...))``.

    The name is kebab-case, by default that of the class (``MyOwnLoss`` becomes ``my-own``); registering the same name
    again replaces the class.
    """
    if cls is None:
        return lambda target: register(target, name=name, paper=paper)
    component = validated(Component(cls, name or kebab(cls.__name__), paper), LOCAL)
    _plugins.load()
    _plugins.add(component)
    if LOCAL not in (meant := _candidates(component.kind, component.name)):
        text = f"{component.name!r} is a {component.kind} of {next(iter(meant))!r} too, which the bare name means"
        warnings.warn(f"{text}; {component.qualified_name} is yours", PluginWarning, stacklevel=2)
    return cls


def class_names() -> dict[str, dict[str, Component]]:
    """Return the classes of ``from pml_ext import X``, ``{class name: {plugin: component}}``, PML's left out."""
    return _plugins.claims("class")


def recipes() -> dict[str, Traversable]:
    """Return recipe files by name, sorted."""
    return factories("recipe")


def factories(what: str) -> dict[str, Any]:
    """Return all values of ``"data set"``, ``"trunk"``, ``"metric"``, ``"tracker"``, ``"store"``, ``"paper"`` ...

    A value whose bare name is ambiguous or shadowed by another plugin is listed as ``entry-point:name``.
    """
    names: dict[str, Any] = {}
    for name, owners in _plugins.claims(what).items():
        means = [*_candidates(what, name)]
        names |= {name if means == [plugin] else f"{plugin}:{name}": value for plugin, value in owners.items()}
    return dict(sorted(names.items()))


def factory(what: str, name: str) -> Callable[..., Any]:
    """Return the factory of a ``"data set"``, ``"trunk"``, ``"tracker"`` or ``"store"``; see :func:`find`."""
    return find(what, name)[1]  # type: ignore[no-any-return]


def commands() -> dict[str, tuple[str, Command]]:
    """Return the plugin and the command of each name of ``pml-ext``, those of the layer first.

    A command whose bare name is ambiguous or shadowed by another plugin is listed as ``entry-point:name``.
    """
    names: dict[str, tuple[str, Command]] = {}
    for name, owners in _plugins.claims("command").items():
        meant = [*_candidates("command", name)]
        for plugin, command in owners.items():
            shown = name if meant == [plugin] else f"{plugin}:{name}"
            names[shown] = (plugin, command)
    return names


def version_of(plugin: str) -> dict[str, str]:
    """Return the distribution and version of a plugin; an empty dict for the core, PML and local classes."""
    _plugins.load()
    record = _plugins.loaded.get(plugin)
    return {"distribution": record.distribution, "version": record.version} if record else {}


def lacking(wanted: Mapping[str, Mapping[str, str]]) -> str:
    """Return one line of advice on required plugins that are not in use, given each one's :func:`version_of`."""
    _plugins.load()
    found = {record.name: record for record in _plugins.records}
    texts = []
    for plugin, about in wanted.items():
        if plugin not in found:
            exact = "of {distribution} {version} is not installed; type: pip install {distribution}=={version}"
            texts.append(f"the plugin {plugin!r} {exact.format(**about)}")
        elif (record := found[plugin]).status != "ok":
            texts.append(f"the plugin {plugin!r} is {record.status}, {shortened(record.error, 200)}")
    return ". ".join(texts)


class BuildContext(TypedDict, total=False):
    """Context values that fill omitted settings of a component, by the name of the setting.

    A component may rely on these names and no others. Recipes provide all of them; ``pml-ext bench`` and the
    conformance kit provide some. ``embedding_size`` and ``num_classes`` fill only settings without a default.
    """

    embedding_size: int  # D
    num_classes: int  # in the training images, or in the timed or checked batches
    class_labels: list[int]  # of the training images, each once, sorted
    collect_stats: bool  # True; not passed on to nested components, unlike the other values
    labels: Any  # one per training image, in order; for samplers, as are the next ones
    batch_size: int  # of all processes together
    length_before_new_iter: int  # images per epoch
    seed: int  # seed of the run
    relation: Any  # relation between training classes, if the recipe has one


def build(name: str, kind: str | None = None, context: Mapping[str, Any] | None = None, /, **settings: Any) -> Any:
    """Return an instance of the component that :func:`get` finds.

    ``context`` is a :class:`BuildContext`, which fills omitted settings; ``settings`` are arguments of the
    class. A table with a ``name`` (``distance={"name": "pml/lp", "p": 2}``) is built first; its kind is the last word
    of the setting. ConfigError for a setting that the class does not have.
    """
    component, context = get(name, kind), context or {}
    check_settings(component.name, component.settings, settings)
    inner = {name: value for name, value in context.items() if name != "collect_stats"}
    for key, value in settings.items():
        of = key.rsplit("_", 1)[-1]
        if isinstance(value, Mapping) and "name" in value and of in KINDS:
            more = {name: setting for name, setting in value.items() if name != "name"}
            settings[key] = build(value["name"], of, inner, **more)
    if component.name == "pml/class-weighted" and "weights" in settings:
        settings["weights"] = _weights_by_label(settings["weights"], context.get("class_labels"))
    return component.cls(**fill_settings(component.cls, context, settings)[0], **settings)


def _weights_by_label(weights: Any, class_labels: list[int] | None) -> Any:
    """Return a list of weights, one for each of the sorted class labels, as a tensor with the labels as indices.

    A list of another length has labels as indices already.
    """
    if not isinstance(weights, (list, tuple)):
        return weights
    import torch

    if not all(isinstance(weight, (int, float)) for weight in weights):
        raise ConfigError(f"weights of pml/class-weighted must be numbers, one for each class; got {weights!r}")
    values = torch.tensor(weights, dtype=torch.float64)
    if class_labels is None or len(weights) != len(class_labels):
        return values
    by_label = torch.zeros(max(class_labels) + 1, dtype=torch.float64)
    by_label[class_labels] = values
    return by_label


def check_settings(owner: str, accepted: Iterable[str], given: Iterable[str]) -> None:
    """Raise ConfigError for a setting that ``owner`` does not accept, with the nearest accepted ones."""
    accepted = list(accepted)
    for name in given:
        if name not in accepted:
            raise ConfigError(unknown(f"setting of {owner}", name, accepted))


def fill_settings(
    target: Callable[..., Any], context: Mapping[str, Any], given: Iterable[str] = ()
) -> tuple[dict[str, Any], list[str]]:
    """Return the values of settings of ``target`` that are not ``given``, and the names of required ones still missing.

    Values come from a :class:`BuildContext` (ConfigError for another key in it). A required setting whose annotation is
    a component's class (``distance: My``) gets an instance, filled in the same way.
    """
    check_settings("a BuildContext", BuildContext.__annotations__, context)
    values: dict[str, Any] = {}
    missing, given = [], set(given)
    for name, parameter in settings_of(target).items():
        required = parameter.default is parameter.empty
        if name in given or (not required and name in ("embedding_size", "num_classes")):
            continue
        if name in context:
            values[name] = context[name]
        elif required and (instance := _of_annotation(parameter.annotation, context)) is not None:
            values[name] = instance
        elif required:
            missing.append(name)
    return values, missing


def _of_annotation(annotation: Any, context: Mapping[str, Any]) -> Any:
    """Return an instance of a component's class if the context has all required settings; else None."""
    try:
        kind_of(annotation)
    except TypeError:
        return None
    if annotation.__module__.startswith(("pytorch_metric_learning.", "torch.")):  # a base class: any component would do
        return None
    optional = [name for name, setting in settings_of(annotation).items() if setting.default is not setting.empty]
    values, missing = fill_settings(annotation, context, optional)
    return None if missing else annotation(**values)
