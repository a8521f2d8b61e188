"""A batch sorted into classes, and the classes that a component has a row for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn


class ClassLabels(nn.Module):
    """The row of each class, by its label, in a component with a row per class.

    Called with labels ``[B]`` it gives their rows; a label of no class gives any row, see :meth:`known`.

    Args:
        num_classes: how many classes.
        labels: the label of each row, ``num_classes`` different integers; None for 0 to ``num_classes`` - 1.

    Raises:
        ValueError: other labels.
    """

    ordered: Tensor
    rows: Tensor

    def __init__(self, num_classes: int, labels: Sequence[int] | Tensor | None = None) -> None:
        super().__init__()
        given = torch.as_tensor(list(range(num_classes) if labels is None else labels))
        different = len(set(given.tolist()))
        if given.shape != (num_classes,) or given.is_floating_point() or different < num_classes:
            raise ValueError(
                f"class_labels must be {num_classes} different integers, one for each class; got {len(given)} of dtype "
                f"{given.dtype}, {different} of them different"
            )
        ordered, rows = given.long().sort()
        self.register_buffer("ordered", ordered, persistent=False)
        self.register_buffer("rows", rows, persistent=False)
        self._checked = False
        self.are_rows = given.tolist() == list(range(num_classes))

    def forward(self, labels: Tensor) -> Tensor:
        """Return the rows of labels ``[B]``."""
        return labels.long().clamp(0, len(self.rows) - 1) if self.are_rows else self.rows[self._places(labels)]

    def check(self, labels: Tensor, owner: str) -> None:
        """Refuse labels of no class; on an accelerator in the first call alone, so that later ones do not wait."""
        labels = labels.to(self.rows.device, torch.long)
        if torch.compiler.is_compiling() or (self._checked and labels.device.type != "cpu"):
            return
        self._checked = True
        if len(unknown := labels[~self.known(labels)]):
            count, least, some = len(self.rows), int(labels.min()), sorted(set(unknown.tolist()))[:5]
            raise ValueError(
                f"labels {some} have no class: {owner} has num_classes={count} with labels "
                f"{self.ordered[0]} to {self.ordered[-1]}. Name the label of every class, for example "
                f"class_labels=range({least}, {least + count})"
            )

    def known(self, labels: Tensor) -> Tensor:
        """Return which labels are of a class, ``[B]``."""
        return self.ordered[self._places(labels)] == labels

    def _places(self, labels: Tensor) -> Tensor:
        return torch.searchsorted(self.ordered, labels.long()).clamp(max=len(self.ordered) - 1)


class ClassMembers(NamedTuple):
    """The rows of each class of a batch, in a rectangle."""

    members: Tensor  # rows by class and place, [C, M], filled up with 0
    class_of: Tensor  # the class of every row, [B]
    place: Tensor  # its place in the class, [B]


def class_members(labels: Tensor, small: int = 192, most_fill: int = 4) -> ClassMembers:
    """Sort a batch with labels ``[B]`` into classes, for products within each; into one group where that is cheaper.

    One group are up to ``small`` rows, a rectangle with more entries than ``most_fill`` times B, and, so that no shape
    follows from the labels, any batch when compiled.
    """
    rows = torch.arange(len(labels), device=labels.device)
    if len(labels) <= small or torch.compiler.is_compiling():
        return ClassMembers(rows[None], torch.zeros_like(rows), rows)
    classes, class_of = torch.unique(labels, return_inverse=True)
    order = class_of.argsort(stable=True)
    sizes = torch.zeros_like(classes, dtype=torch.long).index_add_(0, class_of, torch.ones_like(class_of))
    place = torch.empty_like(rows).index_put_((order,), rows - (sizes.cumsum(0) - sizes)[class_of[order]])
    largest = len(torch.unique(place))
    if len(classes) * largest > most_fill * len(labels):
        return ClassMembers(rows[None], torch.zeros_like(rows), rows)
    members = rows.new_zeros(len(classes), largest).index_put_((class_of, place), rows)
    return ClassMembers(members, class_of, place)
