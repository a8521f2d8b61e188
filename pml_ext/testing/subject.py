"""What is checked, and the batches that it is checked with."""

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
from torch import Tensor

from .. import registry
from ..errors import ConfigError
from ..registry import BuildContext, check_settings, filled

# What PML's base classes take, which are components of their own, or no part of the equation.
OF_PML = frozenset(
    {
        "distance",
        "reducer",
        "embedding_regularizer",
        "embedding_reg_weight",
        "weight_regularizer",
        "weight_reg_weight",
        "weight_init_func",
        "collect_stats",
        "is_inverted",
        "tile_size",
    }
)
SIZE, CLASSES = 8, 6  # of embeddings and of labels, where the component does not say


class SkipCheck(Exception):
    """A check does not apply; the text says why."""


Settings = Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Sequence[Any]]]


@dataclasses.dataclass(frozen=True)
class Grid:
    """What a component is compared with, and the settings under which it is.

    Args:
        reference: a slow form of its equation, or None.
        settings: the settings of each instance; what is not varied in them is varied about the first.
        without_effect: settings that change how something is computed, and not what.
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
        cache: what one check found out and another needs.
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
        """What an instance says it can do."""
        return registry.capabilities(self.make())

    @property
    def title(self) -> str:
        """The name, with the settings that distinguish it: ``MyLoss(margin=0.5)``."""
        said = ", ".join(f"{name}={value!r}" for name, value in self.settings.items())
        return f"{self.name}({said})" if said else self.name


def subject_of(
    component: Any,
    reference: Callable[..., Any] | None = None,
    settings: Settings | None = None,
    without_effect: Iterable[str] = (),
    embedding_size: int | None = None,
    num_classes: int | None = None,
) -> Subject:
    """A component, a class, a function that makes one, or an instance built with its settings, as a subject.

    Args:
        component: what is checked.
        reference: as of :func:`pml_ext.testing.check_component`, as all that follow.
        settings: values by name, or several such tables.
        without_effect: names.
        embedding_size: the length of the embeddings that it is called with.
        num_classes: the number of classes of its batches.

    Raises:
        ConfigError: a class that needs settings which do not follow from a batch, or nothing of PML's kinds; settings
            that it does not have, or of an instance.
    """
    grid = _grid(settings or {})
    known: BuildContext = {"num_classes": num_classes or CLASSES, "embedding_size": embedding_size or SIZE}
    subject = _plain(component, grid[0], known)
    given = {name for each in grid for name in each} | set(without_effect)
    if given and subject.cls is None:
        raise ConfigError(
            f"settings are varied by building a class, and {subject.name} is built already; give the "
            f"class {subject.name}, or leave the settings out"
        )
    if subject.cls is not None:
        check_settings(subject.name, registry.settings_of(subject.cls), given)
    if embedding_size or num_classes:
        size, classes = embedding_size or subject.size, num_classes or subject.classes
        subject = dataclasses.replace(subject, size=size, classes=classes)
    else:
        subject = _fitted(subject)
    if reference is None and settings is None and not without_effect:
        return subject
    return dataclasses.replace(subject, grid=Grid(reference, grid, frozenset(without_effect)))


def _grid(settings: Settings) -> list[dict[str, Any]]:
    tables = [settings] if isinstance(settings, Mapping) else list(settings)
    for table in tables:
        for name, values in table.items():
            if not isinstance(values, (list, tuple)) or not values:
                raise ConfigError(
                    f"settings name a list of values each, such as {{{name!r}: [{values!r}]}}; got {name!r}: {values!r}"
                )
    return [dict(zip(table, values, strict=True)) for table in tables for values in itertools.product(*table.values())]


def _plain(component: Any, settings: Mapping[str, Any], known: BuildContext) -> Subject:
    if isinstance(component, registry.Component):
        return _of_class(component.cls, component.name, settings, known)
    if isinstance(component, type):
        return _of_class(component, component.__name__, settings, known)
    if isinstance(component, functools.partial) and isinstance(component.func, type):
        given = inspect.signature(component.func).bind_partial(*component.args, **component.keywords)
        fixed = {**given.arguments, **given.arguments.get("kwargs", {})}
        fixed.pop("kwargs", None)
        return _of_class(component.func, component.func.__name__, settings, known, fixed)
    if inspect.isroutine(component) or isinstance(component, functools.partial):
        return _of_factory(component, known)
    try:
        return _of_instance(component)
    except TypeError as error:
        raise ConfigError(str(error)) from None


def _of_instance(component: Any) -> Subject:
    kind = registry.kind_of(type(component))
    size = _first(component, ("embedding_size", "in_features")) or SIZE
    classes = _first(component, ("num_classes",)) or CLASSES

    def make(_: Any = None) -> Any:
        return _in_float64(copy.deepcopy(component))

    return Subject(type(component).__name__, kind, make, size, classes, settings=_settings_of(component))


def _settings_of(component: Any) -> dict[str, Any]:
    """The settings of an instance that are not its class's defaults, as far as it shows them."""
    told = {}
    for name, parameter in registry.settings_of(type(component)).items():
        value = getattr(component, name, parameter.default)
        shown = name not in (*OF_PML, "embedding_size", "num_classes") and type(value) in (bool, int, float, str)
        if shown and value != parameter.default:
            told[name] = value
    return told


