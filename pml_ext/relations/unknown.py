"""Equal labels, with items whose class is not known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .base import Relation


class NegativesOnly(Relation):
    """Equal labels; an item of unknown class has no positives and is a negative of all items of known class.

    Two unknown items are neither positive nor negative. Labels are integers ``[B]``.

    Args:
        unknown: the label of items whose class is not known.
    """

    def __init__(self, unknown: int = -1) -> None:
        super().__init__()
        self.unknown = unknown

    def tensor(self, labels: Any, count: int, device: torch.device | None = None, axis: int = 0) -> Tensor:
        """Return integers ``[count]``."""
        return self._integers(labels, count, device)

    def weights(self, x: Tensor, y: Tensor) -> Tensor:
        """Return 1 for equal known labels, NaN for two unknown ones."""
        return torch.where((x == self.unknown) & (y == self.unknown), torch.nan, (x == y).float())

    @classmethod
    def of_classes(cls, names: Sequence[str], unknown: str = "unknown") -> NegativesOnly:
        """Return the relation whose unknown items have the class named ``unknown``; ValueError if there is none."""
        if unknown not in names:
            raise ValueError(f"no class is called {unknown!r}; classes: {', '.join(names)[:200]}")
        return cls(list(names).index(unknown))
