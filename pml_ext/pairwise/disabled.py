"""A call that torch.compile does not trace; imported late, because the decorator takes a second."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


@torch.compiler.disable  # type: ignore[untyped-decorator]
def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function."""
    return function(*arguments)
