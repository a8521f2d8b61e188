"""The attributes of losses, miners and optimizers that a run records."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..records.recorder import Rows
from .engine import Step


class RecordedValues:
    """Attributes of a loss, its miner and the optimizers that PML's hooks record.

    They are listed in ``_record_these`` and ``_record_these_stats``, or are one-element parameters and buffers.
    """

    def __init__(
        self, loss: nn.Module, miner: nn.Module | None, optimizers: Mapping[str, torch.optim.Optimizer]
    ) -> None:
        self._holders: dict[tuple[str, str], Any] = {}  # the object with this attribute, by table and column
        for table, module in self._modules_by_table(loss, miner).items():
            for name in (*getattr(module, "_record_these", ()), *getattr(module, "_record_these_stats", ())):
                self._holders[table, name] = module
            owned = {
                "parameters": module.named_parameters(recurse=False),
                "buffers": module.named_buffers(recurse=False),
            }
            for kind, tensors in owned.items():
                for name, tensor in tensors:
                    if tensor.numel() == 1:
                        self._holders[f"{table}__{kind}", name] = module
        self._optimizers = list(optimizers.values())
        self._places = list(self._holders)  # table and column of each of values()
        for name, optimizer in optimizers.items():
            self._places.append((f"{name}_{type(optimizer).__name__}", "lr"))

    @staticmethod
    def _modules_by_table(loss: nn.Module, miner: nn.Module | None) -> dict[str, nn.Module]:
        """Modules by PML's names of their tables."""
        root = f"metric_loss_{type(loss).__name__}"
        modules: dict[str, nn.Module] = {}
        for path, module in loss.named_modules():
            inside = f"__modules_{path.replace('.', '__modules_')}_{type(module).__name__}" if path else ""
            modules[root + inside] = module
        if miner is not None:
            modules[f"tuple_miner_{type(miner).__name__}"] = miner
        return modules

    def values(self) -> list[Any]:
        """Current values: numbers, one-element tensors, or None for anything else."""
        values = [_number(getattr(holder, name, None)) for (_, name), holder in self._holders.items()]
        values.extend(optimizer.param_groups[0]["lr"] for optimizer in self._optimizers)
        return values

    def rows(self, step: Step) -> Rows:
        """Loss and recorded values of a step, by table and column."""
        rows: dict[str, dict[str, Any]] = {"loss_histories": {"total_loss": step.loss}}
        for (table, column), value in zip(self._places, step.recorded, strict=True):
            if value is not None:
                rows.setdefault(table, {})[column] = value
        return rows


def _number(value: Any) -> Any:
    if isinstance(value, np.number):
        value = value.item()
    if isinstance(value, (int, float)) or (isinstance(value, Tensor) and value.numel() == 1):
        return value
    return None
