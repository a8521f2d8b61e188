"""Calls of components, and counters of operators and of bytes saved for backward."""

import functools
import random
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .. import pml, registry
from .batches import Batch, batch_of
from .comparing import equal, gradient, gradients, sorted_rows, weighted
from .second_device import TORCH
from .subject import CLASSES, Subject, set_seed, skip_unless, takes_labels

_IMAGES_PER_CLASS = 8  # the most with which a regularizer of fixed rows is tried
KIT = str(Path(__file__).parent)  # frames in this folder are not the author's code


def needs(subject: Subject, *capabilities: str, fixed: bool = False, repeatable: bool = False) -> None:
    """Skip a check without some capabilities, or for random or stateful values."""
    missing = set(capabilities) - subject.capabilities
    skip_unless(not missing, f"it does not declare {' and '.join(sorted(missing))}")
    skip_unless(not (fixed or repeatable) or not is_random(subject), "its values are random")
    skip_unless(not repeatable or is_repeatable(subject), "its values depend on earlier calls")


def call(component: Any, batch: Batch, *more: Any, **named: Any) -> Any:
    """A component's value, matrix or indices for a batch."""
    if registry.kind_of(type(component)) == "reducer":
        losses = named.get("losses", batch.embeddings.square().sum(1))
        info = {"losses": losses, "indices": torch.arange(len(losses)), "reduction_type": "element", "divisor": 8}
        return component({"loss": info}, batch.embeddings, batch.labels)
    if more or takes_labels(component):
        return component(batch.embeddings, batch.labels, *more, **named)
    return component(batch.embeddings, **named)


def seeded(component: Any, batch: Batch, *more: Any, **named: Any) -> Any:
    """The result of :func:`call` after ``torch.manual_seed(0)``."""
    set_seed(0)
    return call(component, batch, *more, **named)


def compute(component: Any, batch: Batch, references: Batch | None = None) -> dict[str, Any]:
    """The unreduced values of a loss or a regularizer; skip the check of a wrapper."""
    skip_unless(hasattr(component, "compute_loss"), "a wrapper: the wrapped component is checked by itself")
    labels = batch.labels if takes_labels(component) else None
    if registry.kind_of(type(component)) == "regularizer":
        return component.compute_loss(batch.embeddings, *[] if labels is None else [labels])  # type: ignore[no-any-return]
    other = references or Batch(batch.embeddings, batch.labels)
    ref_labels = None if labels is None else other.labels
    return component.compute_loss(batch.embeddings, labels, None, other.embeddings, ref_labels)  # type: ignore[no-any-return]


def reseeded_generators(act: Callable[[], object]) -> list[str]:
    """The names of the global generators that ``act`` seeds.

    They draw the same numbers after it, whatever the seed before.
    """
    python = random.getstate()
    numpy = np.random.get_state()
    drawn: list[dict[str, float]] = []
    try:
        for seed in (1, 2):
            random.seed(seed)
            np.random.seed(seed)
            torch.manual_seed(seed)
            act()
            drawn.append({"Python": random.random(), "NumPy": np.random.rand(), "torch": torch.rand(()).item()})
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
    return [name for name, value in drawn[0].items() if drawn[1][name] == value]


def outcome(component: Any, batch: Batch, **named: Any) -> list[Tensor]:
    """A seeded call's value and gradients, or a miner's indices, sorted."""
    result = seeded(component, batch, **named)
    if isinstance(result, tuple):
        return [sorted_rows(result)]
    inputs = (batch.embeddings, named.get("ref_emb"), *component.parameters())
    leaves = [x for x in inputs if x is not None and x.requires_grad]
    return [result.detach(), *gradients(weighted(result), leaves)]


def reordered(component: Any, batch: Batch, order: Tensor) -> list[Tensor]:
    """The outcome of a reordered batch, restored to the order of the batch."""
    other = batch.ordered(order)
    back = order.argsort()
    result = seeded(component, other)
    if isinstance(result, tuple):
        return [sorted_rows(tuple(order[index] for index in result))]
    if result.ndim:
        return [result.detach()[back][:, back]]
    if not batch.embeddings.requires_grad:
        return [result.detach()]
    return [result.detach(), gradient(result, other.embeddings)[back]]


