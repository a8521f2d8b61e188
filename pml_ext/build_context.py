"""Values for omitted settings of a component."""

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypedDict

from .errors import ConfigError, unknown
from .settings import settings_of


class BuildContext(TypedDict, total=False):
    """Values that fill omitted settings of a component, by the name of the setting.

    ``embedding_size`` and ``num_classes`` fill only settings without a default.
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


def check_settings(owner: str, accepted: Iterable[str], given: Iterable[str]) -> None:
    """Raise ConfigError for a setting that ``owner`` does not accept."""
    accepted = list(accepted)
    for name in given:
        if name not in accepted:
            raise ConfigError(unknown(f"setting of {owner}", name, accepted))


def fill_settings(
    target: Callable[..., Any], context: Mapping[str, Any], given: Iterable[str] = ()
) -> tuple[dict[str, Any], list[str]]:
    """Values for settings that are not ``given``, and names of required ones still missing.

    Values come from a :class:`BuildContext`; another key in it raises ConfigError. A required setting annotated with a
    component's class (``distance: My``) gets an instance, filled in the same way.
    """
    check_settings("a BuildContext", BuildContext.__annotations__, context)
    values: dict[str, Any] = {}
    missing = []
    given = set(given)
    for name, parameter in settings_of(target).items():
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
    from . import pml

    bases = tuple(itertools.chain.from_iterable(pml.BASES.values()))
    if not isinstance(annotation, type) or not issubclass(annotation, bases):
        return None
    if annotation.__module__.startswith(("pytorch_metric_learning.", "torch.")):  # a base class: any component would do
        return None
    known = settings_of(annotation)
    optional = [name for name, setting in known.items() if setting.default is not setting.empty]  # keep their defaults
    values, missing = fill_settings(annotation, context, optional)
    return None if missing else annotation(**values)
