"""Base of relations between items."""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..pairwise.batch import describe, holds_texts, how_to_encode, labels_as_tensor


class Relation(nn.Module):
    r"""Base of relations between items by their labels ``[B, ...]``; define :meth:`weights`.

    Two items are positive if their weight :math:`w_{ij} \in [0, 1]` is above 0, negative if it is 0, and neither if it
    is NaN. A ``graded`` relation has weights between 0 and 1.

    Attributes:
        graded: whether positive pairs have weights other than 1, for losses that use them.
        levels: levels of a tree, from 1, except the one that defines positives; recall is reported for each.
        num_classes: number of classes if labels are indices in a list of classes, else None.
        needs_labels: whether labels are required.
    """

    graded: bool = False
    levels: Sequence[int] = ()
    num_classes: int | None = None
    needs_labels: bool = True

    def weights(self, x: Tensor, y: Tensor) -> Tensor:
        """Weights of items with labels x and y, whose leading dimensions broadcast."""
        raise NotImplementedError

    def matrix(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Weights of all pairs, ``[T, R]``, of labels ``[T, ...]`` and ``[R, ...]``."""
        weights = self.weights(rows[:, None], columns[None])
        if weights.shape != (len(rows), len(columns)):
            raise ValueError(
                f"weights of {type(self).__name__} must return one weight for each pair, of shape "
                f"{(len(rows), len(columns))}; got {tuple(weights.shape)} for labels of shapes {tuple(rows.shape)} and "
                f"{tuple(columns.shape)}; reduce the labels' own dimensions, for example by .all(-1)"
            )
        return weights

    def positive(self, x: Tensor, y: Tensor) -> Tensor:
        """Whether items are positive: PML's ``label_comparison_fn``."""
        return self.weights(x, y) > 0

    def tensor(self, labels: Any, count: int, device: torch.device | None = None, axis: int = 0) -> Tensor:
        """The labels of ``count`` items as a tensor; TypeError or ValueError if invalid.

        The base accepts a tensor or array of any dtype, ``[count, ...]``; one-dimensional integers become int64.
        ``axis``: 0 for rows of the matrix, 1 for columns.
        """
        labels = from_array(labels)
        if not isinstance(labels, Tensor) or labels.ndim == 0:
            name = type(self).__name__
            text = f"{name} needs a tensor of labels of shape ({count}, ...); got {describe(labels)}"
            raise TypeError(f"{text}{encoding_of_texts(labels)}")
        if labels.ndim == 1 and not labels.is_floating_point():
            labels = labels.long()
        return counted(labels.to(device), count)

    def _integers(self, labels: Any, count: int, device: torch.device | None) -> Tensor:
        """Integer labels ``[count]`` as int64; TypeError or ValueError for others."""
        labels = from_array(labels)
        if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.ndim != 1:
            name = type(self).__name__
            text = f"{name} needs a tensor of integers of shape ({count},); got {describe(labels)}"
            raise TypeError(f"{text}{encoding_of_texts(labels)}")
        if self.num_classes is not None and labels.device.type == "cpu" and not torch.compiler.is_compiling():
            outside = labels[(labels < 0) | (labels >= self.num_classes)]
            if len(outside):
                raise ValueError(f"labels of {self} are places from 0 to {self.num_classes - 1}; got {int(outside[0])}")
        return counted(labels.to(device, torch.long), count)

    def classes(self, labels: Tensor) -> Tensor | None:
        """Integers ``[B]``, equal exactly for positive pairs, or None if there are none."""
        return None

    def extra_repr(self) -> str:
        """The settings."""
        values = {name: vars(self).get(name) for name in inspect.signature(type(self)).parameters}
        return ", ".join(f"{name}={value}" for name, value in values.items() if value is not None)


def from_array(labels: Any) -> Any:
    """Convert an array to a tensor; return any other value unchanged."""
    if hasattr(labels, "__array__"):
        return labels_as_tensor(labels, "labels")
    return labels


def encoding_of_texts(labels: Any) -> str:
    """How to encode labels that are texts; empty for other labels."""
    if not holds_texts(labels):
        return ""
    return f"; {how_to_encode(labels, 'labels')}"


def counted(labels: Tensor, count: int) -> Tensor:
    """The labels unchanged; ValueError unless there are ``count`` rows."""
    if len(labels) != count:
        raise ValueError(f"labels of {len(labels)} items are given for {count} embeddings; wanted one row for each")
    return labels
