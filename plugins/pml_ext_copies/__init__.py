"""Near-duplicates among images or vectors, found without a network or a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import lazy_loader

from pml_ext.plugin import Command, hookimpl

if TYPE_CHECKING:
    from pml_ext_train.retrieval import CopiesService

    from .duplicates import find_duplicates as find_duplicates, find_equal_vectors as find_equal_vectors
    from .image_files import ImageFiles as ImageFiles

__getattr__, _, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={"duplicates": ["find_duplicates", "find_equal_vectors"], "image_files": ["ImageFiles"]},
)


@hookimpl
def pml_ext_commands() -> dict[str, Command]:
    """The command ``duplicates``."""
    return {"duplicates": Command("pml_ext_copies.commands:duplicates", "Find copies among images.")}


@hookimpl
def pml_ext_services() -> dict[str, Callable[..., Any]]:
    """The service that finds copies."""
    return {"copies": _copies}


def _copies() -> CopiesService:
    from . import service

    return service
