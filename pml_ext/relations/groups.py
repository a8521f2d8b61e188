"""Equal classes from different groups."""

from typing import Any

import torch
from torch import Tensor

from ..pairwise.batch import describe
from .base import Relation, counted, from_array


class DifferentGroups(Relation):
    """Equal classes from different groups, such as bursts of images or cameras.

    Two items of one group are neither positive nor negative, so that pairs of nearly the same image are not learned.
    Labels are integers ``[B, 2]``, class and group; a negative number means no group. For cameras, give each class its
    own groups, so that a camera's images of other classes stay negatives: ``group = class * number_of_cameras +
    camera``. In evaluation, pass groups as ``query_groups``.

    Example:
        >>> labels = torch.tensor([[0, 7], [0, 7], [0, 8], [1, 9]])  # the first two are of one burst
        >>> DifferentGroups().matrix(labels[:1], labels)
        tensor([[nan, nan, 1., 0.]])
    """

    def tensor(self, labels: Any, count: int, device: torch.device | None = None, axis: int = 0) -> Tensor:
        """Integers ``[count, 2]``."""
        labels = from_array(labels)
        is_integer = isinstance(labels, Tensor) and not (labels.is_floating_point() or labels.is_complex())
        if not is_integer or labels.ndim != 2 or labels.shape[1] != 2:
            raise TypeError(
                f"DifferentGroups needs integers of shape ({count}, 2), class and group of each item; got "
                f"{describe(labels)}; type torch.stack([classes, groups], 1)"
            )
        return counted(labels.to(device, torch.long), count)

    def weights(self, x: Tensor, y: Tensor) -> Tensor:
        """1 for equal classes, 0 for different ones, NaN within a group."""
        same_group = (x[..., 1] == y[..., 1]) & (x[..., 1] >= 0)
        return torch.where(same_group, torch.nan, (x[..., 0] == y[..., 0]).float())
