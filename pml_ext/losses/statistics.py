"""Statistics of losses: means over all tiles of a call."""

from typing import ClassVar

import torch
from torch import Tensor


class LossStatistics:
    """Mixin of losses that record ``statistic_names`` with ``collect_stats``."""

    statistic_names: ClassVar[tuple[str, ...]]
    collect_stats: bool
    _sums: dict[str, tuple[Tensor, Tensor]]  # totals and counts of statistics in the current tile

    def record(self, **statistics: Tensor | tuple[Tensor, Tensor | float]) -> None:
        """Set statistics if ``collect_stats``: tensors to average, or (total, divisor)."""
        if not self.collect_stats:
            return
        for name, value in statistics.items():
            if isinstance(value, tuple):
                total, count = value
            else:
                total = value.sum()
                count = value.numel()
            divisor = torch.as_tensor(count, dtype=total.dtype, device=total.device)
            self._sums[name] = (total.detach(), divisor)

    def _statistics(self, like: Tensor) -> list[Tensor]:
        values: list[Tensor] = []
        if not self.collect_stats:
            return values
        none = (like.new_zeros(()), like.new_zeros(()))
        for name in self.statistic_names:
            for value in self._sums.get(name, none):
                values.append(value.detach().reshape(1).to(like.dtype))
        return values

    def _add_statistics(self, results: tuple[Tensor, ...]) -> None:
        sums = {}
        for number, name in enumerate(self.statistic_names):
            total = results[2 * number].sum()
            count = results[2 * number + 1].sum()
            sums[name] = (total, count)
        self._set_statistics(sums)

    def _set_statistics(self, sums: dict[str, tuple[Tensor, Tensor]]) -> None:
        self._sums = {}
        for name, (total, count) in sums.items():
            setattr(self, name, total / count.clamp(min=1))
