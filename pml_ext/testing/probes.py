"""Watches what a component does: operations, waits for the host, gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class CountedOperations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operators, and those that hand a number to Python."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = self.scalars = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        self.scalars += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def to_python_forbidden() -> Iterator[list[str]]:
    """Notes every ``.item()``, ``.tolist()`` and ``.numpy()`` of a tensor, and what else hands a number to Python."""
    found: list[str] = []
    saved = {name: getattr(Tensor, name) for name in ("item", "tolist", "numpy")}

    def noted(name: str, method: Any) -> Any:
        def call(self: Tensor, *arguments: Any, **settings: Any) -> Any:
            found.append(f".{name}()")
            return method(self, *arguments, **settings)

        return call

    counted = CountedOperations()
    for name, method in saved.items():
        setattr(Tensor, name, noted(name, method))
    try:
        with counted:
            yield found
    finally:
        for name, method in saved.items():
            setattr(Tensor, name, method)
    if counted.scalars and not found:
        found.append("bool(), int() or float() of a tensor")


def gradient(value: Tensor, x: Tensor) -> Tensor:
    """The gradient of a value, zeros where it has none."""
    if not value.requires_grad:
        return torch.zeros_like(x)
    (found,) = torch.autograd.grad(value, x, retain_graph=True, allow_unused=True)
    return torch.zeros_like(x) if found is None else found