def call_forms(subject: Subject, batch: Batch, other: Batch) -> dict[str, dict[str, Any]]:
    """The optional arguments of each form of call that a component declares, by name."""
    found: dict[str, dict[str, Any]] = {"": {}}
    if subject.kind == "loss" and {"labels", "indices_tuple"} <= subject.capabilities:
        found[" with a miner's tuple"] = {"indices_tuple": pml.get_all_pairs_indices(batch.labels)}
    if subject.kind == "distance":
        found[" with references"] = {"ref_emb": other.embeddings}
    elif takes_references(subject):
        found[" with references"] = {"ref_emb": other.embeddings, "ref_labels": other.labels}
    return found


@functools.lru_cache(16)
def takes_references(subject: Subject) -> bool:
    """Whether a loss declares references with labels, or a miner accepts them."""
    if subject.kind != "miner":
        return subject.kind == "loss" and {"labels", "references"} <= subject.capabilities
    other = batch_of(subject, (3, 2), seed=1)
    try:
        seeded(subject.make(), batch_of(subject, (3, 3)), other.embeddings, other.labels)
    except Exception:
        return "references" in subject.capabilities
    return True


@functools.lru_cache(16)
def has_fixed_rows(subject: Subject) -> bool:
    """Whether a regularizer accepts some numbers of rows and refuses others."""
    accepted = set()
    for images in range(1, _IMAGES_PER_CLASS + 1) if subject.kind == "regularizer" else ():
        try:
            call(subject.make(), batch_of(subject, (CLASSES, images)))
            accepted.add(True)
        except Exception:
            accepted.add(False)
    return len(accepted) == 2


def used(component: Any, subject: Subject) -> Any:
    """A component after three calls in training, because a weight may grow from zero."""
    for seed in (5, 6, 7):
        seeded(component, batch_of(subject, seed=seed))
    return component


@functools.lru_cache(16)
def is_random(subject: Subject) -> bool:
    """Whether two seeds give different values."""
    values = []
    for seed in (0, 1):
        set_seed(seed)
        values.append(call(subject.make(), batch_of(subject)))
    return not equal(*values)


@functools.lru_cache(16)
def is_repeatable(subject: Subject) -> bool:
    """Whether a second call of the same object gives the same value."""
    component = subject.make()
    return equal(*[seeded(component, batch_of(subject)) for _ in range(2)])


def error_location(error: BaseException) -> str:
    """File and line of the author's code that raised an error, or an empty string."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames or frames[-1].filename.startswith(KIT):
        return ""
    places = [f"{Path(f.filename).name}:{f.lineno}" for f in frames if not f.filename.startswith((TORCH, KIT))]
    return places[-1] if places else ""


def error_summary(error: BaseException) -> str:
    """An error as one line, with the author's file and line if known."""
    text = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    place = error_location(error)
    return f"{text} (at {place})" if place else text


class CountedOperations(TorchFunctionMode):
    """Mode that counts calls of torch; ``largest``: entries of the largest tensor."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = self.largest = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        result = func(*args, **(kwargs or {}))
        results = result if isinstance(result, tuple) else (result,)
        for each in results:
            if isinstance(each, Tensor):
                self.largest = max(self.largest, each.numel())
        return result


class SavedBytes(torch.autograd.graph.saved_tensors_hooks):
    """Context manager that counts the bytes that autograd saves for the backward pass.

    Each storage counts once. ``given`` inputs and parameters do not count, because the caller holds them.
    """

    def __init__(self, *given: Tensor) -> None:
        self._bytes: dict[int, torch.UntypedStorage] = {}
        self._known: set[int] = set()
        self.leave_out(*given)
        super().__init__(self._keep, lambda tensor: tensor)

    def __enter__(self) -> Self:  # type: ignore[override]
        super().__enter__()
        return self

    def _keep(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        self._bytes[storage.data_ptr()] = storage  # a reference, so that its address is not reused
        return tensor

    def leave_out(self, *tensors: Tensor) -> None:
        """Exclude tensors that the caller holds too, such as the value."""
        self._known |= {tensor.untyped_storage().data_ptr() for tensor in tensors}

    @property
    def total(self) -> int:
        """Number of bytes saved so far."""
        return sum(storage.nbytes() for address, storage in self._bytes.items() if address not in self._known)
