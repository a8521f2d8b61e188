"""Questions about the caller: torch.func, forward-mode differentiation, torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

# An autograd.Function with setup_context and jvp would serve all of these, but takes 7 to 13 microseconds longer in
# every ordinary call (a step of CBMLLoss has three and takes a millisecond), and torch.compile refuses one with a jvp.
# So each such Function here has a second form in torch's own operations, for which these questions are asked.


def transformed() -> bool:
    """Return whether a transform of torch.func is running, or a level of forward-mode differentiation is open."""
    if torch.compiler.is_compiling():
        return False
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function; under torch.compile between two graphs, for one whose shapes follow from values."""
    if not torch.compiler.is_compiling():
        return function(*arguments)
    from .disabled import call

    return call(function, *arguments)
