"""A call that torch.compile does not trace; the decorator takes a second to import."""

from collections.abc import Callable
from typing import Any

import torch


@torch.compiler.disable  # type: ignore[untyped-decorator]
def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function."""
    return function(*arguments)
