r"""Known or new: distances of photographs to classes, thresholds, and open-set metrics.

A photograph is *known* if the nearest class is at most a threshold :math:`T` away, at the distance :math:`d`, else
*new*. Queries are unknown if their class is not enrolled.

- ``false_acceptance_rate``: the share of unknown queries with :math:`d \le T`.
- ``detection_and_identification_rate``: the share of known queries with :math:`d \le T` whose nearest class is right.
- ``dir_at_far_X``: the greatest such rate with a false acceptance rate of at most X (Phillips et al., Handbook of Face
  Recognition, chapter 14).
- ``accuracy``: the share of queries that get their class, or "new" if it is not enrolled.
- ``balanced_accuracy_known``, ``balanced_accuracy_new``: the share of right answers, averaged over classes;
  ``balanced_accuracy``: their geometric mean, as in AnimalCLEF.
- ``recall_at_1``: the share of known queries whose nearest class is right, at any distance.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import betaincinv
from torch import Tensor, nn

TITLES = {
    "accuracy": "Accuracy, with new as an answer",
    "recall_at_1": "Recall@1 of known ones, without new",
    "detection_and_identification_rate": "Known ones that get their class",
    "false_acceptance_rate": "New ones that are taken for known",
    "balanced_accuracy_known": "Balanced accuracy of known classes",
    "balanced_accuracy_new": "Balanced accuracy of new classes",
    "balanced_accuracy": "Geometric mean of both",
}
Nearest = Literal["center", "image"]
NEAREST: tuple[Nearest, ...] = ("center", "image")
RATES = (0.1, 0.05, 0.01)  # false acceptance rates of dir_at_far_X
Distances = NDArray[np.float64]

_AT_A_TIME = 1 << 24  # distances that are held at a time
_ROWS = 8192  # embeddings that are converted to float64 at a time
_EQUAL = 1e-4  # greatest distance of embeddings of one picture, embedded in different batches


def title_of(name: str) -> str:
    """The title of a metric in a table."""
    return TITLES.get(name) or f"Known ones that get their class, at {name.rpartition('_')[2]} false acceptances"


class Classes:
    """The enrolled classes, for Euclidean distances of embeddings of length 1.

    A class is as near as its nearest image, or as its center, the normalized mean of its embeddings.
    """

    def __init__(self, embeddings: Tensor, numbers: NDArray[np.int64], count: int, nearest: Nearest = "center") -> None:
        """``embeddings`` ``[N, D]``; ``numbers`` ``[N]`` are classes from 0 to ``count``, all present."""
        self.embeddings = embeddings
        self.numbers = torch.as_tensor(numbers, device=embeddings.device)
        self.count = count
        self.nearest = nearest
        self._sizes = torch.bincount(self.numbers, minlength=count)
        self._sums = torch.zeros(count, embeddings.shape[1], dtype=torch.float64, device=embeddings.device)
        for start in range(0, len(embeddings), _ROWS):
            rows = slice(start, start + _ROWS)
            self._sums.index_add_(0, self.numbers[rows], embeddings[rows].double())

    @property
    def centers(self) -> Tensor:
        """The center of each class, ``[C, D]``, float64."""
        return nn.functional.normalize(self._sums)

    def distances(self, points: Tensor, own: Sequence[int | None] | None = None) -> Distances:
        """The distance of each point ``[Q, D]`` to each class, ``[Q, C]``.

        ``own`` has the row of each enrolled point, which is left out. A class without another image is infinitely far.
        """
        points = points.to(self.embeddings.device).double()
        rows = torch.tensor([-1 if row is None else row for row in own or [None] * len(points)], device=points.device)
        queries_at_once = max(1, _AT_A_TIME // max(len(self.embeddings), self.count))
        parts = []
        for start in range(0, len(points), queries_at_once):
            part = slice(start, start + queries_at_once)
            if self.nearest == "center":
                parts.append(self._to_centers(points[part], rows[part]))
            else:
                parts.append(self._to_images(points[part], rows[part]))
        if not parts:
            return np.empty((0, self.count))
        distances: Distances = torch.cat(parts).cpu().numpy()
        return distances

    def _to_centers(self, points: Tensor, rows: Tensor) -> Tensor:
        distances = _euclidean(points, self.centers)
        inside = (rows >= 0).nonzero().flatten()
        if len(inside):
            enrolled = rows[inside]
            numbers = self.numbers[enrolled]
            rest = nn.functional.normalize(self._sums[numbers] - self.embeddings[enrolled].double())
            to_rest = (points[inside] - rest).norm(dim=1)
            to_rest[self._sizes[numbers] == 1] = torch.inf
            distances[inside, numbers] = to_rest
        return distances

    def _to_images(self, points: Tensor, rows: Tensor) -> Tensor:
        distances = torch.full((len(points), self.count), torch.inf, dtype=torch.float64, device=points.device)
        images_at_once = min(_ROWS, max(1, _AT_A_TIME // len(points)))
        for start in range(0, len(self.embeddings), images_at_once):
            part = slice(start, start + images_at_once)
            found = _euclidean(points, self.embeddings[part].double())
            inside = ((rows >= start) & (rows < start + found.shape[1])).nonzero().flatten()
            found[inside, rows[inside] - start] = torch.inf
            numbers = self.numbers[part].expand(len(points), -1)
            distances.scatter_reduce_(1, numbers, found, "amin")
        return distances


def _euclidean(points: Tensor, others: Tensor) -> Tensor:
    """Distances ``[Q, N]``, float64; 0 to eight digits between equal vectors."""
    squares = points.square().sum(1)[:, None] + others.square().sum(1) - 2 * points @ others.T
    return squares.clamp(min=0).sqrt()


def without_own_class(distances: Distances, numbers: NDArray[np.int64]) -> Distances:
    """The distance of each enrolled image to the nearest other class, ``[Q]``."""
    others = distances.copy()
    others[np.arange(len(others)), numbers] = np.inf
    smallest: Distances = others.min(axis=1)
    return smallest


def share_of_classes(accepted: NDArray[np.bool_], numbers: NDArray[np.int64]) -> float:
    """Sum over classes of the share of accepted images; ``numbers`` ``[Q]`` are the classes."""
    return float(_weights(numbers)[accepted].sum())


def _weights(numbers: NDArray[np.int64]) -> NDArray[np.float64]:
    """One over the size of each image's class."""
    _, places, sizes = np.unique(numbers, return_inverse=True, return_counts=True)
    weights: NDArray[np.float64] = 1 / sizes[places]
    return weights


