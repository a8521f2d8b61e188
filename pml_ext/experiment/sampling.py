"""Samplers of a run, of labels that are given and of labels that change with every epoch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .. import registry
from ..data import LabeledImages
from ..errors import ConfigError, PmlExtError, shortened
from ..registry import BuildContext
from .recipe import SHUFFLE, PseudoTable, SamplerTable


def classes_of(images: LabeledImages) -> list[int]:
    """Return the labels that occur, in rising order."""
    return sorted({int(label) for label in images.labels})


def build_sampler(table: SamplerTable, images: LabeledImages, seed: int) -> tuple[Any, int]:
    """Return a sampler, and how many batches an epoch has.

    Raises:
        ConfigError: a sampler that cannot compose its batches from these images.
    """
    if table.name == SHUFFLE:
        iterations = table.iterations or len(images) // table.batch_size
        if iterations * table.batch_size > len(images) or iterations == 0:
            raise ConfigError(
                f"sampler: {max(iterations, 1)} batches of {table.batch_size} need more than the {len(images)} "
                "training images; make batch_size or iterations smaller"
            )
        return torch.utils.data.RandomSampler(range(len(images))), iterations
    iterations = table.iterations or max(1, len(images) // table.batch_size)
    context: BuildContext = {
        "labels": np.asarray(images.labels),
        "batch_size": table.batch_size,
        "length_before_new_iter": iterations * table.batch_size,
        "seed": seed,
    }
    try:
        sampler = registry.build(table.name, "sampler", context, **table.settings)
    except PmlExtError:
        raise
    except Exception as error:  # what constructors raise is not limited
        raise ConfigError(
            shortened(
                f"sampler: {table.name} refuses batches of {table.batch_size} from {len(images)} images of "
                f"{len(classes_of(images))} classes: {error}"
            )
        ) from None
    passes = len(sampler) // (1 if isinstance(sampler, torch.utils.data.BatchSampler) else table.batch_size)
    if passes == 0:
        raise ConfigError(
            f"sampler: one pass of {table.name} gives {len(sampler)} images, fewer than {table.batch_size}"
        )
    if table.iterations and passes < table.iterations:
        raise ConfigError(
            f"sampler: iterations = {table.iterations}, but a pass of {table.name} gives {passes} batches of "
            f"{table.batch_size}; make iterations smaller, or leave it out"
        )
    return sampler, table.iterations or passes


# Labels that change with every epoch


def sampler_before_clusters(
    table: SamplerTable, pseudo: PseudoTable, images: LabeledImages, seed: int
) -> tuple[Any, int]:
    """Return a sampler of clusters of one size, to check before training that batches can be composed at all.

    Arguments and results as of :func:`build_sampler`; labels of the images are not looked at.

    Raises:
        ConfigError: more clusters than images, or a sampler that cannot compose batches of a size that may be drawn.
    """
    if pseudo.clusters > len(images):
        raise ConfigError(f"data.pseudo.clusters: found {pseudo.clusters}, and there are {len(images)} training images")
    alike = images.replace(
        labels=np.arange(len(images)) % pseudo.clusters,
        class_names=[f"cluster {number}" for number in range(pseudo.clusters)],
    )
    if pseudo.batch_size is None:
        return build_sampler(table, alike, seed)
    low, high = pseudo.batch_size
    per_class = table.settings.get("m", 1)
    if isinstance(per_class, int) and low < 2 * per_class:
        raise ConfigError(
            f"data.pseudo.batch_size: found {pseudo.batch_size}, wanted at least {2 * per_class}, two "
            f"clusters of sampler.m = {per_class} images"
        )
    iterations = table.iterations or max(1, 2 * len(images) // (low + high))
    for size in (low, min(low + 1, high), high):
        sampler, _ = build_sampler(_sized(table, size, iterations), alike, seed)
    return sampler, iterations


def sampler_of_clusters(
    table: SamplerTable, pseudo: PseudoTable, images: LabeledImages, iterations: int, seed: int, epoch: int
) -> tuple[Any, int]:
    """Return the sampler of an epoch for images with clusters as labels, and its batch size, which is drawn too.

    Raises:
        ConfigError: a sampler that cannot compose its batches from these clusters.
    """
    generator = np.random.default_rng((seed, epoch))
    if pseudo.batch_size is not None:
        low, high = pseudo.batch_size
        table = _sized(table, int(generator.integers(low, high + 1)), iterations)
    try:
        sampler, _ = build_sampler(table, images, int(generator.integers(1 << 31)))
    except ConfigError as error:
        there = len(np.unique(images.labels))
        raise ConfigError(
            f"data.pseudo: before epoch {epoch} k-means found {there} of {pseudo.clusters} clusters; take fewer, or "
            f"smaller batches, unless the network has collapsed ({error})"
        ) from None
    return sampler, table.batch_size


def _sized(table: SamplerTable, size: int, iterations: int) -> SamplerTable:
    """Return ``[sampler]`` with another batch size, a multiple of the images per class where that is a setting."""
    per_class = table.settings.get("m", 1)
    whole = max(1, size // per_class) * per_class if isinstance(per_class, int) and per_class > 0 else size
    return table.model_copy(update={"batch_size": whole, "iterations": iterations})
