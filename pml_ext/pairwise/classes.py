"""A batch sorted into classes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class ClassMembers(NamedTuple):
    """The rows of each class of a batch, in a rectangle.

    Args:
        members: rows by class and place, ``[C, M]``, filled up with 0; a batch that is one group is in its own order.
        class_of: the class of every row, ``[B]``.
        place: its place in the class, ``[B]``.
    """

    members: Tensor
    class_of: Tensor
    place: Tensor


def class_members(labels: Tensor, small: int = 192, most_fill: int = 4) -> ClassMembers:
    """Sorts a batch into classes, for products within each; one group, which has all pairs too, where that is cheaper.

    Compiled it is one group always, so that no shape follows from the labels.

    Args:
        labels: ``[B]``.
        small: a batch of at most this many rows is one group.
        most_fill: so is one whose classes differ so much in size that the rectangle would have more than this many
            times B entries.
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
