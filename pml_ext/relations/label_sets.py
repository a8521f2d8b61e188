"""Items with several labels each."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from ..pairwise.batch import describe
from .base import Relation, counted, encoding_of_texts, from_array


class SharedLabel(Relation):
    r"""Sets of labels :math:`L_i`: items that share a label are positive.

    .. math:: w_{ij} = [\,|L_i \cap L_j| > 0\,], \qquad \text{graded: } w_{ij} = |L_i \cap L_j| \, / \, |L_i \cup L_j|

    Pairs with a shared label but a Jaccard index below ``threshold`` are neither positive nor negative. Labels are
    multi-hot, ``[B, C]``, of any dtype (nonzero is a label), or a list of B collections of integers; with ``sets``,
    integers ``[B]``. *Cost:* one product of ``B x C x R``.

    Args:
        threshold: least Jaccard index of a positive pair, from 0 to 1.
        graded: whether the Jaccard index is the weight.
        num_labels: C for lists of labels; by default one more than the largest label.
        sets: the label set of each class, if labels are classes ``[B]``, indices in this list.

    Example:
        >>> relation = SharedLabel(graded=True)
        >>> relation.matrix(torch.tensor([[1, 1, 0]]), torch.tensor([[0, 1, 1], [0, 0, 1]]))
        tensor([[0.3333, 0.0000]])
    """

    table: Tensor | None

    def __init__(
        self,
        threshold: float = 0.0,
        graded: bool = False,
        num_labels: int | None = None,
        sets: Sequence[Iterable[Any]] | None = None,
    ) -> None:
        super().__init__()
        if not 0 <= threshold <= 1:
            raise ValueError(f"threshold of SharedLabel must be a number from 0 to 1, not {threshold!r}")
        self.threshold = float(threshold)
        self.graded = graded
        self.num_labels = num_labels
        table = None
        if sets is not None:
            table = _table_of_sets(sets)
            self.num_classes, self.num_labels = table.shape
        self._one_label_per_class = table is not None and bool((table.sum(1) == 1).all())
        self.register_buffer("table", table, persistent=False)

    def tensor(self, labels: Any, count: int, device: torch.device | None = None, axis: int = 0) -> Tensor:
        """Multi-hot labels ``[count, C]``, booleans, or class indices ``[count]`` with ``sets``."""
        labels = from_array(labels)
        if self.table is not None:
            return self._integers(labels, count, device)
        if isinstance(labels, Tensor) and labels.ndim == 2:
            if labels.is_floating_point() and labels.device.type == "cpu" and not torch.compiler.is_compiling():
                missing = int(labels.isnan().sum())
                if missing:
                    raise ValueError(
                        f"multi-hot labels of SharedLabel have {missing} NaN; wanted 0 for a label that an item has not"
                    )
            return counted((labels != 0).to(device), count)
        if not _are_collections(labels):
            raise TypeError(
                f"SharedLabel needs multi-hot labels ({count}, C) or {count} lists of integers; got "
                f"{describe(labels)}{encoding_of_texts(labels)}. A class for each item needs no relation, or the "
                "labels of each class: SharedLabel(sets=...)"
            )
        width = self.num_labels
        if not width:
            all_labels = itertools.chain.from_iterable(labels)
            width = 1 + max(map(int, all_labels), default=0)
        return counted(multi_hot(labels, width).to(device), count)

    def classes(self, labels: Tensor) -> Tensor | None:
        """The label of each item if each has exactly one, else None."""
        if self.table is not None:
            if self._one_label_per_class:
                return self.table.long().argmax(1).to(labels.device)[labels]
            return None
        if labels.shape[1] and bool((labels.sum(1) == 1).all()):
            return labels.long().argmax(1)
        return None

    def weights(self, x: Tensor, y: Tensor) -> Tensor:
        """1 for a shared label, or the Jaccard index."""
        first, second = _of_one_width(self._sets(x), self._sets(y))
        return self._weights_of((first & second).sum(-1), first.sum(-1), second.sum(-1))

    def matrix(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Weights of all pairs, from one product of the sets."""
        first, second = _of_one_width(self._sets(rows).float(), self._sets(columns).float())
        return self._weights_of(first @ second.T, first.sum(1)[:, None], second.sum(1))

    def _sets(self, labels: Tensor) -> Tensor:
        """Each item's labels as booleans, ``[..., C]``."""
        if self.table is None:
            return labels != 0
        return self.table.to(labels.device)[labels.long()]

    def _weights_of(self, shared: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Weights of pairs, from the numbers of shared labels and of each item's labels."""
        positive = (shared > 0).float()
        if not self.graded and self.threshold == 0:
            return positive
        union = first + second - shared
        weights = shared / union.clamp(min=1) if self.graded else positive
        below_threshold = shared < self.threshold * union - 1e-4  # 1e-4: a Jaccard index at the threshold is positive
        return torch.where((shared > 0) & below_threshold, torch.nan, weights)

    @classmethod
    def of_classes(cls, names: Sequence[str], threshold: float = 0.0, graded: bool = False) -> Self:
        """The relation of classes whose names list their labels, such as ``"cat|dog"``."""
        sets = []
        for name in names:
            labels = map(str.strip, name.split("|"))
            sets.append(set(filter(None, labels)))
        return cls(threshold, graded, sets=sets)


def multi_hot(labels: Iterable[Iterable[Any]], width: int) -> Tensor:
    """Convert lists of integers from 0 to ``width`` - 1 to booleans ``[B, width]``."""
    lists = [list(map(int, each)) for each in labels]
    for numbers in lists:
        if len(set(numbers)) < len(numbers):
            raise ValueError(f"the list of labels {numbers} has one of them twice; multi-hot labels go as a tensor")
    table = torch.zeros(len(lists), width, dtype=torch.bool)
    for row, numbers in enumerate(lists):
        for label in numbers:
            if not 0 <= label < width:
                raise ValueError(
                    f"the label {label} is not from 0 to {width - 1}; num_labels of SharedLabel says how many"
                )
        table[row, numbers] = True
    return table


def _table_of_sets(sets: Sequence[Iterable[Any]]) -> Tensor:
    """Which labels each class has, ``[classes, labels]``, booleans; labels are sorted."""
    sets_of_labels = [set(each) for each in sets]
    labels = sorted(set().union(*sets_of_labels))
    number_of_label = {label: number for number, label in enumerate(labels)}
    sets_of_numbers = []
    for labels_of_class in sets_of_labels:
        sets_of_numbers.append({number_of_label[label] for label in labels_of_class})
    return multi_hot(sets_of_numbers, len(labels))


def _are_collections(labels: Any) -> bool:
    if not isinstance(labels, (list, tuple)):
        return False
    return all(isinstance(each, Iterable) and not isinstance(each, str) for each in labels)


def _of_one_width(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    width = max(first.shape[-1], second.shape[-1])
    first = nn.functional.pad(first, (0, width - first.shape[-1]))
    second = nn.functional.pad(second, (0, width - second.shape[-1]))
    return first, second
