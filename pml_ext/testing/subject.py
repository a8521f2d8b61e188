"""The component that is checked, and how a fresh instance of it is made."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import itertools
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from .. import registry
from ..errors import ConfigError
from ..registry import BuildContext, check_settings, filled
from .batches import CLASSES, SIZE, batch_of, labels_of

# Settings of PML's base classes, which are components of their own, or no part of the equation.
OF_PML = {"distance", "reducer", "collect_stats", "is_inverted", "tile_size"} | {
    *("embedding_regularizer", "embedding_reg_weight", "weight_regularizer", "weight_reg_weight", "weight_init_func")
}
_SIZED = ("loss", "miner", "regularizer", "distance")

Settings = Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Sequence[Any]]]


class SkipCheck(Exception):
    """A check does not apply; the text says why."""


@dataclasses.dataclass(frozen=True)
class Grid:
    """The slow form that a component is compared with, and under which settings.

    Args:
        reference: a slow form of its equation, or None.
        settings: the settings of each instance; those that are not in them are varied about the first.
        without_effect: settings that change how something is computed, and not its value.
    """

    reference: Callable[..., Any] | None
    settings: Sequence[Mapping[str, Any]]
    without_effect: frozenset[str]


@dataclasses.dataclass(frozen=True)
class Subject:
    """A component, and how to get a fresh one.

    Args:
        name: of the class, the registered name, or that of the function which makes it.
        kind: one of :data:`pml_ext.registry.KINDS`.
        make: a new, equal instance in float64; given a table of settings, one with these (of a class alone).
        size: the embedding size that it wants.
        classes: how many classes it knows.
        cls: the class, if it is one that was given and not an instance.
        settings: that distinguish it from others of its class, by name.
        grid: what it is compared with, if anything.
        cache: results of one check that another needs.
    """

    name: str
    kind: str
    make: Callable[..., Any]
    size: int
    classes: int
    cls: type | None = None
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    grid: Grid | None = None
    cache: dict[str, Any] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    @property
    def capabilities(self) -> frozenset[str]:
        """The capabilities that an instance declares."""
        return registry.capabilities(self.make())

    @property
    def title(self) -> str:
        """The name, with the settings that distinguish it: ``MyLoss(margin=0.5)``."""
        shown = ", ".join(f"{name}={value!r}" for name, value in self.settings.items())
        return f"{self.name}({shown})" if shown else self.name


def takes_labels(component: Any) -> bool:
    """Whether labels are passed to a component: PML's regularizers take none, and all of its losses but a few do."""
    kind = registry.kind_of(type(component))
    if kind in ("loss", "miner"):
        return kind == "miner" or "labels" in registry.capabilities(component)
    return "labels" in getattr(component, "capabilities", ())


def subject_of(
    component: Any,
    reference: Callable[..., Any] | None = None,
    settings: Settings | None = None,
    without_effect: Iterable[str] = (),
    embedding_size: int | None = None,
    num_classes: int | None = None,
) -> Subject:
    """Return a component, a class, a function that makes one, or an instance as a subject.

    Args:
        component: as of :func:`pml_ext.testing.check_component`, as all that follow.
        reference: a slow form.
        settings: values by name, or several such tables.
        without_effect: names.
        embedding_size: the length of the embeddings that it is called with.
        num_classes: the number of classes of its batches.

    Raises:
        ConfigError: a class that needs settings which do not follow from a batch, or nothing of PML's kinds; settings
            that it does not have, or of an instance.
    """
    grid = _grid(settings or {})
    subject = _plain(
        component, grid[0], {"num_classes": num_classes or CLASSES, "embedding_size": embedding_size or SIZE}
    )
    given = {name for each in grid for name in each} | set(without_effect)
    if subject.cls is not None:
        check_settings(subject.name, registry.settings_of(subject.cls), given)
    elif given:
        raise ConfigError(
            f"settings are varied by building a class, and {subject.name} is built already; give the class "
            f"{subject.name}, or leave the settings out"
        )
    if embedding_size or num_classes:
        subject = dataclasses.replace(
            subject, size=embedding_size or subject.size, classes=num_classes or subject.classes
        )
    else:
        subject = _fitted(subject)
    if reference is None and settings is None and not without_effect:
        return subject
    return dataclasses.replace(subject, grid=Grid(reference, grid, frozenset(without_effect)))


def _grid(settings: Settings) -> list[dict[str, Any]]:
    tables = [settings] if isinstance(settings, Mapping) else list(settings)
    for name, values in (item for table in tables for item in table.items()):
        if not isinstance(values, (list, tuple)) or not values:
            raise ConfigError(
                f"settings name a list of values each, such as {{{name!r}: [{values!r}]}}; got {name!r}: {values!r}"
            )
    return [dict(zip(table, values, strict=True)) for table in tables for values in itertools.product(*table.values())]


