"""Look-up of components, recipes, data sets, trunks ... by name, and construction of components.

If several plugins claim a name, the plugin of this distribution wins, so that third-party plugins cannot change our
recipes; without such a plugin it is an error. ``entry-point:name`` is always unambiguous.
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.resources.abc import Traversable
from typing import Any, TypedDict

from ..errors import ConfigError, PluginError, PluginWarning, UnknownNameError, shortened, unknown
from ..settings import settings_of
from .components import KINDS, Command, Component, Paper, kebab, kind_of
from .discovery import LOCAL, TABLES, PluginRecord, Plugins, validated

_plugins = Plugins()


def plugins() -> list[PluginRecord]:
    """Return the record of each entry point, name clashes included.

    This calls all hooks, and imports what other distributions' plugins name by its import path.
    """
    for record in _plugins.records:
        record.clashes = []
        record.commands = []
    for name, by_plugin in _plugins.registered("command").items():
        for plugin in by_plugin.keys() & _plugins.loaded.keys():
            _plugins.loaded[plugin].commands.append(name)
    for kind in (*KINDS, *TABLES, "class"):
        for name, by_plugin in _plugins.registered(kind).items():
            if len(by_plugin) > 1:
                _record_name_clash(kind, name, list(by_plugin))
    for record in _plugins.loaded.values():
        if not record.shipped:
            _record_failing_imports(record)
    return list(_plugins.records)


def loaded_plugins() -> list[PluginRecord]:
    """Return the records of the entry points that are loaded; this calls no further hook."""
    _plugins.load()
    return list(_plugins.loaded.values())


def records_of(what: str) -> list[PluginRecord]:
    """Return the records of an entry point, or of those of a package; this calls no further hook."""
    _plugins.load()
    found = []
    for record in _plugins.records:
        if what in (record.name, record.package):
            found.append(record)
    return found


def _record_failing_imports(record: PluginRecord) -> None:
    """Import the classes and commands that a plugin names as text, and record what fails, each failure once."""
    for component in components():
        if component.plugin == record.name:
            with _recorded(record, "pml_ext_components"):
                _ = component.cls
    for name, by_plugin in _plugins.registered("command").items():
        if record.name in by_plugin:
            with _recorded(record, "pml_ext_commands"):
                by_plugin[record.name].load(name, record.name)


@contextlib.contextmanager
def _recorded(record: PluginRecord, hook: str) -> Iterator[None]:
    """Record a PluginError of an import inside the block."""
    try:
        yield
    except PluginError as error:
        if str(error) not in record.error:
            _plugins.add_error(record, error, hook)


def _record_name_clash(kind: str, name: str, plugins: list[str]) -> None:
    """Add a text about a name of several plugins to the records of those that are entry points."""
    meant = list(_candidates(kind, name))  # by the bare name
    if len(meant) == 1:
        meaning = f"means that of {meant[0]!r}"
    else:
        meaning = "is an error"
    for plugin in plugins:
        if plugin in _plugins.loaded:
            others = " and ".join(repr(other) for other in plugins if other != plugin)
            text = f"{kind} {name!r}: also of {others}; the bare name {meaning}"
            _plugins.loaded[plugin].clashes.append(text)


@contextlib.contextmanager
def isolated() -> Iterator[None]:
    """Use a fresh registry inside the block, with entry points read again; restore the old one afterwards."""
    global _plugins
    before = _plugins
    _plugins = Plugins()
    try:
        yield
    finally:
        _plugins = before


def _candidates(kind: str, name: str) -> dict[str, Any]:
    """Return the candidates for a name, or ``entry-point:name``, by plugin: several if the name is ambiguous."""
    registered = _plugins.registered(kind)
    prefix, _, bare_name = name.rpartition(":")
    if prefix in registered.get(bare_name, {}):
        return {prefix: registered[bare_name][prefix]}
    by_plugin = registered.get(name, {})
    shipped = {}
    for plugin, value in by_plugin.items():
        if _plugins.ships(plugin):
            shipped[plugin] = value
    return shipped or by_plugin


def find(kind: str, name: str) -> tuple[str, Any]:
    """Return the plugin and the value of a name; ``kind`` is one of :data:`KINDS`, ``"class"``, or of a factory.

    Raise UnknownNameError for an unknown name, and PluginError if two plugins claim it.
    """
    found = _candidates(kind, name)
    if not found:
        error = _plugins.missing_extras.get(kind)
        if error is not None:
            raise error
        raise UnknownNameError(unknown(kind, name, sorted(_plugins.registered(kind))))
    if len(found) > 1:
        qualified = []
        for plugin, value in found.items():  # components have names of their own
            qualified.append(getattr(value, "qualified_name", f"{plugin}:{name}"))
        names = " or ".join(map(repr, qualified))
        raise PluginError(f"{name!r} is claimed by two plugins; use {names}, or leave one out with PML_EXT_BLOCK")
    return next(iter(found.items()))


def components(kind: str | None = None) -> list[Component]:
    """Return all components, or all of one kind of :data:`KINDS`, sorted by name."""
    if kind is not None and kind not in KINDS:
        raise UnknownNameError(f"no kind {kind!r}; kinds are {', '.join(KINDS)}")
    found: list[Component] = []
    for chosen in _kinds(kind):
        for by_plugin in _plugins.registered(chosen).values():
            found += by_plugin.values()
    return sorted(found, key=lambda c: (c.name.startswith("pml/"), c.name, c.plugin))


def _kinds(kind: str | None) -> tuple[str, ...]:
    """Return the one kind, or without one all of :data:`KINDS`."""
    return (kind,) if kind else KINDS


def get(name: str, kind: str | None = None) -> Component:
    """Return the component with a name: ``"my-loss"``, ``"pml/multi-similarity"``, or ``"entry-point:name"``.

    ``kind`` is one of :data:`KINDS`, required if two kinds share the name; errors as in :func:`find`.
    """
    if kind:
        return _component(kind, name)
    kinds = [each for each in KINDS if _candidates(each, name)]
    if not kinds:
        raise UnknownNameError(unknown("component", name, (c.name for c in components())))
    if len(kinds) > 1:
        named = " and ".join(f"a {kind}" for kind in kinds)
        raise UnknownNameError(f"{name!r} is {named}; say which, for example kind={kinds[0]!r}")
    return _component(kinds[0], name)


def _component(kind: str, name: str) -> Component:
    _, component = find(kind, name)
    return component  # type: ignore[no-any-return]


def candidates(name: str, kind: str | None = None) -> list[Component]:
    """Return the components that a name (see :func:`get`) may refer to: of several kinds or plugins."""
    found: list[Component] = []
    for each in _kinds(kind):
        found += _candidates(each, name).values()
    return found


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
    meant = _candidates(component.kind, component.name)
    if LOCAL not in meant:
        other = next(iter(meant))
        text = f"{component.name!r} is a {component.kind} of {other!r} too, which the bare name means"
        warnings.warn(f"{text}; {component.qualified_name} is yours", PluginWarning, stacklevel=2)
    return cls


def class_names() -> dict[str, dict[str, Component]]:
    """Return the classes of ``from pml_ext import X``, ``{class name: {plugin: component}}``, PML's left out."""
    return _plugins.registered("class")


