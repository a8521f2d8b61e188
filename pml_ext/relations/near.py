"""Labels that are numbers."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from ..pairwise.batch import Float64Buffers, describe, to_device
from ..settings import check_number
from .base import Relation, counted, from_array


class Near(Float64Buffers, Relation):
    r"""Labels that are numbers, such as ages or positions: near items are positive.

    .. math::
        w_{ij} = [\,d_{ij} \le r\,], \qquad \text{graded: } w_{ij} = \max(0, 1 - d_{ij} / r), \qquad
        d_{ij} = \lVert y_i - y_j \rVert_p

    Pairs with :math:`r < d_{ij} \le f` are neither positive nor negative, and those farther apart are negative. With
    ``graded``, a pair at :math:`d_{ij} = r` is negative if f = r, and neither otherwise. Labels are finite numbers
    ``[B]`` or ``[B, K]``.

    Args:
        within: r, above 0: the greatest distance of a positive pair.
        beyond: f, at least r; r by default.
        graded: whether the weight falls from 1 for equal numbers to 0 at the distance r.
        p: the norm of the distance, at least 1; 2 is Euclidean.
        numbers: the numbers of each class, ``[C]`` or ``[C, K]``, if labels are classes ``[B]``, indices in this list.

    Example:
        >>> Near(10, beyond=20, graded=True).matrix(torch.tensor([30.0]), torch.tensor([30.0, 35.0, 45.0, 60.0]))
        tensor([[1.0000, 0.5000,    nan, 0.0000]])
    """

    table: Tensor | None

    def __init__(
        self, within: float, beyond: float | None = None, graded: bool = False, p: float = 2.0, numbers: Any = None
    ) -> None:
        super().__init__()
        check_number(self, "within", within, above=0)
        if beyond is None:
            beyond = within
        check_number(self, "beyond", beyond, least=within)
        check_number(self, "p", p, least=1)
        self.within = within
        self.beyond = beyond
        self.graded = graded
        self.p = p
        table = None
        if numbers is not None:
            if isinstance(numbers, (list, tuple)):
                numbers = np.asarray(numbers)  # in float64: float32 would merge timestamps
            table = self._checked(torch.as_tensor(numbers), len(numbers))
            self.num_classes = len(table)
        self.register_buffer("table", table, persistent=False)

    def tensor(self, labels: Any, count: int, device: torch.device | None = None, axis: int = 0) -> Tensor:
        """Numbers ``[count, K]`` in the labels' dtype, or class indices ``[count]``."""
        try:
            labels = from_array(labels)
            if isinstance(labels, (list, tuple)):
                labels = torch.as_tensor(np.asarray(labels))  # in float64: float32 would merge timestamps
        except (TypeError, ValueError):  # texts, None, or lists of different lengths
            raise TypeError(f"Near needs numbers of shape ({count},) or ({count}, K); got {describe(labels)}") from None
        if self.table is not None:
            return self._integers(labels, count, device)
        return to_device(self._checked(labels, count), device)

    def _checked(self, labels: Any, count: int) -> Tensor:
        is_number = isinstance(labels, Tensor) and labels.dtype != torch.bool and not labels.is_complex()
        if not is_number or labels.ndim not in (1, 2):
            raise TypeError(f"Near needs numbers of shape ({count},) or ({count}, K); got {describe(labels)}")
        if labels.device.type == "cpu" and not torch.compiler.is_compiling():
            bad = int((~labels.isfinite()).sum())
            if bad:
                raise ValueError(f"labels of Near have {bad} NaN or infinite numbers; leave these items out")
        return _as_column(counted(labels, count))

    def matrix(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Weights of all pairs, ``[T, R]``, of numbers ``[T, K]`` and ``[R, K]``."""
        if self.table is None:
            rows = _as_column(rows)
            columns = _as_column(columns)
        return super().matrix(rows, columns)

    def weights(self, x: Tensor, y: Tensor) -> Tensor:
        """Weights of numbers ``[..., K]``, or of classes ``[...]`` with ``numbers``."""
        if self.table is not None:
            table = to_device(self.table, x.device)
            x = table[x.long()]
            y = table[y.long()]
        if not (x.is_floating_point() or y.is_floating_point()):
            x = x.long()  # a difference of small integers may be out of their range
            y = y.long()
        difference = x - y
        if not difference.is_floating_point():
            difference = difference.float()
        distance = torch.linalg.vector_norm(difference, ord=self.p, dim=-1)
        if self.graded:
            positive = (1 - distance / self.within).clamp(min=0).float()
            is_negative = (distance > self.beyond) | ((distance >= self.within) & (self.beyond == self.within))
        else:
            positive = (distance <= self.within).float()
            is_negative = distance > self.beyond
        return torch.where(positive > 0, positive, torch.where(is_negative, 0.0, torch.nan))

    @classmethod
    def of_classes(
        cls,
        names: Sequence[str],
        within: float,
        beyond: float | None = None,
        graded: bool = False,
        p: float = 2.0,
    ) -> Self:
        """The relation of classes named by numbers, such as ``"52.4 13.1"``; else ValueError."""
        numbers = []
        for name in names:
            try:
                numbers.append([float(part) for part in str(name).split()])
            except ValueError:
                raise ValueError(f"the class {name!r} is no number; wanted names such as 37, or 52.4 13.1") from None
        if len({len(each) for each in numbers}) != 1 or not numbers[0]:
            raise ValueError("the names of all classes must have the same number of coordinates, such as 52.4 13.1")
        return cls(within, beyond, graded, p, torch.tensor(numbers, dtype=torch.float64))

    def extra_repr(self) -> str:
        """The settings."""
        return f"within={self.within:g}, beyond={self.beyond:g}, graded={self.graded}, p={self.p:g}"


def _as_column(numbers: Tensor) -> Tensor:
    return numbers[:, None] if numbers.ndim == 1 else numbers
