"""Training on your own photographs or vectors without a recipe; trials choose what is trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pml_ext.plugin import Command, hookimpl, packaged

if TYPE_CHECKING:
    from pml_ext_train.retrieval import FitService

pml_ext_recipes, _ = packaged("pml_ext_fit")


@hookimpl
def pml_ext_commands() -> dict[str, Command]:
    """The command ``fit``."""
    return {"fit": Command("pml_ext_fit.commands:fit", "Choose what to train on your own images or vectors.")}


@hookimpl
def pml_ext_services() -> dict[str, Callable[..., Any]]:
    """The service that makes a run of a folder of images."""
    return {"fit": _fit}


def _fit() -> FitService:
    from . import unlabeled

    return unlabeled