def _plain(component: Any, settings: Mapping[str, Any], known: BuildContext) -> Subject:
    try:
        if isinstance(component, registry.Component):
            return _of_class(component.cls, component.name, settings, known)
        if isinstance(component, type):
            return _of_class(component, component.__name__, settings, known)
        if isinstance(component, functools.partial) and isinstance(component.func, type):
            given = inspect.signature(component.func).bind_partial(*component.args, **component.keywords).arguments
            fixed = {name: value for name, value in given.items() if name != "kwargs"} | given.get("kwargs", {})
            return _of_class(component.func, component.func.__name__, settings, known, fixed)
        if inspect.isroutine(component) or isinstance(component, functools.partial):
            return _of_factory(component, known)
        return _of_instance(component)
    except TypeError as error:  # of a class that is none of PML's kinds
        raise ConfigError(str(error)) from None


def _of_instance(component: Any) -> Subject:
    def first(*names: str) -> int:
        parts = component.modules() if isinstance(component, torch.nn.Module) else [component]
        values = (getattr(part, name, None) for part in parts for name in names)
        return next((value for value in values if isinstance(value, int) and value > 0), 0)

    cls = type(component)
    settings = {}  # that are not the class's defaults, as far as the instance shows them
    for name, parameter in registry.settings_of(cls).items():
        value = getattr(component, name, parameter.default)
        shown = name not in (*OF_PML, "embedding_size", "num_classes") and type(value) in (bool, int, float, str)
        if shown and value != parameter.default:
            settings[name] = value
    return Subject(
        cls.__name__,
        registry.kind_of(cls),
        lambda _=None: _in_float64(copy.deepcopy(component)),
        first("embedding_size", "in_features") or SIZE,
        first("num_classes") or CLASSES,
        settings=settings,
    )


def _of_factory(function: Callable[..., Any], known: BuildContext) -> Subject:
    """A function without arguments, or with names of a context, that makes an instance."""
    name = getattr(function, "__name__", type(function).__name__)
    values, missing = registry.required(function, known)
    if missing:
        raise ConfigError(
            f"{name} needs {', '.join(missing)}; give a function that needs embedding_size and num_classes at most"
        )

    def make(_: Any = None) -> Any:
        return _in_float64(_seeded(lambda: function(**values)))

    try:
        like = _of_instance(make())
    except TypeError as error:
        raise ConfigError(f"{name}: {error}") from None
    return dataclasses.replace(like, name=like.name if name == "<lambda>" else name, make=make)


def _of_class(
    cls: type, name: str, settings: Mapping[str, Any], known: BuildContext, fixed: Mapping[str, Any] | None = None
) -> Subject:
    kind, fixed = registry.kind_of(cls), fixed or {}
    settings = {**fixed, **settings}
    labels = labels_of(CLASSES, 4).numpy()
    context: BuildContext = {"labels": labels, "batch_size": 12, "length_before_new_iter": 24, **known}
    if missing := registry.required(cls, context, settings)[1]:
        raise ConfigError(
            f"{name} needs {', '.join(missing)}, which no batch tells; check an instance built with its settings: "
            f"check_component({cls.__name__}(...))"
        )

    def make(other: Mapping[str, Any] | None = None) -> Any:
        chosen = copy.deepcopy({**fixed, **(settings if other is None else other)})
        return _in_float64(_seeded(lambda: cls(**filled(cls, context, chosen), **chosen)))

    size, classes = (settings.get(key, known[key]) for key in ("embedding_size", "num_classes"))
    return Subject(name, kind, make, size, classes, cls, settings)


def _seeded(make: Callable[[], Any]) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)  # instances with random parameters are equal
        return make()


def _in_float64(component: Any) -> Any:
    return component.double() if isinstance(component, torch.nn.Module) else component


def _fitted(subject: Subject) -> Subject:
    """The subject with the embedding size and the number of classes that fit its parameters and buffers."""
    component = subject.make()
    if subject.kind not in _SIZED or not isinstance(component, torch.nn.Module):
        return subject
    tensors = (*component.parameters(), *component.buffers())
    lengths = dict.fromkeys(length for tensor in tensors for length in tensor.shape if length > 1)
    if not lengths or _runs(subject):
        return subject
    for size in lengths:
        for classes in (subject.classes, *(length for length in lengths if length < subject.classes)):
            other = dataclasses.replace(subject, size=size, classes=classes)
            if _runs(other):
                return other
    return subject


def _runs(subject: Subject) -> bool:
    batch, component = batch_of(subject, (CLASSES, 2)), subject.make()
    try:
        with warnings.catch_warnings(), torch.no_grad(), torch.random.fork_rng():
            warnings.simplefilter("ignore")
            component(batch.embeddings, *[batch.labels] * takes_labels(component))
    except Exception:  # of a size that does not fit; the checks name the error
        return False
    return True
