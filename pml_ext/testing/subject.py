"""What is checked, and the batches that it is checked with."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import registry
from ..building import BuildContext, filled
from ..errors import ConfigError

SIZE, CLASSES = 8, 6  # of embeddings and of labels, where the component does not say


class SkipCheck(Exception):
    """A check does not apply; the text says why."""


@dataclasses.dataclass(frozen=True)
class Subject:
    """A component, and how to get a fresh one.

    Args:
        name: of the class, or the registered name.
        kind: one of :data:`pml_ext.registry.KINDS`.
        make: a new, equal instance.
        size: the embedding size that it wants.
        classes: how many classes it knows.
    """

    name: str
    kind: str
    make: Callable[[], Any]
    size: int
    classes: int

    @property
    def capabilities(self) -> frozenset[str]:
        """What an instance says it can do."""
        return registry.capabilities(self.make())


def subject_of(component: Any) -> Subject:
    """A component, a class, or an instance built with its settings, as a subject.

    Raises:
        ConfigError: a class that needs settings which do not follow from a batch, or nothing of PML's kinds.
    """
    if isinstance(component, registry.Component):
        return _of_class(component.cls, component.name)
    if isinstance(component, type):
        return _of_class(component, component.__name__)
    try:
        kind = registry.kind_of(type(component))
    except TypeError as error:
        raise ConfigError(str(error)) from None
    size = _first(component, ("embedding_size", "in_features")) or SIZE
    classes = _first(component, ("num_classes",)) or CLASSES
    return Subject(type(component).__name__, kind, lambda: copy.deepcopy(component), size, classes)


def _first(component: Any, names: tuple[str, ...]) -> int:
    for part in component.modules() if isinstance(component, torch.nn.Module) else [component]:
        for name in names:
            if isinstance(value := getattr(part, name, None), int) and value > 0:
                return value
    return 0


def _of_class(cls: type, name: str) -> Subject:
    try:
        kind = registry.kind_of(cls)
    except TypeError as error:
        raise ConfigError(str(error)) from None
    known: BuildContext = {"num_classes": CLASSES, "embedding_size": SIZE, "labels": labels_of((CLASSES, 4)).numpy(),
                           "batch_size": 12, "length_before_new_iter": 24}  # fmt: skip
    _, missing = registry.required(cls, known)
    if missing:
        raise ConfigError(
            f"{name} needs {', '.join(missing)}, which no batch tells; check an instance built with its "
            f"settings: check_component({cls.__name__}(...))"
        )

    def make() -> Any:
        with torch.random.fork_rng():
            torch.manual_seed(0)  # instances with random parameters are equal
            return cls(**filled(cls, known))

    return Subject(name, kind, make, SIZE, CLASSES)


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
             seed: int = 0) -> Batch:  # fmt: skip
    """A batch for a subject.

    Args:
        subject: whose embedding size and classes are taken.
        labels: ``[B]``, or (classes, images a class), cut to the classes that the subject knows.
        dtype: of the embeddings.
        seed: of the draw.
    """
    if isinstance(labels, tuple):
        labels = labels_of((min(labels[0], subject.classes), labels[1]))
    generator = torch.Generator().manual_seed(seed)
    centers = torch.randn(subject.classes, subject.size, generator=generator, dtype=torch.float64)
    noise = torch.randn(len(labels), subject.size, generator=generator, dtype=torch.float64)
    return Batch(fresh((centers[labels] + 1.2 * noise).to(dtype)), labels)


def fresh(x: Tensor) -> Tensor:
    """A leaf with gradient."""
    return x.detach().clone().requires_grad_()
