"""Equal labels, with items of unknown class."""

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from .base import Relation


class NegativesOnly(Relation):
    """Equal labels; items of unknown class are negatives of all known classes.

    An unknown item has no positives. Two unknown items are neither positive nor negative. Labels are integers ``[B]``.

    Args:
        unknown: the label of items of unknown class.
    """

    def __init__(self, unknown: int = -1) -> None:
        super().__init__()
        self.unknown = unknown

    def tensor(self, labels: Any, count: int, device: torch.device | None = None, axis: int = 0) -> Tensor:
        """Integers ``[count]``."""
        return self._integers(labels, count, device)

    def weights(self, x: Tensor, y: Tensor) -> Tensor:
        """1 for equal known labels, 0 for different ones, NaN for two unknown ones."""
        return torch.where((x == self.unknown) & (y == self.unknown), torch.nan, (x == y).float())

    @classmethod
    def of_classes(cls, names: Sequence[str], unknown: str = "unknown") -> Self:
        """The relation in which the class named ``unknown`` is unknown; ValueError without it."""
        if unknown not in names:
            raise ValueError(f"no class is called {unknown!r}; classes: {', '.join(names)[:200]}")
        return cls(list(names).index(unknown))
