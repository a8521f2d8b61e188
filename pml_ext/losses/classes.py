"""Batches grouped by class, and the row of each class label."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn


class ClassLabels(nn.Module):
    """The row of each class label, for components with one row per class.

    A call maps labels ``[B]`` to rows; unknown labels get an arbitrary row.

    Args:
        num_classes: number of classes.
        labels: the label of each row, ``num_classes`` different integers; 0 to ``num_classes`` - 1 by default.

    Raises:
        ValueError: ``labels`` are not ``num_classes`` different integers.
    """

    ordered: Tensor
    rows: Tensor

    def __init__(self, num_classes: int, labels: Sequence[int] | Tensor | None = None) -> None:
        super().__init__()
        if labels is None:
            labels = range(num_classes)
        given = torch.as_tensor(list(labels))
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
        """Rows ``[B]`` of labels ``[B]``."""
        if self.are_rows:
            return labels.long().clamp(0, len(self.rows) - 1)
        return self.rows[self._places(labels)]

    def check(self, labels: Tensor, owner: str) -> None:
        """Raise ValueError for unknown labels; on an accelerator only in the first call."""
        labels = labels.to(self.rows.device, torch.long)
        if torch.compiler.is_compiling() or (self._checked and labels.device.type != "cpu"):
            return
        self._checked = True
        unknown = labels[~self.known(labels)]
        if len(unknown):
            count = len(self.rows)
            least = int(labels.min())
            some = sorted(set(unknown.tolist()))[:5]
            raise ValueError(
                f"labels {some} have no class: {owner} has num_classes={count} with labels "
                f"{self.ordered[0]} to {self.ordered[-1]}. Name the label of every class, for example "
                f"class_labels=range({least}, {least + count})"
            )

    def known(self, labels: Tensor) -> Tensor:
        """Mask ``[B]`` of the known labels."""
        return self.ordered[self._places(labels)] == labels

    def _places(self, labels: Tensor) -> Tensor:
        return torch.searchsorted(self.ordered, labels.long()).clamp(max=len(self.ordered) - 1)


class ClassMembers(NamedTuple):
    """The rows of each class of a batch, as a padded matrix."""

    members: Tensor  # rows by class and place, [C, M], padded with 0
    class_of: Tensor  # the class of every row, [B]
    place: Tensor  # its place in the class, [B]


def class_members(labels: Tensor, small: int = 192, most_fill: int = 4) -> ClassMembers | None:
    """Group labels ``[B]`` by class, or None if products within classes would not be cheaper.

    The result is None for at most ``small`` rows, for a padded matrix with more than ``most_fill`` times B entries, and
    under torch.compile.
    """
    if len(labels) <= small or torch.compiler.is_compiling():
        return None
    rows = torch.arange(len(labels), device=labels.device)
    classes, class_of = torch.unique(labels, return_inverse=True)
    order = class_of.argsort(stable=True)
    sizes = torch.zeros_like(classes, dtype=torch.long).index_add_(0, class_of, torch.ones_like(class_of))
    place = torch.empty_like(rows).index_put_((order,), rows - (sizes.cumsum(0) - sizes)[class_of[order]])
    largest = len(torch.unique(place))
    if len(classes) * largest > most_fill * len(labels):
        return None
    members = rows.new_zeros(len(classes), largest).index_put_((class_of, place), rows)
    return ClassMembers(members, class_of, place)
