"""Classification by class means: few-shot, and zero-shot with means of related classes.

*Source:* Huang et al., Local Similarity-Aware Deep Feature Embedding, 2016, Sec. 4 and Table 2,
https://arxiv.org/abs/1610.08904.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from ..errors import DataError

_TILE = 8_000_000  # distances in memory at a time

Parents = Mapping[str, Sequence[str]]


def nearest_class_mean(
    points: Tensor, labels: Tensor, classes: Tensor, means: Tensor, top: Iterable[int] = (1, 5)
) -> dict[str, float]:
    r"""Top-k accuracies of the nearest class mean, ``{"top_1": ..., "top_5": ...}``.

    A point counts if fewer than k classes have a nearer mean (Euclidean) than its own class. With c nearer means and t
    equally near ones, including its own, it counts :math:`\min(1, (k - c) / t)`.

    Points are ``[N, D]`` (normalize embeddings first) with classes ``[N]``; means are ``[C, D]`` with distinct classes
    ``[C]``. ValueError if a label has no mean, or values are not finite.
    """
    if not (points.isfinite().all() and means.isfinite().all()):
        raise ValueError("points or means have values that are not finite")
    own_class = _rows_of(classes.to(points.device), labels.to(points.device))
    distinct, group = torch.unique(means.to(points), dim=0, return_inverse=True)  # equal means give exact ties
    sizes = torch.bincount(group).cpu().double()
    squares = distinct.square().sum(1)
    credit = dict.fromkeys(sorted(set(top)), 0.0)
    tile = max(1, _TILE // len(distinct))
    for start in range(0, len(points), tile):
        rows = slice(start, start + tile)
        distances = squares - 2 * points[rows] @ distinct.T  # squared distances minus the squared norm of the point
        own_group = group[own_class[rows]]
        own_distance = distances.gather(1, own_group[:, None])
        nearer = (distances < own_distance).cpu().double() @ sizes
        equally_near = (distances == own_distance).cpu().double() @ sizes
        for k in credit:
            credit[k] += float(((k - nearer) / equally_near).clamp(0, 1).sum())

    if not len(points):
        return {f"top_{k}": float("nan") for k in credit}
    return {f"top_{k}": total / len(points) for k, total in credit.items()}


def _rows_of(classes: Tensor, labels: Tensor) -> Tensor:
    ordered, order = classes.sort()
    places = torch.searchsorted(ordered, labels).clamp(max=len(ordered) - 1)
    missing = labels[ordered[places] != labels].tolist()
    if missing:
        raise ValueError(f"label {missing[0]} has no mean; wanted one for each label")
    return order[places]


def related_means(names: Sequence[str], known: Mapping[str, Tensor], parents: Parents) -> Tensor:
    """Estimate the means of new classes as averages of related known classes (zero-shot).

    Related classes are the known descendants of the nearest ancestors that have any, or else all known classes.

    ``known`` maps names to means, ``[D]``; ``parents`` maps classes and ancestors to their parents. The result is ``[C,
    D]``. A class that is its own ancestor raises :class:`DataError`.
    """
    descendants = defaultdict[str, set[str]](set)  # known descendants of each ancestor
    for name in known:
        for level in ancestors(name, parents):
            for ancestor in level:
                descendants[ancestor].add(name)

    estimates = []
    for name in names:
        related = sorted(_nearest_relatives(name, parents, descendants) or known)
        means = torch.stack([known[relative] for relative in related])
        estimates.append(means.mean(0))
    return torch.stack(estimates)


def _nearest_relatives(name: str, parents: Parents, descendants: Mapping[str, set[str]]) -> set[str]:
    for level in ancestors(name, parents):
        relatives = set[str]().union(*(descendants[ancestor] for ancestor in level)) - {name}
        if relatives:
            return relatives
    return set()


def ancestors(name: str, parents: Parents) -> list[list[str]]:
    """The ancestors of a class by level, parents first, each at its lowest level."""
    levels: list[list[str]] = []
    met: set[str] = set()
    level = list(dict.fromkeys(parents.get(name, ())))
    while level:
        if name in level:
            raise DataError(f"{name} is its own ancestor in the hierarchy of classes; correct its list of parents")
        levels.append(level)
        met |= set(level)
        next_level: dict[str, None] = {}  # in the order of the parents, each once
        for each in level:
            next_level |= dict.fromkeys(parents.get(each, ()))
        level = [each for each in next_level if each not in met]
    return levels
