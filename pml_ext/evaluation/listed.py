"""Metrics of listed pairs and triplets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..pairwise import ListedTuples
from .pairs import VerificationPairs
from .verification import FOLDS, accuracy_at, curve_metrics, fold_metrics, pair_scores

if TYPE_CHECKING:
    from ..pml import BaseDistance

PREFIX = "verification_"  # of the metrics of pairs


def tuple_metrics(
    embeddings: Any, tuples: ListedTuples, threshold: float | None = None, distance: BaseDistance | None = None
) -> dict[str, float]:
    """The metrics of listed pairs or triplets by name.

    Pairs: the metrics of :func:`pml_ext.evaluation.verify`, with the prefix ``verification_``. Ten-fold accuracy needs
    ten pairs of each kind. Triplets: ``triplet_accuracy``.

    ``threshold`` comes from training pairs. ValueError for NaN, or pairs of one kind alone.
    """
    if tuples.same is None:
        return {"triplet_accuracy": triplet_accuracy(embeddings, tuples, distance)}
    scores = scores_of_pairs(embeddings, tuples, distance)
    same = tuples.same.numpy()
    metrics = curve_metrics(scores, same)
    if threshold is not None:
        metrics["accuracy"] = accuracy_at(scores, same, threshold)
    if min(same.sum(), (~same).sum()) >= FOLDS:
        metrics |= fold_metrics(scores, same)
    return {f"{PREFIX}{name}": value for name, value in metrics.items()}


def scores_of_pairs(embeddings: Any, pairs: ListedTuples, distance: BaseDistance | None = None) -> NDArray[np.float64]:
    """The scores ``[T]`` of listed pairs, greater for more similar ones."""
    assert pairs.same is not None
    first, second = pairs.rows.T
    return pair_scores(embeddings, VerificationPairs(first, second, pairs.same), distance=distance)


def scores_of_triplets(
    embeddings: Any, triplets: ListedTuples, distance: BaseDistance | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The scores of anchor and positive, and of anchor and negative, ``[T]`` each."""
    anchors, positives, negatives = triplets.rows.T
    right = torch.ones(len(triplets), dtype=torch.bool)
    known = pair_scores(embeddings, VerificationPairs(anchors, positives, right), distance=distance)
    others = pair_scores(embeddings, VerificationPairs(anchors, negatives, ~right), distance=distance)
    return known, others


def triplet_accuracy(embeddings: Any, triplets: ListedTuples, distance: BaseDistance | None = None) -> float:
    r"""The share of triplets whose positive is nearer to the anchor; a tie counts half.

    .. math:: \frac{1}{T} \sum_{a, p, n} [d_{ap} < d_{an}] + \frac{1}{2} [d_{ap} = d_{an}]
    """
    known, others = scores_of_triplets(embeddings, triplets, distance)
    return float(((known > others) + 0.5 * (known == others)).mean())