def _first(component: Any, names: tuple[str, ...]) -> int:
    for part in component.modules() if isinstance(component, torch.nn.Module) else [component]:
        for name in names:
            if isinstance(value := getattr(part, name, None), int) and value > 0:
                return value
    return 0


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
    try:
        kind = registry.kind_of(cls)
    except TypeError as error:
        raise ConfigError(str(error)) from None
    fixed = fixed or {}
    settings = {**fixed, **settings}
    context: BuildContext = {
        "labels": labels_of((CLASSES, 4)).numpy(),
        "batch_size": 12,
        "length_before_new_iter": 24,
        **known,
    }
    _, missing = registry.required(cls, context, settings)
    if missing:
        raise ConfigError(
            f"{name} needs {', '.join(missing)}, which no batch tells; check an instance built with its "
            f"settings: check_component({cls.__name__}(...))"
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
    """As most batches here are; what wants another precision says so."""
    return component.double() if isinstance(component, torch.nn.Module) else component


def _fitted(subject: Subject) -> Subject:
    """With the embedding size and the number of classes that fit the component's parameters and buffers.

    What it says in ``embedding_size``, ``in_features`` and ``num_classes`` comes first.
    """
    component = subject.make()
    if subject.kind not in _SIZED or not isinstance(component, torch.nn.Module):
        return subject
    lengths = dict.fromkeys(
        length for tensor in (*component.parameters(), *component.buffers()) for length in tensor.shape if length > 1
    )
    if not lengths or _runs(subject):
        return subject
    for size in lengths:
        for classes in (subject.classes, *(length for length in lengths if length < subject.classes)):
            other = dataclasses.replace(subject, size=size, classes=classes)
            if _runs(other):
                return other
    return subject


_SIZED = ("loss", "miner", "regularizer", "distance")


def _runs(subject: Subject) -> bool:
    batch, component = batch_of(subject, (CLASSES, 2)), subject.make()
    labels = [batch.labels] * (subject.kind == "miner" or "labels" in getattr(component, "capabilities", ()))
    if subject.kind == "loss" and "labels" in registry.capabilities(component):
        labels = [batch.labels]
    try:
        with warnings.catch_warnings(), torch.no_grad(), torch.random.fork_rng():
            warnings.simplefilter("ignore")
            component(batch.embeddings, *labels)
    except Exception:  # of whatever does not fit; the checks tell what that is
        return False
    return True


# Batches


def labels_of(shape: tuple[int, int]) -> Tensor:
    """``(classes, per class)`` as sorted labels."""
    classes, each = shape
    return torch.arange(classes).repeat_interleave(each)


@dataclasses.dataclass
class Batch:
    """Embeddings of overlapping clusters, and their labels.

    Args:
        embeddings: ``[B, D]``, with gradient.
        labels: ``[B]``.
    """

    embeddings: Tensor
    labels: Tensor

    def ordered(self, order: Tensor) -> Batch:
        """The same images in another order, as fresh leaves."""
        return Batch(fresh(self.embeddings[order]), self.labels[order])


def batch_of(
    subject: Subject,
    labels: Tensor | tuple[int, int] = (CLASSES, 4),
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    spread: float = 1.2,
    common: float = 0,
    scale: float = 1,
) -> Batch:
    """A batch for a subject.

    Args:
        subject: whose embedding size and classes are taken.
        labels: ``[B]``, or (number of classes, images per class), cut to the classes that the subject knows.
        dtype: of the embeddings.
        seed: of the draw.
        spread: of a class about its center, beside centers of spread 1.
        common: the length of a vector that is added to all, so that angles are small.
        scale: what all is multiplied by.
    """
    if isinstance(labels, tuple):
        labels = labels_of((min(labels[0], subject.classes), labels[1]))
    generator = torch.Generator().manual_seed(seed)
    centers = torch.randn(subject.classes, subject.size, generator=generator, dtype=torch.float64)
    noise = torch.randn(len(labels), subject.size, generator=generator, dtype=torch.float64)
    points = scale * (centers[labels] + spread * noise + common / subject.size**0.5)
    return Batch(fresh(points.to(dtype)), labels)


def fresh(x: Tensor) -> Tensor:
    """A leaf with gradient."""
    return x.detach().clone().requires_grad_()
