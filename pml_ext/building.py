"""Makes instances of components: what fills the settings that nobody wrote, and settings that are components."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypedDict

from .components import KINDS, Component, kind_of, settings_of
from .errors import ConfigError, unknown

LookUp = Callable[[str, str | None], Component]


class BuildContext(TypedDict, total=False):
    """What is known beside a component's own settings, by the name of the setting that it fills.

    This is the whole list of the names that a component may rely on. Recipes, ``pml-ext bench`` and the conformance kit
    fill in what they know; what is not known where a component is built is left out.

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


_WHERE_REQUIRED = frozenset({"embedding_size", "num_classes"})


def required(
    target: Callable[..., Any], context: Mapping[str, Any], given: Iterable[str] = ()
) -> tuple[dict[str, Any], list[str]]:
    """Settings without a default, from what is known beside them.

    One that the context does not have, but whose annotation is a component's class (``distance: MyDistance``), is an
    instance of that, made from the context in the same way.

    Args:
        target: a class or a function.
        context: a :class:`BuildContext`.
        given: names that need no value.

    Returns:
        Values by name, and the names of those that are still missing.

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
    """An instance of a component's class that needs nothing but the context; None of any other annotation."""
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
    """All settings that a context fills: see :class:`BuildContext`.

    Args:
        target: a class or a function.
        context: a :class:`BuildContext`.
        given: names that have a value already.

    Returns:
        Values by name.

    Raises:
        ConfigError: a key of the context that is no name of a :class:`BuildContext`.
    """
    given = set(given)
    values, _ = required(target, context, given)
    open_to_it = settings_of(target).keys() & context.keys() - given - _WHERE_REQUIRED
    return values | {name: context[name] for name in open_to_it}


def instance(component: Component, look_up: LookUp, context: Mapping[str, Any], settings: Mapping[str, Any]) -> Any:
    """An instance of a component; a setting that is a table with a ``name`` is a component of its own.

    Args:
        component: what to make.
        look_up: the component of a name and a kind, for such tables.
        context: a :class:`BuildContext`.
        settings: keyword arguments of the class.

    Raises:
        ConfigError: a setting that the class does not have; the text has the nearest ones.
    """
    check_settings(component.name, component.settings, settings)
    inner = {name: value for name, value in context.items() if name != "collect_stats"}
    built = {key: _built(key, value, look_up, inner) for key, value in settings.items()}
    return component.cls(**filled(component.cls, context, settings), **built)


def _built(key: str, value: Any, look_up: LookUp, context: Mapping[str, Any]) -> Any:
    kind = key.rsplit("_", 1)[-1]
    if isinstance(value, Mapping) and "name" in value and kind in KINDS:
        settings = {name: setting for name, setting in value.items() if name != "name"}
        return instance(look_up(value["name"], kind), look_up, context, settings)
    return value


def check_settings(owner: str, accepted: Iterable[str], given: Iterable[str]) -> None:
    """Refuses names that are not accepted.

    Args:
        owner: whose settings they are, for the text.
        accepted: the names that it has.
        given: the names to check.

    Raises:
        ConfigError: naming the first unknown one and the nearest accepted ones.
    """
    accepted = list(accepted)
    for name in given:
        if name not in accepted:
            raise ConfigError(unknown(f"setting of {owner}", name, accepted))
