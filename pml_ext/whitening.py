"""Closed-form heads: whitening of features, without training."""

import copy
from collections.abc import Hashable, Iterator
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from .relations import Relation
from .settings import check_count, check_number

SHRINKAGES = (0.3, 0.6, 0.9, 1.0)  # that "auto" compares
_ROWS = 4096  # features that are converted to float64 at a time
_COMPARED = 512  # items that are compared with all others at a time
_FOLDS = 4
_FEWEST_CLASSES = 4  # with two items or more, for "auto": two folds of two
_LEAST_VARIANCE = 1e-10  # of a direction, over the mean of all; a smaller one is rounding error


class _Whitening:
    """Covariances that grow in batches, and the linear layer that they give."""

    def __init__(self, shrinkage: float | Literal["auto"] = 0.6, size: int | None = None) -> None:
        if shrinkage != "auto":
            check_number(self, "shrinkage", shrinkage, least=0, most=1, or_else="'auto'")
        if size is not None:
            check_count(self, "size", size)
        self.shrinkage = shrinkage
        self.size = size
        self._reset()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shrinkage={self.shrinkage!r}, size={self.size!r})"

    def _reset(self) -> None:
        self._within: Tensor | None = None  # scatter of the features around the means of their classes, [F, F]
        self._counts: dict[Hashable, int] = {}
        self._means: dict[Hashable, Tensor] = {}
        self._dtype = torch.float32

    def _add(self, features: Tensor, labels: Tensor, keys: list[Hashable]) -> None:
        """Add a batch; ``labels`` ``[N]`` are indices of ``keys``, which name classes.

        Means and scatters are merged as in Chan et al. (1983), which loses no digits for features far from 0.
        """
        within = self._scatter_matrix(features)
        order = torch.argsort(labels, stable=True)
        counts = torch.bincount(labels, minlength=len(keys))
        ends = counts.cumsum(0).tolist()
        for first, last in _parts_of_classes(ends):
            begin = ends[first - 1] if first else 0
            rows = order[begin : ends[last - 1]]
            classes = labels[rows] - first
            sizes = counts[first:last].to(torch.float64)
            means = self._means_of(features, rows, classes, sizes)
            for part_rows, part_classes in zip(_in_parts(rows), _in_parts(classes), strict=True):
                deviations = features[part_rows].to(torch.float64) - means[part_classes]
                within.addmm_(deviations.T, deviations)
            for number, mean in zip(range(first, last), means, strict=True):
                self._merge(keys[number], int(counts[number]), mean)

    def _scatter_matrix(self, features: Tensor) -> Tensor:
        size = features.shape[1]
        if self._within is None:
            self._within = torch.zeros(size, size, dtype=torch.float64, device=features.device)
            self._dtype = torch.promote_types(features.dtype, torch.float32)
        if len(self._within) != size:
            raise ValueError(f"features have {size} columns, those before {len(self._within)}; wanted the same")
        return self._within

    def _means_of(self, features: Tensor, rows: Tensor, classes: Tensor, sizes: Tensor) -> Tensor:
        """Class means ``[C, F]``, float64."""
        sums = torch.zeros(len(sizes), features.shape[1], dtype=torch.float64, device=features.device)
        for part_rows, part_classes in zip(_in_parts(rows), _in_parts(classes), strict=True):
            sums.index_add_(0, part_classes, features[part_rows].to(torch.float64))
        return sums / sizes[:, None]

    def _merge(self, key: Hashable, count: int, mean: Tensor) -> None:
        """Merge a batch of a class, whose deviations from its own mean are already added."""
        assert self._within is not None
        before = self._counts.get(key, 0)
        self._counts[key] = before + count
        if not before:
            self._means[key] = mean
            return
        difference = mean - self._means[key]
        self._within.addr_(difference, difference, alpha=before * count / (before + count))
        self._means[key] += difference * (count / (before + count))

    def to_linear(self) -> nn.Linear:
        """The layer for all features so far, on their device, in float32 or float64.

        ValueError unless some class, or the features without labels, have two different items.
        """
        usable = [key for key, count in self._counts.items() if count > 1]
        if self._within is None or not usable:
            raise ValueError(self._too_few())
        counts = torch.tensor([self._counts[key] for key in usable], dtype=torch.float64, device=self._within.device)
        means = torch.stack([self._means[key] for key in usable])
        center = (counts[:, None] * means).sum(0) / counts.sum()
        deviations = (means - center) * counts.sqrt()[:, None]
        total = self._within + deviations.T @ deviations
        return self._layer(self._within / counts.sum(), total / counts.sum(), center)

    def _too_few(self) -> str:
        raise NotImplementedError

    def _weight(self, covariance: Tensor, total: Tensor) -> Tensor:
        """The rows that whiten by a covariance, ordered by the total variance afterwards."""
        raise NotImplementedError

    def _layer(self, covariance: Tensor, total: Tensor, center: Tensor) -> nn.Linear:
        if self.shrinkage == "auto":
            raise ValueError("shrinkage='auto' compares values on features that are kept: call fit, or give a number")
        size = self.size or len(center)
        if size > len(center):
            raise ValueError(f"size must be at most the {len(center)} columns of the features, not {size}")
        weight = _with_fixed_signs(self._weight(shrunk(covariance, float(self.shrinkage)), total)[:size])
        layer: nn.Linear = nn.Linear(len(center), size, device="meta", dtype=self._dtype)
        layer = layer.to_empty(device=center.device)
        with torch.no_grad():
            layer.weight.copy_(weight)
            layer.bias.copy_(-weight @ center)
        return layer


