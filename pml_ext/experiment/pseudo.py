"""Training without labels: before each epoch the training images are clustered, and clusters are their labels.

*Source:* Kan et al., Contrastive Bayesian Analysis for Deep Metric Learning, 2022, Sec. 4.6.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from ..distributed import from_rank_0
from ..evaluation import kmeans, nmi
from .recipe import PseudoTable
from .sampling import sampler_of_clusters
from .stages import Stage
from .view import View

Labels = NDArray[np.int64]


def clusters_of(view: View, table: PseudoTable) -> Labels:
    """The cluster of every training image, as the network sees it now; in every process as rank 0 finds them.

    Args:
        view: of the run.
        table: ``[data.pseudo]``.

    Returns:
        ``[N]``, in the order of the images.
    """
    labels = None
    if view.rank == 0:
        points = nn.functional.normalize(view.embeddings("train", table.features))
        labels = kmeans(points, table.clusters).cpu().numpy().astype(np.int64)
    return from_rank_0(labels)  # type: ignore[no-any-return]


def renew(
    view: View, stage: Stage, before: Labels | None, kept: Labels | None, tell: Callable[[str], None]
) -> tuple[Labels | None, dict[str, Any]]:
    """Makes clusters the labels of an epoch: of its batches, of its sampler, and of what components see.

    Args:
        view: of the run, at the epoch; at epoch 0 before components prepare themselves, whose clusters epoch 1 has too.
        stage: of the epoch.
        before: the clusters of the epoch before; None where there is none.
        kept: this epoch's, where a run goes on inside of it.
        tell: called with a line before images are clustered.

    Returns:
        The cluster of every training image, and what :func:`about_clusters` says of them. Nothing where labels are
        given.
    """
    if (table := view.recipe.data.pseudo) is None:
        return None, {}
    labels = kept if kept is not None else before if view.epoch == 1 else None
    if labels is None:
        tell(f"clustering the training images before epoch {max(1, view.epoch)}")
        labels = clusters_of(view, table)
    view.pseudo_labels = labels
    names = [f"cluster {number}" for number in range(table.clusters)]
    images = view.training_images.replace(labels=labels, class_names=names)
    stage.sampler, stage.batch_size = sampler_of_clusters(
        stage.table, table, images, stage.iterations, view.seed, max(1, view.epoch)
    )
    return labels, about_clusters(labels, before if view.epoch > 1 else None)


def about_clusters(labels: Labels, before: Labels | None) -> dict[str, Any]:
    """What is known of clusters without labels.

    Args:
        labels: the cluster of every training image.
        before: likewise, in the epoch before; None in the first.

    Returns:
        ``clusters``: how many have an image; ``largest``: the share of the images that the largest has; and
        ``nmi_to_epoch_before``, by which it can be seen whether the labels settle.
    """
    sizes = np.bincount(labels)
    about: dict[str, Any] = {"clusters": int((sizes > 0).sum()), "largest": float(sizes.max() / len(labels))}
    return about if before is None else about | {"nmi_to_epoch_before": nmi(before, labels)}
