"""Helpers of the checks: calls of components, comparisons of values, counters of operators and saved bytes."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from .. import registry
from .batches import Batch, batch_of
from .subject import SkipCheck, Subject, takes_labels

TORCH, KIT = str(Path(torch.__file__).parent), str(Path(__file__).parent)  # folders whose frames are not the author's


def needs(subject: Subject, *capabilities: str) -> None:
    """Skip a check if the component does not declare the capabilities that the check needs."""
    if missing := set(capabilities) - subject.capabilities:
        raise SkipCheck(f"it does not declare {' and '.join(sorted(missing))}")


def needs_repeatable(subject: Subject) -> None:
    """Skip a check if the component's values are random or change from call to call."""
    if is_random(subject):
        raise SkipCheck("its values are random")
    batch, component = batch_of(subject), subject.make()
    if not equal(seeded(component, batch), seeded(component, batch)):
        raise SkipCheck("its values depend on earlier calls")


def call(component: Any, batch: Batch, *more: Any, **named: Any) -> Any:
    """Return the value of a loss or a regularizer, the matrix of a distance or the indices of a miner."""
    if more or takes_labels(component):
        return component(batch.embeddings, batch.labels, *more, **named)
    return component(batch.embeddings, **named)


def seeded(component: Any, batch: Batch, *more: Any, **named: Any) -> Any:
    """Return the result of :func:`call` after ``torch.manual_seed(0)``."""
    torch.manual_seed(0)
    return call(component, batch, *more, **named)


def compute(component: Any, batch: Batch) -> dict[str, Any]:
    """Return the unreduced values of a loss or a regularizer; raise SkipCheck for a wrapper, which has none."""
    if not hasattr(component, "compute_loss"):
        raise SkipCheck("a wrapper: the wrapped component is checked by itself")
    labels = batch.labels if takes_labels(component) else None
    if registry.kind_of(type(component)) == "regularizer":
        return component.compute_loss(batch.embeddings, *[] if labels is None else [labels])  # type: ignore[no-any-return]
    return component.compute_loss(batch.embeddings, labels, None, batch.embeddings, labels)  # type: ignore[no-any-return]


def close(actual: Tensor, expected: Tensor, text: str, rtol: float = 1e-6, atol: float = 1e-8) -> None:
    """Fail with a text if two tensors differ; equal NaNs pass, since other checks report them."""
    same = actual.shape == expected.shape
    if not same or not torch.allclose(actual.double(), expected.double(), rtol=rtol, atol=atol, equal_nan=True):
        shown = (tensor.detach().flatten()[:4].tolist() for tensor in (actual, expected))
        raise AssertionError(f"{text}: {' instead of '.join(map(str, shown))}")


def equal(one: Any, other: Any) -> bool:
    """Return whether two values, or the indices of two miners, are equal; all NaN equals all NaN."""
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(torch.equal, one, other))
    return torch.equal(one, other) or bool(one.isnan().all() and other.isnan().all())


def is_random(subject: Subject) -> bool:
    """Return whether two seeds give different values."""
    if "random" not in subject.cache:
        batch, values = batch_of(subject), []
        for seed in (0, 1):
            torch.manual_seed(seed)
            values.append(call(subject.make(), batch))
        subject.cache["random"] = not equal(*values)
    return bool(subject.cache["random"])


def gradients(value: Tensor, leaves: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients of a value, zeros for leaves without one, and retain its graph."""
    if not value.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    slopes = torch.autograd.grad(value, leaves, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(leaf) if slope is None else slope for slope, leaf in zip(slopes, leaves, strict=True)]


def gradient(value: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of a value with respect to one tensor; see :func:`gradients`."""
    return gradients(value, [x])[0]


def place_of(error: BaseException) -> str:
    """Return the file and line of the author's code that raised an error; empty if a check itself did."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames or frames[-1].filename.startswith(KIT):
        return ""
    theirs = [frame for frame in frames if not frame.filename.startswith((TORCH, KIT))]
    return f"{Path(theirs[-1].filename).name}:{theirs[-1].lineno}" if theirs else ""


class CountedOperations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that counts calls of operators."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


class SavedBytes(torch.autograd.graph.saved_tensors_hooks):
    """Context manager that counts the bytes that autograd saves for the backward pass.

    A storage counts once. Inputs, parameters and tensors of :meth:`leave_out` do not count: the caller holds them.

    Args:
        given: inputs and parameters.
    """

    def __init__(self, *given: Tensor) -> None:
        self._bytes: dict[int, torch.UntypedStorage] = {}
        self._known: set[int] = set()
        self.leave_out(*given)
        super().__init__(self._keep, lambda tensor: tensor)

    def __enter__(self) -> SavedBytes:  # type: ignore[override]
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
