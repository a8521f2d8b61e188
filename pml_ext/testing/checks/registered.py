"""The checks of each kind of component."""

from __future__ import annotations

from collections.abc import Callable

from ...components import KINDS
from ..subject import Subject

Check = Callable[[Subject], str | None]
CHECKS: dict[str, list[Check]] = {kind: [] for kind in KINDS}


def applies_to(*kinds: str) -> Callable[[Check], Check]:
    """Register a check for some kinds of components; checks of a kind run in the order of their definitions."""

    def register(check: Check) -> Check:
        for kind in kinds:
            CHECKS[kind].append(check)
        return check

    return register
