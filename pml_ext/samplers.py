"""Samplers for label sets, trees, and listed pairs and triplets."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Sampler

from .pairwise import ListedTuples, TupleBatch
from .relations import Hierarchy, Relation, SharedLabel
from .settings import check_count

Members = list[NDArray[np.int64]]  # the images of each group


def members_by_class(class_of: NDArray[np.int64]) -> Members:
    """Images of each class, ascending, from each image's class number, ``[N]``."""
    order = np.argsort(class_of, kind="stable")
    ends = np.bincount(class_of).cumsum()
    return np.split(order, ends[:-1])


class GroupSampler(Sampler[int]):
    """Base of samplers that draw group by group until a batch is full.

    Every group is drawn once, in a random order that continues over batches, before any is drawn again. Subclasses may
    override :meth:`draw`.

    Args:
        members: the images of each group.
        batch_size: images in a batch.
        length: images in a pass, rounded down to whole batches, at least one.
        seed: of the sampler's own generator.
    """

    def __init__(self, members: Members, batch_size: int, length: int, seed: int) -> None:
        check_count(self, "batch_size", batch_size)
        images = len(np.unique(np.concatenate(members))) if members else 0
        if batch_size > images:
            name = type(self).__name__
            raise ValueError(f"batch_size of {name} must be at most the {images} images with labels; got {batch_size}")
        self.batch_size = batch_size
        self.members = members
        self._batches = max(1, length // batch_size)
        self._generator = np.random.default_rng(seed)
        self._waiting: list[int] = []  # groups still to be drawn, the next one last

    def draw(self, group: int, taken: set[int]) -> list[int]:
        """Images of a group that are not in ``taken``; empty if none are left."""
        return self.some(self.members[group], self.batch_size, taken)

    def some(self, members: NDArray[np.int64], count: int, taken: set[int]) -> list[int]:
        """Up to ``count`` random ``members`` that are not in ``taken``."""
        left = [image for image in members.tolist() if image not in taken]
        return [left[place] for place in self._generator.permutation(len(left))[:count]]

    def __len__(self) -> int:
        return self._batches * self.batch_size

    def __iter__(self) -> Iterator[int]:
        for _ in range(self._batches):
            batch: list[int] = []
            used: set[int] = set()  # groups
            while len(batch) < self.batch_size:
                if len(used) == len(self.members):
                    used = set()
                group = self._next(used)
                used.add(group)
                drawn = self.draw(group, set(batch))
                room = self.batch_size - len(batch)
                batch += drawn[:room]
            yield from batch

    def _next(self, used: set[int]) -> int:
        for place in range(len(self._waiting) - 1, -1, -1):
            if self._waiting[place] not in used:
                return self._waiting.pop(place)
        self._waiting = self._generator.permutation(len(self.members)).tolist() + self._waiting
        return self._next(used)

    def state_dict(self) -> dict[str, Any]:
        """The generator and the groups still to be drawn."""
        return {"generator": self._generator.bit_generator.state, "waiting": list(self._waiting)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of :meth:`state_dict`."""
        self._generator.bit_generator.state = state["generator"]
        self._waiting = list(state["waiting"])


class MPerLabelSampler(GroupSampler):
    """Sampler of m images of each of several labels, for images with sets of labels.

    Every label is drawn once before any is drawn again, so rare labels appear as often as frequent ones. An image
    appears once in a batch. Images without labels are never drawn.

    Args:
        labels: of every image: multi-hot ``[N, C]``, lists of integers, or integers ``[N]`` with a relation.
        batch_size: images in a batch.
        m: images per drawn label; fewer if the label has fewer.
        length_before_new_iter: images in a pass; N by default.
        seed: of the sampler's own generator.
        relation: a :class:`pml_ext.SharedLabel` with the label sets of classes; None if ``labels`` are the sets.
    """

    def __init__(
        self,
        labels: Any,
        batch_size: int,
        m: int = 4,
        length_before_new_iter: int | None = None,
        seed: int = 0,
        relation: Relation | None = None,
    ) -> None:
        check_count(self, "m", m)
        relation = SharedLabel() if relation is None else relation
        if not isinstance(relation, SharedLabel):
            raise TypeError(f"relation of MPerLabelSampler must be a SharedLabel; got {relation!r}")
        if not isinstance(labels, (list, tuple)) or all(isinstance(label, (int, np.integer)) for label in labels):
            labels = torch.as_tensor(labels)
        one_class_each = isinstance(labels, torch.Tensor) and labels.ndim == 1 and relation.table is None
        if one_class_each:
            members = members_by_class(torch.unique(labels, return_inverse=True)[1].cpu().numpy())
        else:
            members = _members_by_label(labels, relation)
        self.m = m
        super().__init__(members, batch_size, length_before_new_iter or len(labels), seed)

    def draw(self, group: int, taken: set[int]) -> list[int]:
        """Up to m images of a label."""
        return self.some(self.members[group], self.m, taken)


def _members_by_label(labels: Any, relation: SharedLabel) -> Members:
    sets = relation.tensor(labels, len(labels)).cpu()
    if relation.table is not None:
        sets = relation.table.cpu()[sets]
    return [np.flatnonzero(column) for column in sets.numpy().T if column.any()]


class TreeSampler(GroupSampler):
    """Sampler of several parents in a tree, several classes of each, and m images per class.

    Every parent is drawn once before any is drawn again. A batch has ``batch_size / (parents * m)`` classes of a
    parent; if a parent has fewer, further parents fill the batch.

    Args:
        labels: the class of every image, integers ``[N]``, indices into the tree's paths.
        relation: the :class:`pml_ext.Hierarchy`.
        batch_size: images in a batch.
        m: number of images per drawn class.
        parents: number of parents in a batch.
        level: level of the parents, from 1; by default the level above the classes.
        length_before_new_iter: images in a pass; N by default.
        seed: of the sampler's own generator.
    """

    def __init__(
        self,
        labels: Any,
        relation: Relation,
        batch_size: int,
        m: int = 4,
        parents: int = 2,
        level: int | None = None,
        length_before_new_iter: int | None = None,
        seed: int = 0,
    ) -> None:
        check_count(self, "m", m)
        check_count(self, "parents", parents)
        if not isinstance(relation, Hierarchy):
            raise TypeError(f"relation of TreeSampler must be a Hierarchy; got {relation!r}")
        if relation.depth == 1:
            raise ValueError("the tree of TreeSampler has no level above its classes; wanted paths such as 'bird/owl'")
        level = relation.depth - 1 if level is None else level
        if not 1 <= level < relation.depth:
            raise ValueError(
                f"level of TreeSampler must be from 1 to {relation.depth - 1}, above the classes; got {level}"
            )
        self.m = m
        self.parents = parents
        self.level = level
        self._per_parent = max(1, batch_size // (parents * m))
        self._classes = np.asarray(labels)
        above = relation.codes.cpu().numpy()[self._classes, level - 1]
        members = members_by_class(np.unique(above, return_inverse=True)[1])
        super().__init__(members, batch_size, length_before_new_iter or len(self._classes), seed)

    def draw(self, group: int, taken: set[int]) -> list[int]:
        """Up to m images of each of some classes of a parent."""
        left = np.array(sorted(set(self.members[group].tolist()) - taken), dtype=np.int64)
        classes = np.unique(self._classes[left])
        images: list[int] = []
        for one in self._generator.permutation(classes)[: self._per_parent]:
            images += self.some(left[self._classes[left] == one], self.m, taken)
        return images


class TupleSampler(Sampler[TupleBatch]):
    """Sampler of batches of whole listed pairs or triplets, each at most once in a pass.

    A last batch that is not full is left out.

    Args:
        tuples: a :class:`pml_ext.pairwise.ListedTuples`, at least a batch.
        batch_size: pairs or triplets in a batch.
        seed: of the sampler's own generator.

    Example:
        >>> tuples = ListedTuples([[0, 1, 2], [0, 3, 2], [4, 1, 5]])
        >>> [sorted(batch.tuples) for batch in TupleSampler(tuples, batch_size=3)]
        [[0, 1, 2]]
    """

    def __init__(self, tuples: ListedTuples, batch_size: int, seed: int = 0) -> None:
        if not isinstance(tuples, ListedTuples):
            raise TypeError(f"tuples of TupleSampler must be ListedTuples(rows, same); got {type(tuples).__name__}")
        check_count(self, "batch_size", batch_size)
        if batch_size > len(tuples):
            raise ValueError(
                f"batch_size of TupleSampler must be at most the {len(tuples)} listed {tuples.kind}; got {batch_size}"
            )
        self.tuples = tuples
        self.batch_size = batch_size
        self._generator = np.random.default_rng(seed)

    def __len__(self) -> int:
        return len(self.tuples) // self.batch_size

    def __iter__(self) -> Iterator[TupleBatch]:
        order = self._generator.permutation(len(self.tuples))
        for number in range(len(self)):
            start = number * self.batch_size
            yield self.tuples.batch(order[start : start + self.batch_size])

    def state_dict(self) -> dict[str, Any]:
        """The generator's state."""
        return {"generator": self._generator.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of :meth:`state_dict`."""
        self._generator.bit_generator.state = state["generator"]
