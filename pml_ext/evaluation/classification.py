"""Classification by class means: few-shot, and zero-shot with means estimated from related classes.

*Source:* Huang et al., Local Similarity-Aware Deep Feature Embedding, 2016, Sec. 4 (transfer and zero-shot learning,
Table 2), https://arxiv.org/abs/1610.08904.
"""

from __future__ import annotations

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
    r"""Return the flat top-k accuracies of the nearest-class-mean classifier (Euclidean distance).

    A point counts if fewer than k classes have a nearer mean than its own class. Classes with equally near
    means are ranked at random. In expectation, a point with c nearer means and t equally near ones, including its own,
    counts :math:`\min(1, (k - c) / t)`. *Cost:* one product of points and means, in tiles.

    Points are ``[N, D]`` (normalize embeddings first) with classes ``[N]``. Means are ``[C, D]`` with distinct classes
    ``[C]``. The result is ``{"top_1": ..., "top_5": ...}``, from 0 to 1; NaN without points.

    Raises:
        ValueError: a label has no mean, or values are not finite.
    """
    if not (points.isfinite().all() and means.isfinite().all()):
        raise ValueError("points or means have values that are not finite")
    ordered, order = classes.to(points.device).sort()
    labels = labels.to(points.device)
    places = torch.searchsorted(ordered, labels).clamp(max=len(ordered) - 1)
    if unknown := labels[ordered[places] != labels].tolist():
        raise ValueError(f"label {unknown[0]} has no mean; wanted one for each label")
    own = order[places]
    distinct, group = torch.unique(means.to(points), dim=0, return_inverse=True)  # equal means give exact ties
    sizes = torch.bincount(group).double().cpu()
    squares = distinct.square().sum(1)
    credit = dict.fromkeys(sorted(set(top)), 0.0)
    tile = max(1, _TILE // len(distinct))
    for start in range(0, len(points), tile):
        rows = slice(start, start + tile)
        distances = squares - 2 * points[rows] @ distinct.T  # squared distances minus the squared norm of the point
        mine = distances.gather(1, group[own[rows]][:, None])
        nearer, alike = ((compared.double().cpu() @ sizes) for compared in (distances < mine, distances == mine))
        for k in credit:
            credit[k] += float(((k - nearer) / alike).clamp(0, 1).sum())
    return {f"top_{k}": total / len(points) if len(points) else float("nan") for k, total in credit.items()}


def related_means(names: Sequence[str], known: Mapping[str, Tensor], parents: Parents) -> Tensor:
    """Return estimates of new classes' means: the average of related known classes in a hierarchy (zero-shot).

    The paper does not define related classes. Here they are the known descendants of the new class's parents; if there
    are none, those of its grandparents, and so on; and all known classes if no ancestor has known descendants.

    ``known`` maps names to means, ``[D]``; ``parents`` maps classes and ancestors to their parents. The result is
    ``[C, D]``, in the order of the names. A class that is its own ancestor raises :class:`DataError`.
    """
    below = defaultdict[str, set[str]](set)
    for name in known:
        for level in ancestors(name, parents):
            for ancestor in level:
                below[ancestor].add(name)
    estimates = []
    for name in names:
        by_level = (set[str]().union(*(below[each] for each in level)) - {name} for level in ancestors(name, parents))
        relatives = next(filter(None, by_level), set(known))
        estimates.append(torch.stack([known[relative] for relative in sorted(relatives)]).mean(0))
    return torch.stack(estimates)


def ancestors(name: str, parents: Parents) -> list[list[str]]:
    """Return the ancestors of a class by level: parents, grandparents, ..., each only at its lowest level."""
    levels: list[list[str]] = []
    met: set[str] = set()
    level = list(dict.fromkeys(parents.get(name, ())))
    while level:
        if name in level:
            raise DataError(f"{name} is its own ancestor in the hierarchy of classes; mend its list of parents")
        levels.append(level)
        met |= set(level)
        level = [each for each in dict.fromkeys(p for one in level for p in parents.get(one, ())) if each not in met]
    return levels