class WithinClassWhitening(_Whitening):
    r"""A linear head that whitens features by their covariance within classes.

    .. math::
        S = \frac{1}{N} \sum_c \sum_{i \in c} (x_i - \mu_c)(x_i - \mu_c)^\top, \qquad
        S_\lambda = (1 - \lambda) S + \lambda \frac{\operatorname{tr} S}{F} I, \qquad
        f(x) = U^\top S_\lambda^{-1/2} (x - \mu)

    with class means :math:`\mu_c`, the mean :math:`\mu`, and the leading directions :math:`U` of the total covariance
    of :math:`S_\lambda^{-1/2} x`. Directions that vary within classes count less. Compare the outputs by cosine. This
    is relevant component analysis (Shental et al. 2002; Bar-Hillel et al. 2005, JMLR 6) with shrinkage, also known as
    within-class covariance normalization (Hatch et al. 2006) and, with pairs, as learned whitening in image retrieval
    (Mikolajczyk and Matas 2007; Radenović et al. 2018).

    >>> features = torch.randn(40, 8)
    >>> embedder = WithinClassWhitening(size=4).fit(features, torch.arange(40) // 5)
    >>> embedder(features).shape
    torch.Size([40, 4])

    *Cost:* one product of ``F x N x F`` and two eigendecompositions of ``F x F``, in float64; memory for a few ``F x
    F`` and the class means. 100,000 features of 1,280 numbers take seconds.

    Args:
        shrinkage: :math:`\lambda` in [0, 1], towards the mean eigenvalue. ``"auto"`` chooses from 0.3, 0.6, 0.9 and 1
            by MAP@R on held-out classes.
        size: number of outputs D; None keeps all F.
        relation: a :class:`~pml_ext.relations.Relation` that defines positive pairs in place of equal labels.
    """

    def __init__(
        self,
        shrinkage: float | Literal["auto"] = 0.6,
        size: int | None = None,
        relation: Relation | None = None,
    ) -> None:
        super().__init__(shrinkage, size)
        if relation is not None and shrinkage == "auto":
            raise ValueError("shrinkage='auto' holds out classes, which a relation has not; give a number, such as 0.6")
        self.relation = relation

    def fit(self, features: Tensor, labels: Any = None, *, pairs: Any = None) -> nn.Linear:
        """The layer for features ``[N, F]``; earlier calls are forgotten.

        Args:
            features: numbers ``[N, F]`` on any device.
            labels: the class of each item, ``[N]``, integers or texts; with a ``relation``, labels in its form. Classes
                with a single item do not count.
            pairs: in place of labels, positive pairs ``[P, 2]`` of row numbers.

        ValueError or TypeError for invalid features or labels, or without a class of two different items.
        """
        self._reset()
        _check_features(features)
        if (labels is None) == (pairs is None):
            found = "neither" if labels is None else "both"
            raise ValueError(f"found {found} of labels and pairs; wanted one, or TotalWhitening, which takes none")
        if pairs is not None:
            if self.shrinkage == "auto":
                raise ValueError("shrinkage='auto' holds out classes, which pairs have not; give a number, such as 0.6")
            return self._fit_pairs(features, _checked_pairs(pairs, len(features), features.device))
        if self.relation is not None:
            return self._fit_pairs(features, _positive_pairs(self.relation, labels, features))
        if self.shrinkage == "auto":
            chosen = copy.copy(self)
            chosen.shrinkage = self._best_shrinkage(features, labels)
            return chosen.fit(features, labels)
        return self.partial_fit(features, labels).to_linear()

    def partial_fit(self, features: Tensor, labels: Any) -> Self:
        """Add features ``[N, F]`` with labels ``[N]``; a class may come in several batches."""
        _check_features(features)
        if self.relation is not None:
            raise ValueError("a relation compares all items: call fit")
        indices, keys = _class_indices(labels, features)
        self._add(features, indices, keys)
        return self

    def _too_few(self) -> str:
        return "no class has two items; wanted two images or more of some classes, or TotalWhitening, without labels"

    def _weight(self, covariance: Tensor, total: Tensor) -> Tensor:
        variances, directions = _decomposed(covariance)
        inverse_root = (directions * variances.rsqrt()) @ directions.T
        _, leading = torch.linalg.eigh(inverse_root @ total @ inverse_root)
        ordered: Tensor = leading.flip(1).T
        return ordered @ inverse_root

    def _fit_pairs(self, features: Tensor, pairs: Tensor) -> nn.Linear:
        r"""The layer for positive pairs, each given once, ``[P, 2]``.

        .. math:: S = \frac{1}{N} \sum_{(i, j)} \frac{1}{2} \left(\frac{1}{d_i + 1} + \frac{1}{d_j + 1}\right)
            (x_i - x_j)(x_i - x_j)^\top

        where item i has :math:`d_i` partners. For all pairs of a class, the sum is the scatter around its mean.
        """
        within = self._scatter_matrix(features)
        if not len(pairs):
            raise ValueError("no pair of two different items; wanted positive pairs [P, 2]")
        partners = torch.bincount(pairs.flatten(), minlength=len(features)).to(torch.float64)
        for part in _in_parts(pairs):
            first, second = part.unbind(1)
            weights = (1 / (partners[first] + 1) + 1 / (partners[second] + 1)) / 2
            differences = features[first].to(torch.float64) - features[second].to(torch.float64)
            differences *= weights.sqrt()[:, None]
            within.addmm_(differences.T, differences)
        paired = torch.nonzero(partners).flatten()
        everything = TotalWhitening(shrinkage=0)
        everything.partial_fit(features[paired])
        assert everything._within is not None
        (center,) = everything._means.values()
        return self._layer(within / len(paired), everything._within / len(paired), center)

    def _best_shrinkage(self, features: Tensor, labels: Any) -> float:
        indices, keys = _class_indices(labels, features)
        usable = torch.nonzero(torch.bincount(indices, minlength=len(keys)) > 1).flatten()
        if len(usable) < _FEWEST_CLASSES:
            raise ValueError(
                f"shrinkage='auto' needs {_FEWEST_CLASSES} classes of two items or more, found {len(usable)}; give a "
                "number, such as 0.6"
            )
        folds = usable[torch.randperm(len(usable), generator=torch.Generator().manual_seed(0)).to(usable.device)]
        values = torch.zeros(len(SHRINKAGES), dtype=torch.float64)
        for held_out in folds.tensor_split(min(_FOLDS, len(usable) // 2)):
            tested = torch.isin(indices, held_out)
            scatter = WithinClassWhitening().partial_fit(features[~tested], indices[~tested])
            for number, shrinkage in enumerate(SHRINKAGES):
                scatter.shrinkage = shrinkage
                embeddings = scatter.to_linear()(features[tested].to(scatter._dtype)).detach()
                values[number] += _map_at_r(embeddings, indices[tested]).sum().cpu()
        return SHRINKAGES[int(values.argmax())]


class TotalWhitening(_Whitening):
    r"""A linear head that whitens features by their total covariance, without labels.

    .. math::
        S = \frac{1}{N} \sum_i (x_i - \mu)(x_i - \mu)^\top, \qquad
        S_\lambda = (1 - \lambda) S + \lambda \frac{\operatorname{tr} S}{F} I, \qquad
        f(x) = U^\top S_\lambda^{-1/2} (x - \mu)

    with the leading principal components :math:`U`. :math:`\lambda = 0` gives whitened PCA. With labels,
    :class:`WithinClassWhitening`, which has the same cost, is better.

    >>> features = torch.randn(40, 8)
    >>> TotalWhitening().fit(features)(features).shape
    torch.Size([40, 8])

    Args:
        shrinkage: :math:`\lambda` in [0, 1], towards the mean eigenvalue.
        size: number of outputs D; None keeps all F.
    """

    def __init__(self, shrinkage: float = 0.6, size: int | None = None) -> None:
        check_number(self, "shrinkage", shrinkage, least=0, most=1)
        super().__init__(shrinkage, size)

    def fit(self, features: Tensor) -> nn.Linear:
        """The layer for features ``[N, F]``; earlier calls are forgotten.

        ValueError or TypeError unless features are a finite matrix with two different rows.
        """
        self._reset()
        return self.partial_fit(features).to_linear()

    def partial_fit(self, features: Tensor) -> Self:
        """Add a batch of features ``[N, F]``."""
        _check_features(features)
        self._add(features, torch.zeros(len(features), dtype=torch.int64, device=features.device), [0])
        return self

    def _weight(self, covariance: Tensor, total: Tensor) -> Tensor:
        variances, directions = _decomposed(covariance)
        return (directions * variances.rsqrt()).flip(1).T

    def _too_few(self) -> str:
        return "fewer than two features; wanted two or more"


def shrunk(covariance: Tensor, shrinkage: float) -> Tensor:
    r"""A covariance ``[F, F]``, shrunk towards its mean eigenvalue.

    .. math:: (1 - \lambda) S + \lambda \frac{\operatorname{tr} S}{F} I
    """
    mean = covariance.diagonal().mean()
    return (1 - shrinkage) * covariance + shrinkage * mean * torch.eye(
        len(covariance), dtype=covariance.dtype, device=covariance.device
    )


def _decomposed(covariance: Tensor) -> tuple[Tensor, Tensor]:
    variances, directions = torch.linalg.eigh(covariance)
    mean = float(variances.mean())
    if mean <= 0:
        raise ValueError("the items of each class are equal; wanted features that vary")
    flat = int((variances <= _LEAST_VARIANCE * mean).sum())
    if flat:
        raise ValueError(
            f"{flat} of {len(variances)} directions of the features do not vary within classes (constant features, or "
            "fewer items than features); give a shrinkage above 0"
        )
    return variances, directions


def _with_fixed_signs(weight: Tensor) -> Tensor:
    greatest = weight.abs().argmax(1, keepdim=True)
    return weight * weight.gather(1, greatest).sign()


def _parts_of_classes(ends: list[int]) -> Iterator[tuple[int, int]]:
    first = begin = 0
    for number, end in enumerate(ends, start=1):
        if end - begin >= _ROWS or number == len(ends):
            yield first, number
            first, begin = number, end


def _in_parts(rows: Tensor, size: int | None = None) -> tuple[Tensor, ...]:
    parts: tuple[Tensor, ...] = torch.split(rows, size or _ROWS)  # type: ignore[no-untyped-call]
    return parts


def _check_features(features: Any) -> None:
    if not isinstance(features, Tensor):
        raise TypeError(f"features must be a tensor [N, F], not {type(features).__name__}; torch.from_numpy converts")
    if features.ndim != 2 or not features.is_floating_point():
        raise ValueError(f"features must be numbers [N, F], got {features.dtype} of shape {tuple(features.shape)}")
    for number, part in enumerate(_in_parts(features)):
        finite = part.isfinite().all(1)
        if not finite.all():
            row = number * _ROWS + int((~finite).nonzero()[0])
            raise ValueError(f"features: row {row} has NaN or infinite values; wanted finite numbers")


def _class_indices(labels: Any, features: Tensor) -> tuple[Tensor, list[Hashable]]:
    """The class of each item as an index, ``[N]``, and the label of each index."""
    if isinstance(labels, Tensor):
        labels = labels.detach().cpu().numpy()
    values = np.asarray(labels)
    if values.shape != (len(features),):
        raise ValueError(f"labels must be one for each of {len(features)} features, got shape {values.shape}")
    known, indices = np.unique(values, return_inverse=True)
    return torch.from_numpy(indices.astype(np.int64)).to(features.device), known.tolist()


def _checked_pairs(pairs: Any, count: int, device: torch.device) -> Tensor:
    """Each pair once, ``[P, 2]``."""
    pairs = torch.as_tensor(np.asarray(pairs) if not isinstance(pairs, Tensor) else pairs, device=device)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.is_floating_point():
        raise ValueError(f"pairs must be integers [P, 2], got {pairs.dtype} of shape {tuple(pairs.shape)}")
    if len(pairs) and (pairs.min() < 0 or pairs.max() >= count):
        raise ValueError(f"pairs must be rows from 0 to {count - 1}, got {int(pairs.min())} to {int(pairs.max())}")
    ordered: Tensor = pairs.long().sort(1).values.unique(dim=0)
    return ordered[ordered[:, 0] != ordered[:, 1]]


def _positive_pairs(relation: Relation, labels: Any, features: Tensor) -> Tensor:
    """Pairs that a relation calls positive in either direction, each once, ``[P, 2]``."""
    known = relation.tensor(labels, len(features), features.device)
    found = []
    for rows in _in_parts(torch.arange(len(features), device=features.device), _COMPARED):
        positive = relation.matrix(known[rows], known) > 0
        first, second = positive.nonzero(as_tuple=True)
        found.append(torch.stack([rows[first], second], dim=1))
    return _checked_pairs(torch.cat(found), len(features), features.device)


def _map_at_r(embeddings: Tensor, labels: Tensor) -> Tensor:
    """Each item's MAP@R by cosine, ``[N]``, without the extra ``train``."""
    points = nn.functional.normalize(embeddings)
    sizes = torch.bincount(labels)[labels] - 1
    most = int(sizes.max())
    ranks = torch.arange(1, most + 1, device=points.device)
    values = []
    for rows in _in_parts(torch.arange(len(points), device=points.device), _COMPARED):
        similarity = points[rows] @ points.T
        similarity[torch.arange(len(rows), device=points.device), rows] = -torch.inf
        nearest = similarity.topk(most, dim=1).indices
        relevant = sizes[rows][:, None]
        right = (labels[nearest] == labels[rows][:, None]) & (ranks <= relevant)
        precision = right.cumsum(1).to(torch.float64) / ranks
        values.append((precision * right / relevant).sum(1))
    return torch.cat(values)