def recipes() -> dict[str, Traversable]:
    """Return recipe files by name, sorted."""
    return factories("recipe")


def factories(kind: str) -> dict[str, Any]:
    """Return all values of ``"data set"``, ``"trunk"``, ``"transform"``, ``"metric"``, ``"tracker"``, ``"store"`` ...

    A value whose bare name is ambiguous or shadowed by another plugin is listed as ``entry-point:name``.
    """
    values = {}
    for name, _, value in _by_shortest_name(kind):
        values[name] = value
    return dict(sorted(values.items()))


def _by_shortest_name(kind: str) -> Iterator[tuple[str, str, Any]]:
    """Yield the shortest unambiguous name, the plugin and the value of everything of a kind."""
    for name, by_plugin in _plugins.registered(kind).items():
        meant = list(_candidates(kind, name))
        for plugin, value in by_plugin.items():
            shown = name if meant == [plugin] else f"{plugin}:{name}"
            yield shown, plugin, value


def factory(kind: str, name: str) -> Callable[..., Any]:
    """Return the factory of a ``"data set"``, ``"trunk"``, ``"transform"``, ``"tracker"`` ...; see :func:`find`."""
    _, found = find(kind, name)
    return found  # type: ignore[no-any-return]


def commands() -> dict[str, tuple[str, Command]]:
    """Return the plugin and the command of each name of ``pml-ext``, those of the layer first.

    A command whose bare name is ambiguous or shadowed by another plugin is listed as ``entry-point:name``.
    """
    found = {}
    for name, plugin, command in _by_shortest_name("command"):
        found[name] = (plugin, command)
    return found


