"""Detection of torch.func, forward-mode differentiation and torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

# An autograd.Function with setup_context and jvp would support all of these, but takes 7 to 13 microseconds longer in
# every ordinary call (a step of CBMLLoss has three and takes a millisecond), and torch.compile refuses one with a jvp.
# So each such Function here has a second form in plain torch operations, used where ``transformed`` returns True.


class _Probe(Function):
    """A function without ``setup_context``, which torch refuses to apply under a transform of torch.func."""

    @staticmethod
    def forward(ctx: Any, nothing: Tensor) -> None: ...


_NOTHING = torch.zeros(())


def transformed(*tensors: Tensor) -> bool:
    """Return whether a transform of torch.func is running, or one of the tensors has a forward-mode tangent."""
    if torch.compiler.is_compiling():
        return False
    try:
        _Probe.apply(_NOTHING)  # type: ignore[no-untyped-call]
    except RuntimeError:
        return True
    unpacked = map(forward_ad.unpack_dual, tensors)
    return any(each.tangent is not None for each in unpacked)


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function; under torch.compile outside the graph, for functions whose shapes depend on values."""
    if not torch.compiler.is_compiling():
        return function(*arguments)
    from .disabled import call

    return call(function, *arguments)
