"""What is checked, and the batches that it is checked with."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import registry
from ..building import BuildContext, check_settings, filled
from ..errors import ConfigError

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
        name: of the class, or the registered name.
        kind: one of :data:`pml_ext.registry.KINDS`.
        make: a new, equal instance; given a table of settings, one with these (of a class alone).
        size: the embedding size that it wants.
        classes: how many classes it knows.
        cls: the class, if it is one that was given and not an instance.
        grid: what it is compared with, if anything.
        cache: what one check found out and another needs.
    """

    name: str
    kind: str
    make: Callable[..., Any]
    size: int
    classes: int
    cls: type | None = None
    grid: Grid | None = None
    cache: dict[str, Any] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    @property
    def capabilities(self) -> frozenset[str]:
        """What an instance says it can do."""
        return registry.capabilities(self.make())


def subject_of(
    component: Any,
    reference: Callable[..., Any] | None = None,
    settings: Settings | None = None,
    without_effect: Iterable[str] = (),
) -> Subject:
    """A component, a class, or an instance built with its settings, as a subject.

    Args:
        component: what is checked.
        reference: as of :func:`pml_ext.testing.check_component`, as the two that follow.
        settings: values by name, or several such tables.
        without_effect: names.

    Raises:
        ConfigError: a class that needs settings which do not follow from a batch, or nothing of PML's kinds; settings
            that it does not have, or of an instance.
    """
    grid = _grid(settings or {})
    subject = _plain(component, grid[0])
    if reference is None and settings is None and not without_effect:
        return subject
    given = {name for each in grid for name in each} | set(without_effect)
    if given and subject.cls is None:
        raise ConfigError(f"settings are varied by building a class, and {subject.name} is built already; give the "
                          f"class {subject.name}, or leave the settings out")  # fmt: skip
    if subject.cls is not None:
        check_settings(subject.name, registry.settings_of(subject.cls), given)
    return dataclasses.replace(subject, grid=Grid(reference, grid, frozenset(without_effect)))


def _grid(settings: Settings) -> list[dict[str, Any]]:
    tables = [settings] if isinstance(settings, Mapping) else list(settings)
    for table in tables:
        for name, values in table.items():
            if not isinstance(values, (list, tuple)) or not values:
                raise ConfigError(f"settings name a list of values each, such as {{{name!r}: [{values!r}]}}; "
                                  f"got {name!r}: {values!r}")  # fmt: skip
    return [dict(zip(table, values, strict=True)) for table in tables for values in itertools.product(*table.values())]


def _plain(component: Any, settings: Mapping[str, Any]) -> Subject:
    if isinstance(component, registry.Component):
        return _of_class(component.cls, component.name, settings)
    if isinstance(component, type):
        return _of_class(component, component.__name__, settings)
    try:
        kind = registry.kind_of(type(component))
    except TypeError as error:
        raise ConfigError(str(error)) from None
    size = _first(component, ("embedding_size", "in_features")) or SIZE
    classes = _first(component, ("num_classes",)) or CLASSES
    return Subject(type(component).__name__, kind, lambda _=None: copy.deepcopy(component), size, classes)


def _first(component: Any, names: tuple[str, ...]) -> int:
    for part in component.modules() if isinstance(component, torch.nn.Module) else [component]:
        for name in names:
            if isinstance(value := getattr(part, name, None), int) and value > 0:
                return value
    return 0


def _of_class(cls: type, name: str, settings: Mapping[str, Any]) -> Subject:
    try:
        kind = registry.kind_of(cls)
    except TypeError as error:
        raise ConfigError(str(error)) from None
    known: BuildContext = {"num_classes": CLASSES, "embedding_size": SIZE, "labels": labels_of((CLASSES, 4)).numpy(),
                           "batch_size": 12, "length_before_new_iter": 24}  # fmt: skip
    _, missing = registry.required(cls, known, settings)
    if missing:
        raise ConfigError(
            f"{name} needs {', '.join(missing)}, which no batch tells; check an instance built with its "
            f"settings: check_component({cls.__name__}(...))"
        )

    def make(other: Mapping[str, Any] | None = None) -> Any:
        with torch.random.fork_rng():
            torch.manual_seed(0)  # instances with random parameters are equal
            chosen = copy.deepcopy(dict(settings if other is None else other))
            return cls(**filled(cls, known, chosen), **chosen)

    return Subject(name, kind, make, settings.get("embedding_size", SIZE), settings.get("num_classes", CLASSES), cls)


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


def batch_of(subject: Subject, labels: Tensor | tuple[int, int] = (CLASSES, 4), dtype: torch.dtype = torch.float64,
             seed: int = 0, spread: float = 1.2) -> Batch:  # fmt: skip
    """A batch for a subject.

    Args:
        subject: whose embedding size and classes are taken.
        labels: ``[B]``, or (number of classes, images per class), cut to the classes that the subject knows.
        dtype: of the embeddings.
        seed: of the draw.
        spread: of a class about its center, beside centers of spread 1.
    """
    if isinstance(labels, tuple):
        labels = labels_of((min(labels[0], subject.classes), labels[1]))
    generator = torch.Generator().manual_seed(seed)
    centers = torch.randn(subject.classes, subject.size, generator=generator, dtype=torch.float64)
    noise = torch.randn(len(labels), subject.size, generator=generator, dtype=torch.float64)
    return Batch(fresh((centers[labels] + spread * noise).to(dtype)), labels)


def fresh(x: Tensor) -> Tensor:
    """A leaf with gradient."""
    return x.detach().clone().requires_grad_()