def ships(plugin: str) -> bool:
    """Return whether a plugin belongs to this distribution, as the core and PML's own components do."""
    _plugins.load()
    return _plugins.ships(plugin)


def version_of(plugin: str) -> dict[str, str]:
    """Return the distribution and version of a plugin; an empty dict for the core, PML and local classes."""
    _plugins.load()
    record = _plugins.loaded.get(plugin)
    if record:
        return {"distribution": record.distribution, "version": record.version}
    return {}


def missing_plugins(wanted: Mapping[str, Mapping[str, str]]) -> str:
    """Return a line that says which required plugins are missing, and how to install them.

    ``wanted`` has the :func:`version_of` of each plugin.
    """
    _plugins.load()
    records = {record.name: record for record in _plugins.records}
    texts = []
    for plugin, about in wanted.items():
        record = records.get(plugin)
        if record is None:
            distribution = about["distribution"]
            version = about["version"]
            texts.append(
                f"the plugin {plugin!r} of {distribution} {version} is not installed; "
                f"type: pip install {distribution}=={version}"
            )
        elif record.status != "ok":
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
    component = get(name, kind)
    context = context or {}
    check_settings(component.name, component.settings, settings)

    inner_context = dict(context)
    inner_context.pop("collect_stats", None)
    for key, value in settings.items():
        inner_kind = key.rpartition("_")[2]
        if isinstance(value, Mapping) and "name" in value and inner_kind in KINDS:
            inner_settings = dict(value)
            inner_name = inner_settings.pop("name")
            settings[key] = build(inner_name, inner_kind, inner_context, **inner_settings)
    if component.name == "pml/class-weighted" and "weights" in settings:
        settings["weights"] = _weights_by_label(settings["weights"], context.get("class_labels"))

    filled, _ = fill_settings(component.cls, context, settings)
    return component.cls(**filled, **settings)


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
    target: Callable[..., Any],
    context: Mapping[str, Any],
    given: Iterable[str] = (),
    known: Mapping[str, inspect.Parameter] | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """Return the values of settings of ``target`` that are not ``given``, and the names of required ones still missing.

    Values come from a :class:`BuildContext` (ConfigError for another key in it). A required setting whose annotation is
    a component's class (``distance: My``) gets an instance, filled in the same way. ``known`` are the target's
    :func:`settings_of`, if the caller has them.
    """
    check_settings("a BuildContext", BuildContext.__annotations__, context)
    values: dict[str, Any] = {}
    missing = []
    given = set(given)
    for name, parameter in (known or settings_of(target)).items():
        required = parameter.default is parameter.empty
        keeps_default = not required and name in ("embedding_size", "num_classes")
        if name in given or keeps_default:
            continue
        if name in context:
            values[name] = context[name]
        elif required:
            instance = _instance_of(parameter.annotation, context)
            if instance is None:
                missing.append(name)
            else:
                values[name] = instance
    return values, missing


def _instance_of(annotation: Any, context: Mapping[str, Any]) -> Any:
    """Return an instance of a component's class if the context has all required settings; else None."""
    try:
        kind_of(annotation)
    except TypeError:
        return None
    if annotation.__module__.startswith(("pytorch_metric_learning.", "torch.")):  # a base class: any component would do
        return None
    optional = []  # these keep their defaults
    for name, setting in settings_of(annotation).items():
        if setting.default is not setting.empty:
            optional.append(name)
    values, missing = fill_settings(annotation, context, optional)
    if missing:
        return None
    return annotation(**values)
