"""The checks. Each is named after what it protects; its docstring and messages say why it matters."""

from __future__ import annotations

from ..subject import CHECKS, SLOW, Check
from . import contract, kinds, objects, reference, situations, use  # noqa: F401 (importing registers them)
from .contract import check_call_forms
from .situations import settings_of_process

__all__ = ["CHECKS", "SLOW", "Check", "check_call_forms", "settings_of_process"]
