"""Classes in a tree."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from .base import Relation


class Hierarchy(Relation):
    r"""Classes in a tree; items with a common ancestor at a level are positive.

    .. math:: w_{ij} = [\,d_{ij} \ge \ell\,], \qquad \text{graded: } w_{ij} = [\,d_{ij} \ge \ell\,] \, d_{ij} / D

    where :math:`d_{ij}` is the depth of the lowest common ancestor: 0 if the first names differ, and D, the depth of
    the tree, within a class. Labels are integers ``[B]``, indices in ``paths``, or a list of paths.

    Args:
        paths: the path of each class from the root, such as ``"animal/bird/sparrow"`` or a sequence of names.
        level: :math:`\ell`, from 1 to D; by default D, the class itself, or 1 if graded.
        graded: whether the depth of the common ancestor is the weight.

    Example:
        >>> relation = Hierarchy(["bird/owl", "bird/robin", "fish/cod"], graded=True)
        >>> relation.matrix(torch.tensor([0]), torch.arange(3))
        tensor([[1.0000, 0.5000, 0.0000]])
    """

    codes: Tensor

    def __init__(self, paths: Sequence[str | Sequence[str]], level: int | None = None, graded: bool = False) -> None:
        super().__init__()
        self.paths = [_path_of(path) for path in paths]
        self.depth = max(map(len, self.paths))
        if level is None:
            level = 1 if graded else self.depth
        if level not in range(1, self.depth + 1):
            raise ValueError(f"level of Hierarchy must be from 1 to {self.depth}, the depth of the tree, not {level!r}")
        self.level = level
        self.graded = graded
        self.num_classes = len(self.paths)
        self.levels = [each for each in range(1, self.depth + 1) if each != level]
        self.register_buffer("codes", _numbers_of_ancestors(self.paths, self.depth), persistent=False)

    def at(self, level: int) -> "Hierarchy":
        """The same tree, not graded, at another level."""
        return Hierarchy(self.paths, level).to(self.codes.device)

    def tensor(self, labels: Any, count: int, device: torch.device | None = None, axis: int = 0) -> Tensor:
        """Integers ``[count]``, indices of classes in ``paths``."""
        if isinstance(labels, (list, tuple)) and labels and not isinstance(labels[0], Integral):
            known = {path: place for place, path in enumerate(self.paths)}
            places = []
            for label in labels:
                path = _path_of(label)
                if path not in known:
                    raise ValueError(f"Hierarchy has no class {'/'.join(path)!r}; its paths name all classes")
                places.append(known[path])
            labels = torch.tensor(places)
        return self._integers(labels, count, device)

    def classes(self, labels: Tensor) -> Tensor | None:
        """The ancestors at the level; None if graded."""
        if self.graded:
            return None
        return self.codes.to(labels.device)[labels][..., self.level - 1]

    def weights(self, x: Tensor, y: Tensor) -> Tensor:
        """1 for a common ancestor at the level, or its depth over D."""
        codes = self.codes.to(x.device)
        first = codes[x.long()]
        second = codes[y.long()]
        if not self.graded:
            return (first[..., self.level - 1] == second[..., self.level - 1]).float()
        depth = (first == second).sum(-1)  # ancestors are the same from the root down to the lowest common one
        return torch.where(depth >= self.level, depth / self.depth, 0.0)

    def extra_repr(self) -> str:
        """The settings."""
        return f"{len(self.paths)} classes, level={self.level}, graded={self.graded}"


def _numbers_of_ancestors(paths: Sequence[tuple[str, ...]], depth: int) -> Tensor:
    """A number for each class's ancestor at each level, ``[classes, depth]``."""
    numbers: dict[tuple[str, ...], int] = {}  # of nodes, by their paths
    rows = []
    for path in paths:
        missing_levels = depth - len(path)
        filled = path + ("",) * missing_levels
        rows.append([numbers.setdefault(filled[:level], len(numbers)) for level in range(1, depth + 1)])
    return torch.tensor(rows)


def _path_of(path: str | Sequence[str]) -> tuple[str, ...]:
    if isinstance(path, str):
        return tuple(path.split("/"))
    return tuple(path)
