"""Helpers of the checks: calls of components, comparisons of values, counters of operators and saved bytes."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .. import registry
from .subject import Batch, SkipCheck, Subject, all_pairs, batch_of, takes_labels

TORCH, KIT = str(Path(torch.__file__).parent), str(Path(__file__).parent)  # folders whose frames are not the author's


def needs(subject: Subject, *capabilities: str, fixed: bool = False, repeatable: bool = False) -> None:
    """Skip a check that needs capabilities that the component does not declare, or values that it does not have.

    ``fixed`` values are not random; ``repeatable`` ones do not depend on earlier calls either.
    """
    if missing := set(capabilities) - subject.capabilities:
        raise SkipCheck(f"it does not declare {' and '.join(sorted(missing))}")
    if (fixed or repeatable) and is_random(subject):
        raise SkipCheck("its values are random")
    batch, component = batch_of(subject), subject.make()
    if repeatable and not equal(seeded(component, batch), seeded(component, batch)):
        raise SkipCheck("its values depend on earlier calls")


def call(component: Any, batch: Batch, *more: Any, **named: Any) -> Any:
    """Return the value of a loss, regularizer or reducer, the matrix of a distance or the indices of a miner."""
    if registry.kind_of(type(component)) == "reducer":
        losses = named.get("losses", batch.embeddings.square().sum(1))
        info = {"losses": losses, "indices": torch.arange(len(losses)), "reduction_type": "element", "divisor": 8}
        return component({"loss": info}, batch.embeddings, batch.labels)
    if more or takes_labels(component):
        return component(batch.embeddings, batch.labels, *more, **named)
    return component(batch.embeddings, **named)


def seeded(component: Any, batch: Batch, *more: Any, **named: Any) -> Any:
    """Return the result of :func:`call` after ``torch.manual_seed(0)``."""
    torch.manual_seed(0)
    return call(component, batch, *more, **named)


def compute(component: Any, batch: Batch, **named: Any) -> dict[str, Any]:
    """Return the unreduced values of a loss or a regularizer; raise SkipCheck for a wrapper, which has none."""
    if not hasattr(component, "compute_loss"):
        raise SkipCheck("a wrapper: the wrapped component is checked by itself")
    labels = batch.labels if takes_labels(component) else None
    if registry.kind_of(type(component)) == "regularizer":
        return component.compute_loss(batch.embeddings, *[] if labels is None else [labels])  # type: ignore[no-any-return]
    references = named.get("ref_emb", batch.embeddings), named.get("ref_labels", labels)
    return component.compute_loss(batch.embeddings, labels, named.get("indices_tuple"), *references)  # type: ignore[no-any-return]


def close(actual: Tensor, expected: Tensor, text: str, rtol: float = 1e-6, atol: float = 1e-8) -> None:
    """Fail with a text if two tensors differ; equal NaNs pass, since other checks report them."""
    same = actual.shape == expected.shape
    if not same or not torch.allclose(actual.double(), expected.double(), rtol=rtol, atol=atol, equal_nan=True):
        shown = (tensor.detach().flatten()[:4].tolist() for tensor in (actual, expected))
        raise AssertionError(f"{text}: {' instead of '.join(map(str, shown))}")


def equal(one: Any, other: Any) -> bool:
    """Return whether two values, or the indices of two miners, are equal; NaN equals NaN in the same place."""
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())


def outcome(component: Any, batch: Batch, **named: Any) -> list[Tensor]:
    """Return the value of a seeded call and its gradients with respect to inputs, or the indices of a miner, sorted."""
    result = seeded(component, batch, **named)
    if isinstance(result, tuple):
        return [sorted_rows(result)]
    leaves = [x for x in (batch.embeddings, named.get("ref_emb")) if x is not None and x.requires_grad]
    return [result.detach(), *gradients(weighted(result), leaves)]


def reordered(component: Any, batch: Batch, order: Tensor) -> list[Tensor]:
    """Return the outcome of a batch in another order, put back into that of the batch."""
    other, back = batch.ordered(order), order.argsort()
    result = seeded(component, other)
    if isinstance(result, tuple):
        return [sorted_rows(tuple(order[index] for index in result))]
    if result.ndim:
        return [result.detach()[back][:, back]]
    return [result.detach(), gradient(result, other.embeddings)[back]]


def sorted_rows(indices: tuple[Tensor, ...]) -> Tensor:
    """Return a miner's pairs or triplets as rows in lexicographic order, pairs with their kind as a third entry."""
    if len(indices) == 3:
        rows = torch.stack(indices, 1)
    else:
        kinds = enumerate((indices[:2], indices[2:]))
        rows = torch.cat([torch.stack([x, y, torch.full_like(x, kind)], 1) for kind, (x, y) in kinds])
    unique: Tensor = torch.unique(rows, dim=0)
    return unique


def weighted(value: Tensor) -> Tensor:
    """Return a scalar as it is, and a matrix as the sum of its entries with random weights."""
    if value.ndim == 0:
        return value
    weights = torch.randn(value.shape, generator=torch.Generator().manual_seed(10), dtype=value.dtype)
    return (value * weights).sum()


def alike(one: Sequence[Tensor], other: Sequence[Tensor], tolerance: float = 1e-9) -> bool:
    """Return whether two outcomes are equal up to rounding; infinities and NaN are equal in the same place."""
    return len(one) == len(other) and all(
        x.shape == y.shape and torch.allclose(x.double(), y.double(), rtol=tolerance, atol=tolerance, equal_nan=True)
        for x, y in zip(one, other, strict=True)
    )


def forms(subject: Subject, batch: Batch, other: Batch) -> dict[str, dict[str, Any]]:
    """Return the optional arguments of each form of call that a component declares, by the form's name."""
    found: dict[str, dict[str, Any]] = {"": {}}
    if subject.kind == "loss" and {"labels", "indices_tuple"} <= subject.capabilities:
        found[" with a miner's tuple"] = {"indices_tuple": all_pairs(batch)}
    if subject.kind == "distance":
        found[" with references"] = {"ref_emb": other.embeddings}
    elif subject.kind in ("loss", "miner") and {"labels", "references"} <= subject.capabilities:
        found[" with references"] = {"ref_emb": other.embeddings, "ref_labels": other.labels}
    return found


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
    if not value.requires_grad or not leaves:
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


class CountedOperations(TorchFunctionMode):
    """Mode that counts calls of torch's functions and methods; ``largest``: entries of the largest tensor."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = self.largest = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, tuple) else [result]:
            if isinstance(each, Tensor):
                self.largest = max(self.largest, each.numel())
        return result


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