def expected_rate(accepted: float, classes: int) -> float:
    r"""Bound of the false acceptance rate of a new class: :math:`(\sum_c L_c + 1) / (C + 1)`.

    ``accepted`` is the sum of :math:`L_c`, the share of accepted images of class c while it is left out. The bound
    holds in expectation for a class drawn like the C others (conformal risk control, Angelopoulos et al. 2022).
    """
    return (accepted + 1) / (classes + 1)


def inflation_of(classes: int) -> float:
    """How much more often C classes accept a new image than all but one: at most C / (C - 1).

    An image's nearest class is among C - 1 of C with probability (C - 1) / C.
    """
    return classes / (classes - 1)


def threshold_at(rate: float, others: Distances, numbers: NDArray[np.int64]) -> float | None:
    """Greatest threshold with an :func:`expected_rate` of at most ``rate``, or None.

    ``others`` ``[Q]`` are distances of images to the nearest other class, ``numbers`` ``[Q]`` their classes. Too few
    classes allow no threshold.
    """
    weights = _weights(numbers)
    most = rate * (len(np.unique(numbers)) + 1) - 1 + 1e-9  # sum of shares that may be accepted
    if most < 0:
        return None
    order = np.argsort(others, kind="stable")
    first = int(np.searchsorted(np.cumsum(weights[order]), most, side="right"))  # that is not accepted
    return 2.0 if first == len(order) else float(np.nextafter(others[order[first]], 0))


def interval_of(accepted: float, classes: int) -> tuple[float, float]:
    """The 90 % interval of Clopper and Pearson of a rate, with classes as observations."""
    low = betaincinv(accepted, classes - accepted + 1, 0.05) if accepted > 0 else 0.0
    high = betaincinv(accepted + 1, classes - accepted, 0.95) if accepted < classes else 1.0
    return float(low), float(high)


def rows_in_several_classes(embeddings: Tensor, names: Sequence[str]) -> list[list[int]]:
    """Groups of rows with equal embeddings ``[N, D]`` in different classes.

    Equal vectors are neighbors along a random line.
    """
    rows = torch.tensor([row for row, name in enumerate(names) if name], dtype=torch.int64)
    points = embeddings[rows.to(embeddings.device)].double().cpu()
    direction = torch.randn(points.shape[1], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    order = (points @ direction).argsort(stable=True)
    apart = (points[order[1:]] - points[order[:-1]]).norm(dim=1) > _EQUAL
    groups = np.split(rows[order].numpy(), apart.nonzero().flatten().numpy() + 1)
    return [sorted(group.tolist()) for group in groups if len({names[row] for row in group}) > 1]


def metrics_of(
    distances: Distances, classes: Sequence[int | None], threshold: float, labels: Sequence[str] | None = None
) -> dict[str, float]:
    """Open-set metrics of queries, named as at the top of this module.

    Args:
        distances: to each enrolled class, ``[Q, C]``.
        classes: the enrolled class of each query, ``[Q]``, or None.
        threshold: the greatest distance of a known query.
        labels: the class name of each query, ``[Q]``; without it, all unknown queries have one class.
    """
    truth = np.array([-1 if number is None else number for number in classes], dtype=np.int64)
    names = np.array(["" if labels is None else name for name in (labels or [""] * len(truth))])
    smallest: Distances = distances.min(axis=1)
    right = distances.argmin(axis=1) == truth
    known = truth >= 0
    accepted = smallest <= threshold
    correct = np.where(known, right & accepted, ~accepted)
    metrics = {"accuracy": float(correct.mean())}
    if known.any():
        metrics["recall_at_1"] = float(right[known].mean())
        metrics["detection_and_identification_rate"] = float((right & accepted)[known].mean())
        metrics["balanced_accuracy_known"] = _mean_over(truth[known], correct[known])
    if not known.all():
        metrics["false_acceptance_rate"] = float(accepted[~known].mean())
        metrics["balanced_accuracy_new"] = _mean_over(names[~known], correct[~known])
    if known.any() and not known.all():
        both = metrics["balanced_accuracy_known"] * metrics["balanced_accuracy_new"]
        metrics["balanced_accuracy"] = both**0.5
        for rate in RATES:
            metrics[f"dir_at_far_{rate:g}"] = _dir_at_far(smallest, right, known, rate)
    return metrics


def _mean_over(groups: NDArray[Any], correct: NDArray[np.bool_]) -> float:
    return float(np.mean([correct[groups == group].mean() for group in np.unique(groups)]))


def _dir_at_far(smallest: Distances, right: NDArray[np.bool_], known: NDArray[np.bool_], rate: float) -> float:
    """The share of known queries that are right at a false acceptance rate of at most ``rate``."""
    unknown = np.sort(smallest[~known])
    most = int(rate * len(unknown) + 1e-9)  # of the unknown queries that may be accepted
    limit = unknown[most] if most < len(unknown) else np.inf
    return float((right & (smallest < limit))[known].mean())
