"""Collapse of embeddings to one point."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pml_ext.evaluation.listed import tuple_metrics
from pml_ext.pairwise import ListedTuples

from .batches import indices_of
from .epoch import Epoch

COLLAPSED = 0.99  # mean cosine similarity of different images above which embeddings may have collapsed
RESOLUTION = 1e-6  # a search in float32 cannot distinguish closer cosine similarities
QUERIES_FOR_COLLAPSE = 256


def warn_of_collapse(epoch: Epoch, embeddings: Tensor) -> None:
    """Warn if the embeddings of an epoch's last batch have collapsed since the epoch before."""
    run = epoch.run
    indices = indices_of(epoch.batches[-1])
    images = run.data.training_images
    if run.data.listed is not None:
        similarity = collapse(embeddings, run.data.listed.among(indices, len(images)))
    else:
        labels = images.labels if run.pseudo_labels is None else run.pseudo_labels
        similarity = collapse(embeddings, labels[indices])
    if similarity is not None and not run.history.collapsed:
        run.warn(
            f"epoch {run.epoch}: the embeddings collapse to one point (mean cosine similarity of different "
            f"images {similarity:.3f}); a warm start, a lower learning rate or easier pairs may help"
        )
    run.history.collapsed = similarity is not None


def collapse(embeddings: Tensor, labels: Any) -> float | None:
    """Return the mean cosine similarity of embeddings ``[N, D]`` that collapsed to one point, or None.

    The similarity is then above :data:`COLLAPSED`, and the nearest image has the same class less often than halfway
    from chance to always. ``labels`` may be listed pairs or triplets, whose chance is one half.
    """
    points = nn.functional.normalize(embeddings.detach().to("cpu", torch.float64))  # MPS has no float64
    count = len(points)
    if count < 2:
        return None
    similarity = float((points.sum(dim=0).square().sum() - count) / (count * (count - 1)))
    if not similarity > COLLAPSED:  # NaN is not a collapse
        return None
    if isinstance(labels, ListedTuples):
        return similarity if _is_near_chance(points, labels) else None
    classes = torch.as_tensor(labels).cpu()
    rows = torch.linspace(0, count - 1, min(count, QUERIES_FOR_COLLAPSE)).long()
    values = (points[rows] @ points.T).scatter_(1, rows[:, None], -torch.inf)
    nearest = values >= values.amax(dim=1, keepdim=True) - RESOLUTION
    same = (classes[rows][:, None] == classes).scatter_(1, rows[:, None], False)
    chance = float(same.double().mean()) * count / (count - 1)
    right = float(((same & nearest).sum(dim=1) / nearest.sum(dim=1)).mean())
    has_collapsed = chance == 0 or right < (1 + chance) / 2
    return similarity if has_collapsed else None


def _is_near_chance(points: Tensor, tuples: ListedTuples) -> bool:
    """Return whether listed tuples are right less often than halfway from chance to always."""
    has_order = tuples.same is None or 0 < int(tuples.same.sum()) < len(tuples)
    if not len(tuples) or not has_order:
        return True
    metrics = tuple_metrics(points, tuples)
    return metrics.get("triplet_accuracy", metrics.get("verification_roc_auc", 0.0)) < 0.75
