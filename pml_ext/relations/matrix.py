"""Pairs from a matrix."""

from typing import Any

import torch
from torch import Tensor

from .base import Relation


class FromMatrix(Relation):
    """Pairs from a matrix ``[B, R]``: 1 is positive, 0 negative, NaN neither.

    Row i is item i of the batch; column j is reference j, or item j without references. With ``by_label``, rows and
    columns are classes, and labels, integers ``[B]``, are their indices; only this works with memories and several
    processes.

    Args:
        matrix: floating point, ``[B, R]``, or booleans.
        by_label: whether labels are rows and columns of the matrix; else labels are not read.
        graded: whether values between 0 and 1 are allowed, as weights of positive pairs.
    """

    values: Tensor

    def __init__(self, matrix: Tensor, by_label: bool = False, graded: bool = False) -> None:
        super().__init__()
        values = torch.as_tensor(matrix).detach().float()
        if graded:
            is_weight = (values >= 0) & (values <= 1)
            wanted = "from 0 to 1, and NaN"
        else:
            is_weight = (values == 0) | (values == 1)
            wanted = "1, 0 and NaN; graded=True allows weights between"
        wrong = values[~(values.isnan() | is_weight)]
        if len(wrong):
            raise ValueError(f"matrix of FromMatrix has the value {float(wrong[0]):g}; wanted {wanted}")
        self.by_label = by_label
        self.graded = graded
        self.needs_labels = by_label
        self.num_classes = min(values.shape) if by_label else None
        self.register_buffer("values", values, persistent=False)

    def tensor(self, labels: Any, count: int, device: torch.device | None = None, axis: int = 0) -> Tensor:
        """Rows or columns of the items, ``[count]``."""
        if self.by_label:
            return self._integers(labels, count, device)
        if count != self.values.shape[axis]:
            name = "rows" if axis == 0 else "columns"
            raise ValueError(
                f"matrix of FromMatrix has {self.values.shape[axis]} {name}, and the batch or its "
                f"references {count} items; with by_label=True labels say which rows and columns are theirs"
            )
        return torch.arange(count, device=device)

    def weights(self, x: Tensor, y: Tensor) -> Tensor:
        """The values of the matrix."""
        return self.values.to(x.device)[x.long(), y.long()]
