"""Watches what a component does: operations, saved tensors, gradients."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

TORCH, KIT = str(Path(torch.__file__).parent), str(Path(__file__).parent)  # files that are no place to point at


def place_of(error: BaseException) -> str:
    """The file and line of an author's code that raised an error; nothing where the kit itself did.

    Args:
        error: what was raised.
    """
    frames = traceback.extract_tb(error.__traceback__)
    if not frames or frames[-1].filename.startswith(KIT):
        return ""
    theirs = [frame for frame in frames if not frame.filename.startswith((TORCH, KIT))]
    return f"{Path(theirs[-1].filename).name}:{theirs[-1].lineno}" if theirs else ""


class CountedOperations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operators."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


class SavedBytes:
    """The bytes that autograd keeps from the forward pass for the backward pass; a context manager.

    A storage counts once. What is there anyway does not count: what was given, and what :meth:`leave_out` names.

    Args:
        given: inputs and parameters.
    """

    def __init__(self, *given: Tensor) -> None:
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._known = {tensor.untyped_storage()._cdata for tensor in given}
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._keep, lambda tensor: tensor)

    def __enter__(self) -> SavedBytes:
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooks.__exit__(*error)

    def _keep(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        self._storages[storage._cdata] = storage
        return tensor

    def leave_out(self, *tensors: Tensor) -> None:
        """Does not count what the caller holds too, such as the value."""
        self._known |= {tensor.untyped_storage()._cdata for tensor in tensors}

    @property
    def total(self) -> int:
        """The bytes so far."""
        return sum(storage.nbytes() for key, storage in self._storages.items() if key not in self._known)


def gradients(value: Tensor, leaves: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of a value, zeros where it has none; its graph is kept."""
    if not value.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    slopes = torch.autograd.grad(value, leaves, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(leaf) if slope is None else slope for slope, leaf in zip(slopes, leaves, strict=True)]


def gradient(value: Tensor, x: Tensor) -> Tensor:
    """The gradient of a value with respect to one tensor; see :func:`gradients`."""
    return gradients(value, [x])[0]
