"""Classification by class means: of classes with a few known images, and of classes known by their relatives alone.

*Source:* Huang et al., Local Similarity-Aware Deep Feature Embedding, 2016, Sec. 4 (transfer and zero-shot learning,
Table 2), https://arxiv.org/abs/1610.08904.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from ..errors import DataError

_TILE = 8_000_000  # distances at a time

Parents = Mapping[str, Sequence[str]]


def nearest_class_mean(
    points: Tensor, labels: Tensor, classes: Tensor, means: Tensor, top: Iterable[int] = (1, 5)
) -> dict[str, float]:
    r"""Return the flat top-k accuracy of the classifier that takes the class with the nearest mean (Euclidean).

    A point counts if fewer than k classes have a nearer mean than its own class. Classes whose means are equally near
    are in a random order: with c nearer means and t equally near ones, its own among them, a point counts for
    :math:`\min(1, (k - c) / t)`. *Cost:* one product of points and means, in tiles.

    Points are ``[N, D]`` (normalize embeddings first), their classes ``[N]``; means ``[C, D]``, their classes ``[C]``,
    each once. The result, ``{"top_1": ..., "top_5": ...}``, is from 0 to 1, NaN without points.

    Raises:
        ValueError: a label without a mean, or values that are not finite.
    """
    if not (points.isfinite().all() and means.isfinite().all()):
        raise ValueError("points or means have values that are not finite")
    ordered, order = classes.to(points.device).sort()
    labels = labels.to(points.device)
    places = torch.searchsorted(ordered, labels).clamp(max=len(ordered) - 1)
    if unknown := labels[ordered[places] != labels].tolist():
        raise ValueError(f"label {unknown[0]} has no mean; wanted one for each label")
    own = order[places]
    distinct, group = torch.unique(means.to(points), dim=0, return_inverse=True)  # equal means are equally near
    sizes = torch.bincount(group).double().cpu()
    squares = distinct.square().sum(1)
    credit = dict.fromkeys(sorted(set(top)), 0.0)
    tile = max(1, _TILE // len(distinct))
    for start in range(0, len(points), tile):
        rows = slice(start, start + tile)
        distances = squares - 2 * points[rows] @ distinct.T  # less a term of the point alone
        mine = distances.gather(1, group[own[rows]][:, None])
        nearer, alike = ((compared.double().cpu() @ sizes) for compared in (distances < mine, distances == mine))
        for k in credit:
            credit[k] += float(((k - nearer) / alike).clamp(0, 1).sum())
    return {f"top_{k}": total / len(points) if len(points) else float("nan") for k, total in credit.items()}


def related_means(names: Sequence[str], known: Mapping[str, Tensor], parents: Parents) -> Tensor:
    """Return estimates of the means of new classes from those of known ones, over a hierarchy (zero-shot learning).

    The paper does not say which classes are related. Here these are the known classes below a new class's parents; if
    there are none, below its parents' parents, and so on; and all known classes where no ancestor has any.

    ``known`` are means, ``[D]``, by name; ``parents`` those of classes and their ancestors; the result is ``[C, D]``,
    in the order of the names. A class that is its own ancestor is a :class:`DataError`.
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
    """Return the ancestors of a class, level by level: its parents, those of its parents that are new, and so on."""
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
