"""Relations between items beyond equal labels: label sets, trees, matrices, numbers, groups, unknown classes."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..pairwise import RelationWeights, check_batch, check_references
from ..pairwise.batch import describe
from ..settings import check_number


class Relation(nn.Module):
    r"""Base of relations between items, by their labels ``[B, ...]``. A subclass writes :meth:`weights`.

    Two items are positive where their weight :math:`w_{ij} \in [0, 1]` is above 0, negative where it is 0, and neither
    where it is NaN. A ``graded`` relation has weights between 0 and 1. An item is no partner of itself, by index.

    Attributes:
        graded: whether positive pairs have weights other than 1, for the losses that use them.
        levels: the other levels of a tree.
        places: the number of classes if labels are indices in a list of classes; None if they are any integers.
        needs_labels: whether labels must be given.
    """

    graded: bool = False
    levels: Sequence[int] = ()
    places: int | None = None
    needs_labels: bool = True

    def weights(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the weights of items with labels x and y, whose leading dimensions broadcast against each other."""
        raise NotImplementedError

    def matrix(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return the weights of all pairs, ``[T, R]``, of labels ``[T, ...]`` and ``[R, ...]``.

        ValueError if :meth:`weights` does not return one weight for each pair.
        """
        weights = self.weights(rows[:, None], columns[None])
        if weights.shape != (len(rows), len(columns)):
            raise ValueError(
                f"weights of {type(self).__name__} must return one weight for each pair, of shape "
                f"{(len(rows), len(columns))}; got {tuple(weights.shape)} for labels of shapes {tuple(rows.shape)} and "
                f"{tuple(columns.shape)}; reduce the labels' own dimensions, for example by .all(-1)"
            )
        return weights

    def positive(self, x: Tensor, y: Tensor) -> Tensor:
        """Return whether items with labels x and y are positive: PML's ``label_comparison_fn``."""
        return self.weights(x, y) > 0

    def tensor(self, labels: Any, count: int, device: torch.device | None = None, axis: int = 0) -> Tensor:
        """Return the labels of ``count`` items as a tensor; raise TypeError or ValueError if invalid.

        The base takes a tensor or array of any dtype, ``[count, ...]``; one-dimensional integers become int64.
        ``axis``: 0 for the rows of the matrix, 1 for its columns.
        """
        labels = _from_array(labels)
        if not isinstance(labels, Tensor) or labels.ndim == 0:
            name = type(self).__name__
            raise TypeError(f"{name} wants a tensor of labels of shape ({count}, ...); got {describe(labels)}")
        if labels.ndim == 1 and not labels.is_floating_point():
            labels = labels.long()
        return _counted(labels.to(device), count)

    def _integers(self, labels: Any, count: int, device: torch.device | None) -> Tensor:
        """Return integer labels ``[count]`` as int64; raise TypeError or ValueError for others."""
        labels = _from_array(labels)
        if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.ndim != 1:
            name = type(self).__name__
            raise TypeError(f"{name} wants a tensor of integers of shape ({count},); got {describe(labels)}")
        if self.places is not None and labels.device.type == "cpu" and not torch.compiler.is_compiling():
            outside = labels[(labels < 0) | (labels >= self.places)]
            if len(outside):
                raise ValueError(f"labels of {self} are places from 0 to {self.places - 1}; got {int(outside[0])}")
        return _counted(labels.to(device, torch.long), count)

    def classes(self, labels: Tensor) -> Tensor | None:
        """Return integers ``[B]``, equal for positive pairs and different for negative ones, or None if none exist."""
        return None

    def extra_repr(self) -> str:
        """Return the settings."""
        settings = []
        for name in inspect.signature(type(self)).parameters:
            value = vars(self).get(name)
            if value is not None:
                settings.append(f"{name}={value}")
        return ", ".join(settings)


class SharedLabel(Relation):
    r"""Sets of labels :math:`L_i`: items that share a label are positive.

    .. math:: w_{ij} = [\,|L_i \cap L_j| > 0\,], \qquad \text{graded: } w_{ij} = |L_i \cap L_j| \, / \, |L_i \cup L_j|

    Pairs that share labels, but have a Jaccard index below ``threshold``, are neither positive nor negative. An item
    without labels has no positives.

    Labels are multi-hot, ``[B, C]``, of any dtype (nonzero is a label), or a list of B collections of integers;
    with ``sets`` they are integers ``[B]``.

    *Cost:* one product of ``B x C x R``.

    Args:
        threshold: least Jaccard index of a positive pair, from 0 to 1.
        graded: whether the Jaccard index is the weight.
        num_labels: C, where labels are lists; by default one more than the largest in the list.
        sets: the label set of each class, if the labels of items are classes ``[B]``, indices in this list.

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
            self.places, self.num_labels = table.shape
        self._one_label_per_class = table is not None and bool((table.sum(1) == 1).all())
        self.register_buffer("table", table, persistent=False)

    def tensor(self, labels: Any, count: int, device: torch.device | None = None, axis: int = 0) -> Tensor:
        """Return multi-hot labels ``[count, C]``, booleans, or class indices ``[count]`` with ``sets``."""
        labels = _from_array(labels)
        if self.table is not None:
            return self._integers(labels, count, device)
        if isinstance(labels, Tensor) and labels.ndim == 2:
            if labels.is_floating_point() and labels.device.type == "cpu" and not torch.compiler.is_compiling():
                missing = int(labels.isnan().sum())
                if missing:
                    raise ValueError(
                        f"multi-hot labels of SharedLabel have {missing} NaN; wanted 0 for a label that an item has not"
                    )
            return _counted((labels != 0).to(device), count)
        if not _are_collections(labels):
            raise TypeError(
                f"SharedLabel wants multi-hot labels ({count}, C) or {count} lists of integers; got "
                f"{describe(labels)}. A class for each item needs no relation, or the labels of each class: "
                "SharedLabel(sets=...)"
            )
        width = self.num_labels
        if not width:
            all_labels = itertools.chain.from_iterable(labels)
            width = 1 + max(map(int, all_labels), default=0)
        return _counted(multi_hot(labels, width).to(device), count)

    def classes(self, labels: Tensor) -> Tensor | None:
        """Return the label of each item if each has exactly one, else None; waits for the device without ``sets``."""
        if self.table is not None:
            if self._one_label_per_class:
                return self.table.long().argmax(1).to(labels.device)[labels]
            return None
        if labels.shape[1] and bool((labels.sum(1) == 1).all()):
            return labels.long().argmax(1)
        return None

    def weights(self, x: Tensor, y: Tensor) -> Tensor:
        """Return 1 where a label is shared, or the Jaccard index."""
        first, second = _of_one_width(self._sets(x), self._sets(y))
        shared = (first & second).sum(-1)
        return self._weights_of(shared, first.sum(-1), second.sum(-1))

    def matrix(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return the weights of all pairs, from one product of the sets."""
        first, second = _of_one_width(self._sets(rows).float(), self._sets(columns).float())
        return self._weights_of(first @ second.T, first.sum(1)[:, None], second.sum(1))

    def _sets(self, labels: Tensor) -> Tensor:
        """Return the labels of each item as booleans, ``[..., C]``."""
        if self.table is None:
            return labels != 0
        return self.table.to(labels.device)[labels.long()]

    def _weights_of(self, shared: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Return the weights of pairs by the number of labels that they share, and those of either item."""
        positive = (shared > 0).float()
        if not self.graded and self.threshold == 0:
            return positive
        union = first + second - shared
        if self.graded:
            weights = shared / union.clamp(min=1)
        else:
            weights = positive
        below_threshold = shared < self.threshold * union - 1e-4  # 1e-4: a Jaccard index at the threshold is positive
        return torch.where((shared > 0) & below_threshold, torch.nan, weights)

    @classmethod
    def of_classes(cls, names: Sequence[str], threshold: float = 0.0, graded: bool = False) -> SharedLabel:
        """Return the relation of classes whose names are their labels, separated by ``|``, such as ``"cat|dog"``."""
        sets = []
        for name in names:
            labels = map(str.strip, name.split("|"))
            sets.append(set(filter(None, labels)))
        return cls(threshold, graded, sets=sets)


class Hierarchy(Relation):
    r"""Classes in a tree; items with a common ancestor at a level are positive.

    .. math:: w_{ij} = [\,d_{ij} \ge \ell\,], \qquad \text{graded: } w_{ij} = [\,d_{ij} \ge \ell\,] \, d_{ij} / D

    where :math:`d_{ij}` is the depth of the lowest common ancestor: 0 if the first name differs; D, the depth of the
    tree, within a class. Labels are integers ``[B]``, indices in ``paths``, or a list of paths.

    Args:
        paths: the path of each class from the root, such as ``"animal/bird/sparrow"`` or a sequence of names.
        level: :math:`\ell`, from 1 to D; by default D, the class itself, or 1 where graded.
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
        self.places = len(self.paths)
        self.levels = [each for each in range(1, self.depth + 1) if each != level]
        self.register_buffer("codes", _numbers_of_ancestors(self.paths, self.depth), persistent=False)

    def at(self, level: int) -> Hierarchy:
        """Return the same tree, not graded, with another level."""
        return Hierarchy(self.paths, level).to(self.codes.device)

    def tensor(self, labels: Any, count: int, device: torch.device | None = None, axis: int = 0) -> Tensor:
        """Return integers ``[count]``, the indices of classes in ``paths``."""
        if isinstance(labels, (list, tuple)) and labels and not isinstance(labels[0], int):
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
        """Return the ancestors at the level; None where graded."""
        if self.graded:
            return None
        return self.codes.to(labels.device)[labels][..., self.level - 1]

    def weights(self, x: Tensor, y: Tensor) -> Tensor:
        """Return 1 where the ancestor at the level is common; if graded, the depth of the lowest common one over D."""
        codes = self.codes.to(x.device)
        first = codes[x.long()]
        second = codes[y.long()]
        if not self.graded:
            return (first[..., self.level - 1] == second[..., self.level - 1]).float()
        depth = (first == second).sum(-1)  # ancestors are the same from the root down to the lowest common one
        return torch.where(depth >= self.level, depth / self.depth, 0.0)

    def extra_repr(self) -> str:
        """Return the settings."""
        return f"{len(self.paths)} classes, level={self.level}, graded={self.graded}"


class FromMatrix(Relation):
    """Pairs from a matrix ``[B, R]``: 1 positive, 0 negative, NaN neither.

    Row i is item i of the batch; column j is reference j, or item j without references. Labels are not needed and not
    read. With ``by_label`` rows and columns are classes, and labels, integers ``[B]``, are their indices; this works
    with memories and several processes.

    Args:
        matrix: floating point, ``[B, R]``, or booleans.
        by_label: whether labels are rows and columns of the matrix.
        graded: whether values between 0 and 1 are allowed, the weights of positive pairs.
    """

    values: Tensor

    def __init__(self, matrix: Tensor, by_label: bool = False, graded: bool = False) -> None:
        super().__init__()
        values = torch.as_tensor(matrix).detach().float()
        if graded:
            is_weight = (values >= 0) & (values <= 1)
        else:
            is_weight = (values == 0) | (values == 1)
        allowed = values.isnan() | is_weight
        if not bool(allowed.all()):
            found = float(values[~allowed][0])
            if graded:
                more = "from 0 to 1, and NaN"
            else:
                more = "1, 0 and NaN; graded=True allows weights between"
            raise ValueError(f"matrix of FromMatrix has the value {found:g}; wanted {more}")
        self.by_label = by_label
        self.graded = graded
        self.needs_labels = by_label
        self.places = min(values.shape) if by_label else None
        self.register_buffer("values", values, persistent=False)

    def tensor(self, labels: Any, count: int, device: torch.device | None = None, axis: int = 0) -> Tensor:
        """Return the rows or columns of the items, ``[count]``."""
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
        """Return the values of the matrix."""
        return self.values.to(x.device)[x.long(), y.long()]


class NegativesOnly(Relation):
    """Equal labels; an item of unknown class has no positives and is a negative of all items of known class.

    Two unknown items are neither positive nor negative. Labels are integers ``[B]``.

    Args:
        unknown: the label of items whose class is not known.
    """

    def __init__(self, unknown: int = -1) -> None:
        super().__init__()
        self.unknown = unknown

    def tensor(self, labels: Any, count: int, device: torch.device | None = None, axis: int = 0) -> Tensor:
        """Return integers ``[count]``."""
        return self._integers(labels, count, device)

    def weights(self, x: Tensor, y: Tensor) -> Tensor:
        """Return 1 for equal known labels, NaN for two unknown ones."""
        return torch.where((x == self.unknown) & (y == self.unknown), torch.nan, (x == y).float())

    @classmethod
    def of_classes(cls, names: Sequence[str], unknown: str = "unknown") -> NegativesOnly:
        """Return the relation whose unknown items have the class named ``unknown``; ValueError if there is none."""
        if unknown not in names:
            raise ValueError(f"no class is called {unknown!r}; classes: {', '.join(names)[:200]}")
        return cls(list(names).index(unknown))


class DifferentGroups(Relation):
    """Equal classes of different groups, such as bursts of photographs or cameras.

    Two items of one group are neither positive nor negative: easy pairs of nearly the same image are not learned from.
    Labels are integers ``[B, 2]``, class and group; a negative group is none. For cameras, whose images of other
    classes stay negatives, let each class have groups of its own: ``group = class * number_of_cameras + camera``. The
    evaluation takes groups as such: ``RetrievalAccuracyCalculator().evaluate(..., query_groups=groups)``.

    Example:
        >>> labels = torch.tensor([[0, 7], [0, 7], [0, 8], [1, 9]])  # the first two are of one burst
        >>> DifferentGroups().matrix(labels[:1], labels)
        tensor([[nan, nan, 1., 0.]])
    """

    def tensor(self, labels: Any, count: int, device: torch.device | None = None, axis: int = 0) -> Tensor:
        """Return integers ``[count, 2]``."""
        labels = _from_array(labels)
        is_integer = isinstance(labels, Tensor) and not (labels.is_floating_point() or labels.is_complex())
        if not is_integer or labels.ndim != 2 or labels.shape[1] != 2:
            raise TypeError(
                f"DifferentGroups wants integers of shape ({count}, 2), class and group of each item; got "
                f"{describe(labels)}; type torch.stack([classes, groups], 1)"
            )
        return _counted(labels.to(device, torch.long), count)

    def weights(self, x: Tensor, y: Tensor) -> Tensor:
        """Return 1 for equal classes, 0 for others, NaN within a group."""
        same_group = (x[..., 1] == y[..., 1]) & (x[..., 1] >= 0)
        return torch.where(same_group, torch.nan, (x[..., 0] == y[..., 0]).float())


class Near(Relation):
    r"""Labels that are numbers, such as ages or positions: near items are positive, far ones negative.

    .. math::
        w_{ij} = [\,d_{ij} \le r\,], \qquad \text{graded: } w_{ij} = \max(0, 1 - d_{ij} / r), \qquad
        d_{ij} = \lVert y_i - y_j \rVert_p

    Pairs with :math:`r < d_{ij} \le f` are neither positive nor negative. Where graded, so is :math:`d_{ij} = r` if
    f > r, and negative otherwise. Labels are numbers ``[B]`` or ``[B, K]``, or an array of them, all finite.

    Args:
        within: r, above 0: the greatest distance of a positive pair.
        beyond: f, at least r: pairs farther apart are negative; by default r.
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
            self.places = len(table)
        self.register_buffer("table", table, persistent=False)

    def tensor(self, labels: Any, count: int, device: torch.device | None = None, axis: int = 0) -> Tensor:
        """Return numbers ``[count, K]``, of the labels' own type, or class indices ``[count]`` with ``numbers``."""
        try:
            labels = _from_array(labels)
            if isinstance(labels, (list, tuple)):
                labels = torch.as_tensor(np.asarray(labels))  # in float64: float32 would merge timestamps
        except (TypeError, ValueError):  # texts, None, or lists of different lengths
            raise TypeError(f"Near wants numbers of shape ({count},) or ({count}, K); got {describe(labels)}") from None
        if self.table is not None:
            return self._integers(labels, count, device)
        numbers = self._checked(labels, count)
        if device is not None and torch.device(device).type == "mps" and numbers.dtype == torch.float64:
            numbers = numbers.float()  # the device has no float64
        return numbers.to(device)

    def _checked(self, labels: Any, count: int) -> Tensor:
        is_number = isinstance(labels, Tensor) and labels.dtype != torch.bool and not labels.is_complex()
        if not is_number or labels.ndim not in (1, 2):
            raise TypeError(f"Near wants numbers of shape ({count},) or ({count}, K); got {describe(labels)}")
        if labels.device.type == "cpu" and not torch.compiler.is_compiling():
            bad = int((~labels.isfinite()).sum())
            if bad:
                raise ValueError(f"labels of Near have {bad} NaN or infinite numbers; leave these items out")
        return _as_column(_counted(labels, count))

    def matrix(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return the weights of all pairs, ``[T, R]``, of numbers ``[T]`` or ``[T, K]``, and ``[R]`` or ``[R, K]``."""
        if self.table is None:
            rows = _as_column(rows)
            columns = _as_column(columns)
        return super().matrix(rows, columns)

    def weights(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the weights of numbers ``[..., K]``, or of classes ``[...]`` with ``numbers``."""
        if self.table is not None:
            table = self.table.to(x.device)
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
    ) -> Near:
        """Return the relation of classes whose names are numbers, such as ``"37"``, or several: ``"52.4 13.1"``.

        ValueError for other names.
        """
        numbers = []
        for name in names:
            try:
                numbers.append([float(part) for part in str(name).split()])
            except ValueError:
                raise ValueError(f"the class {name!r} is no number; wanted names such as 37, or 52.4 13.1") from None
        if len({len(each) for each in numbers}) != 1 or not numbers[0]:
            raise ValueError("the names of all classes must have the same number of numbers, such as 52.4 13.1")
        return cls(within, beyond, graded, p, torch.tensor(numbers, dtype=torch.float64))

    def extra_repr(self) -> str:
        """Return the settings."""
        return f"within={self.within:g}, beyond={self.beyond:g}, graded={self.graded}, p={self.p:g}"


RELATIONS: dict[str, Callable[..., Relation]] = {
    "shared-label": SharedLabel.of_classes,
    "hierarchy": Hierarchy,
    "near": Near.of_classes,
    "negatives-only": NegativesOnly.of_classes,
}
"""Functions from the names of classes to relations, by their names in recipes; labels are places among the names."""


class Related(NamedTuple):
    """An ``indices_tuple`` that carries a relation, the labels that it compares, and the caller's tuple."""

    relation: Relation
    labels: Tensor  # of the batch, [B, ...]
    ref_labels: Tensor  # of the columns, [R, ...]
    indices_tuple: Any

    def weights(self) -> RelationWeights:
        """Return the weights of the batch's pairs, for any slice of its rows."""

        def of_rows(rows: slice) -> Tensor:
            return self.relation.matrix(self.labels[rows], self.ref_labels)

        return RelationWeights(of_rows, self.relation.graded)

    def has_negatives(self) -> Tensor:
        """Return whether any pair is negative, in memory linear in the batch."""
        found = []
        for labels in torch.split(self.labels, 1024):
            weights = self.relation.matrix(labels, self.ref_labels)
            found.append((weights == 0).any())
        return torch.stack(found).any()


def label_tensors(
    relation: Relation, embeddings: Tensor, labels: Any, ref_emb: Tensor | None, ref_labels: Any
) -> tuple[Tensor, Tensor]:
    """Check a batch and its references; return the labels of the rows and of the columns as the relation takes them."""
    check_batch(embeddings)
    check_references(embeddings, ref_emb, ref_labels if ref_emb is None else None)
    rows = relation.tensor(labels, len(embeddings), embeddings.device)
    if ref_emb is None:
        columns = relation.tensor(labels, len(embeddings), embeddings.device, 1)
    else:
        columns = relation.tensor(ref_labels, len(ref_emb), embeddings.device, 1)
    return rows, columns


def related(
    relation: Relation, embeddings: Tensor, labels: Any, indices_tuple: Any, ref_emb: Tensor | None, ref_labels: Any
) -> tuple[Tensor | None, Any, Tensor | None]:
    """Convert a batch with a relation; return labels, indices_tuple and ref_labels for PML's base classes.

    Where labels are equivalent to classes, the classes are returned: one-hot sets give the result of labels, bit for
    bit. Otherwise the relation and its labels are returned as a :class:`Related` in place of the ``indices_tuple``.
    """
    if labels is None and indices_tuple is not None and not relation.graded:
        return None, indices_tuple, None
    if relation.needs_labels and (labels is None or (ref_emb is not None and ref_labels is None)):
        missing = "labels" if labels is None else "ref_labels"
        raise ValueError(f"{missing} must be given for {relation}")
    rows, columns = label_tensors(relation, embeddings, labels, ref_emb, ref_labels)
    if not torch.compiler.is_compiling() or rows.ndim == 1:
        classes = relation.classes(rows)
        ref_classes = relation.classes(columns)
        if classes is not None and ref_classes is not None:
            if ref_emb is None:
                ref_classes = None
            return classes, indices_tuple, ref_classes
    return None, Related(relation, rows, columns, indices_tuple), None


def related_pairs(relation: Relation, labels: Tensor, ref_labels: Tensor, itself: bool) -> tuple[Tensor, ...]:
    """Return all pairs as an ``indices_tuple`` of four tensors; ``itself``: whether the columns are the rows."""
    weights = relation.matrix(labels, ref_labels)
    positives = weights > 0
    negatives = weights == 0
    if itself:
        positives.fill_diagonal_(False)
        negatives.fill_diagonal_(False)
    return (*torch.where(positives), *torch.where(negatives))


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
    """Return which labels each class has, ``[classes, labels]``, booleans; labels are sorted."""
    sets_of_labels = [set(each) for each in sets]
    labels = sorted(set().union(*sets_of_labels))
    number_of_label = {label: number for number, label in enumerate(labels)}
    sets_of_numbers = []
    for labels_of_class in sets_of_labels:
        sets_of_numbers.append({number_of_label[label] for label in labels_of_class})
    return multi_hot(sets_of_numbers, len(labels))


def _numbers_of_ancestors(paths: Sequence[tuple[str, ...]], depth: int) -> Tensor:
    """Return the number of each class's ancestor at each level, ``[classes, depth]``; each node has one number."""
    numbers: dict[tuple[str, ...], int] = {}  # of nodes, by their paths
    rows = []
    for path in paths:
        missing_levels = depth - len(path)
        filled = path + ("",) * missing_levels
        row = []
        for level in range(1, depth + 1):
            ancestor = filled[:level]
            row.append(numbers.setdefault(ancestor, len(numbers)))
        rows.append(row)
    return torch.tensor(rows)


def _are_collections(labels: Any) -> bool:
    """Return whether labels are a list with a collection of labels for each item."""
    if not isinstance(labels, (list, tuple)):
        return False
    return all(isinstance(each, Iterable) and not isinstance(each, str) for each in labels)


def _path_of(path: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names on a path, given as a text with slashes or as names."""
    if isinstance(path, str):
        return tuple(path.split("/"))
    return tuple(path)


def _of_one_width(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Return sets of labels ``[..., C]`` padded to the same C."""
    width = max(first.shape[-1], second.shape[-1])
    first = nn.functional.pad(first, (0, width - first.shape[-1]))
    second = nn.functional.pad(second, (0, width - second.shape[-1]))
    return first, second


def _as_column(numbers: Tensor) -> Tensor:
    """Return numbers ``[B]`` as ``[B, 1]``; others unchanged."""
    return numbers[:, None] if numbers.ndim == 1 else numbers


def _from_array(labels: Any) -> Any:
    """Convert an array to a tensor; return any other value unchanged."""
    if hasattr(labels, "__array__"):
        return torch.as_tensor(labels)
    return labels


def _counted(labels: Tensor, count: int) -> Tensor:
    if len(labels) != count:
        raise ValueError(f"labels of {len(labels)} items are given for {count} embeddings; wanted one row for each")
    return labels
