"""The options of ``fit``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pml_ext_train.recipe import Override

    from .trunk import Trunk


@dataclass(frozen=True)
class FitOptions:
    """The options of ``fit``."""

    overrides: list[Override]
    general: list[Override]  # settings of other options than --set
    out: Path | None
    resume: bool
    seed: int
    device: str
    data: Path | None = None
    fine_tune: bool = False
    closed_form: bool = False
    trunk: Trunk | None = None  # named by --trunk
    exclude: Sequence[str] | None = None  # patterns of files to leave out of a folder
