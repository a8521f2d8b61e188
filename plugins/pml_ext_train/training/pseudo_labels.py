"""Pseudo-labels of training images: clusters (Kan et al., 2022, Sec. 4.6), or image numbers."""

import numpy as np
from torch import nn

from pml_ext.distributed import from_rank_0
from pml_ext.errors import ConfigError
from pml_ext.evaluation import kmeans

from ..data import LabeledImages
from ..recipe.schema import PseudoTable
from .run import Run
from .samplers import Labels, build_sampler, sized, with_clusters
from .stages import Stage


def relabel(run: Run, stage: Stage, kept: Labels | None = None) -> None:
    """Cluster the training images before an epoch, if the recipe says so, and renew its sampler.

    ``kept`` has the labels of an unfinished epoch. Epoch 1 reuses the labels from before training.
    """
    if run.recipe.data.labels == "instance":
        run.pseudo_labels = np.arange(len(run.data.training_images))
    table = run.recipe.data.pseudo
    if table is None:
        return
    epoch = max(1, run.epoch)
    labels = kept
    if labels is None and run.epoch == 1:
        labels = run.history.pseudo_labels
    if labels is None:
        run.listener.step(f"clustering the training images before epoch {epoch}")
        if run.rank == 0:
            points = nn.functional.normalize(run.embeddings("train", table.features))
            labels = kmeans(points, table.clusters).cpu().numpy().astype(np.int64)
        labels = from_rank_0(labels)
    run.pseudo_labels = labels
    run.history.pseudo_labels = labels
    set_sampler(stage, table, with_clusters(run.data.training_images, table, labels), run.seed, epoch)


def set_sampler(stage: Stage, pseudo: PseudoTable, images: LabeledImages, seed: int, epoch: int) -> None:
    """Give a stage the epoch's sampler of clusters, and a random batch size."""
    generator = np.random.default_rng((seed, epoch))
    table = stage.table.sampler
    assert table is not None
    if pseudo.batch_size is not None:
        low, high = pseudo.batch_size
        table = sized(table, int(generator.integers(low, high + 1)), stage.iterations)
    try:
        stage.sampler, _ = build_sampler(table, images, int(generator.integers(1 << 31)))
    except ConfigError as error:
        raise ConfigError(
            f"data.pseudo: before epoch {epoch} k-means found {len(np.unique(images.labels))} of "
            f"{pseudo.clusters} clusters ({error}). Lower clusters or the batch size; the network may have collapsed"
        ) from None
    stage.batch_size = table.batch_size
