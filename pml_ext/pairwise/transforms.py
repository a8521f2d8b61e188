"""What depends on who calls: torch.func, forward-mode differentiation, torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

# An autograd.Function serves both with setup_context and jvp, but every ordinary call of it then takes 7 to 13
# microseconds longer (three calls in a step of CBMLLoss, which takes a millisecond), and torch.compile refuses one with
# a jvp. So what has such a Function has a second form in torch's own operations, and asks here which one is wanted.


def transformed() -> bool:
    """Whether a transform of torch.func is running, or a level of forward-mode differentiation is open.

    What a function of this package computes by an ``autograd.Function`` is then written out in torch's own operations,
    which every transform takes, nested ones too.
    """
    if torch.compiler.is_compiling():
        return False
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """``function(*arguments)``; under torch.compile as it is, between two graphs.

    Args:
        function: whose shapes follow from values, so that it would be compiled again for each of them.
        arguments: of it.
    """
    if not torch.compiler.is_compiling():
        return function(*arguments)
    from .disabled import call

    return call(function, *arguments)
