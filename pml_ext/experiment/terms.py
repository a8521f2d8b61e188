"""What is recorded of a training step: its loss, and the numbers that losses, miners and optimizers hold."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .engine import Step

Rows = Mapping[str, Mapping[str, Any]]  # values by table and column


class Terms:
    """The numbers that a loss, its miner and the optimizers hold for the records.

    PML's classes and ours list the names of such attributes in ``_record_these`` (settings) and ``_record_these_stats``
    (what they measured in the last call). They are recorded together with parameters and buffers of one element, and
    with the learning rates.

    Args:
        loss: with the losses, regularizers, distances and reducers inside it.
        miner: or None.
        optimizers: by name.

    Attributes:
        places: the table and the column of each value.
    """

    def __init__(
        self, loss: nn.Module, miner: nn.Module | None, optimizers: Mapping[str, torch.optim.Optimizer]
    ) -> None:
        self.places: list[tuple[str, str]] = []
        self._readers: list[Callable[[], Any]] = []
        root = f"metric_loss_{type(loss).__name__}"
        for path, module in loss.named_modules():
            inside = f"__modules_{path.replace('.', '__modules_')}_{type(module).__name__}" if path else ""
            self._add_module(module, root + inside)
        if miner is not None:
            self._add_module(miner, f"tuple_miner_{type(miner).__name__}")
        for name, optimizer in optimizers.items():
            self._add(f"{name}_{type(optimizer).__name__}", "lr", functools.partial(_rate, optimizer))

    def values(self) -> list[Any]:
        """What each holds now: a number, a tensor of one element, or None where it holds something else."""
        return [_number(read()) for read in self._readers]

    def rows(self, values: Sequence[Any]) -> Rows:
        """Values by table and column.

        Args:
            values: one for each of the places, as numbers.
        """
        rows: dict[str, dict[str, Any]] = {}
        for (table, column), value in zip(self.places, values, strict=True):
            if value is not None:
                rows.setdefault(table, {})[column] = value
        return rows

    def _add_module(self, module: nn.Module, table: str) -> None:
        for name in (*getattr(module, "_record_these", ()), *getattr(module, "_record_these_stats", ())):
            self._add(table, name, functools.partial(getattr, module, name, None))
        for suffix, held in (("parameters", module.named_parameters), ("buffers", module.named_buffers)):
            for name, tensor in held(recurse=False):
                if tensor.numel() == 1:
                    self._add(f"{table}__{suffix}", name, functools.partial(getattr, module, name))

    def _add(self, table: str, column: str, read: Callable[[], Any]) -> None:
        if (table, column) not in self.places:
            self.places.append((table, column))
            self._readers.append(read)


def _rate(optimizer: torch.optim.Optimizer) -> Any:
    return optimizer.param_groups[0]["lr"]


def _number(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value if value.numel() == 1 else None
    if isinstance(value, np.number):
        return value.item()
    return value if isinstance(value, (int, float)) else None


def rows_of(step: Step, terms: Terms) -> Rows:
    """What is recorded of a step, by table and column."""
    return {"loss_histories": {"total_loss": step.loss}, **terms.rows(step.recorded)}
