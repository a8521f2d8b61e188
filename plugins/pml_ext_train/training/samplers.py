"""Samplers of stages: of images, listed tuples, or clusters that are not yet known."""

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pml_ext import pml, registry
from pml_ext.errors import ConfigError, PmlExtError, RecipeWarning, shortened
from pml_ext.registry import BuildContext
from pml_ext.samplers import TupleSampler

from ..data import LabeledImages
from ..recipe.schema import SHUFFLE, PseudoTable, SamplerTable

Labels = NDArray[np.int64]


def build_sampler(table: SamplerTable, images: LabeledImages, seed: int, relation: Any = None) -> tuple[Any, int]:
    """Return a sampler and its number of batches per epoch; ConfigError for too few images.

    For listed pairs or triplets, ``batch_size`` counts tuples.
    """
    items = images if images.tuples is None else images.tuples
    iterations = table.iterations or max(1, len(items) // table.batch_size)
    if images.tuples is not None or table.name == SHUFFLE:
        if iterations * table.batch_size > len(items):
            noun = "images" if images.tuples is None else images.tuples.kind
            raise ConfigError(
                f"sampler: {iterations} batches of {table.batch_size} need more than the {len(items)} training {noun}; "
                "make batch_size or iterations smaller"
            )
        if images.tuples is not None:
            return TupleSampler(images.tuples, table.batch_size, seed), iterations
        return torch.utils.data.RandomSampler(range(len(images))), iterations
    classes = len(np.unique(images.labels))
    try:
        pml.check_sampler(registry.get(table.name, "sampler").cls, table.settings, table.batch_size, classes)
    except ValueError as error:
        raise ConfigError(f"sampler: {error}") from None
    context: BuildContext = {
        "labels": np.asarray(images.labels),
        "batch_size": table.batch_size,
        "length_before_new_iter": iterations * table.batch_size,
        "seed": seed,
    }
    if relation is not None:
        context["relation"] = relation
    try:
        sampler = registry.build(table.name, "sampler", context, **table.settings)
    except PmlExtError:
        raise
    except Exception as error:  # constructors may raise anything
        refused = f"{table.name} refuses batches of {table.batch_size} from {len(images)} images of {classes} classes"
        raise ConfigError(shortened(f"sampler: {refused}: {error}")) from None

    batches = len(sampler)
    if not isinstance(sampler, torch.utils.data.BatchSampler):
        batches //= table.batch_size
    if batches < (table.iterations or 1):
        raise ConfigError(
            f"sampler: iterations = {table.iterations or 1}, but a pass of {table.name} gives {batches} batches of "
            f"{table.batch_size}; make iterations smaller, or batch_size"
        )
    return sampler, table.iterations or batches


def fitting(table: SamplerTable, images: LabeledImages) -> SamplerTable:
    """Warn and use a smaller batch if there are too few classes."""
    if images.tuples is not None or table.name == SHUFFLE:
        return table
    classes = len(np.unique(images.labels))
    most = pml.most_of_batch(registry.get(table.name, "sampler").cls, table.settings, classes)
    if most is None or table.batch_size <= most:
        return table
    warnings.warn(
        f"sampler.batch_size: {classes} classes x m = {table.settings['m']} make batches of {most} instead "
        f"of {table.batch_size}",
        RecipeWarning,
        stacklevel=2,
    )
    return table.model_copy(update={"batch_size": most})


def with_clusters(images: LabeledImages, table: PseudoTable, labels: Labels) -> LabeledImages:
    """Return images labeled by clusters."""
    return images.replace(labels=labels, class_names=[f"cluster {number}" for number in range(table.clusters)])


def with_instances(images: LabeledImages) -> LabeledImages:
    """Return images with a class for each image."""
    names = [f"image {number}" for number in range(len(images))]
    return images.replace(labels=np.arange(len(images)), class_names=names)


def sampler_before_clusters(
    table: SamplerTable, pseudo: PseudoTable, images: LabeledImages, seed: int
) -> tuple[Any, int]:
    """Return :func:`build_sampler` for clusters of equal size, before any are known.

    Both batch sizes are tried, so that a misfit is an error at once.
    """
    if pseudo.clusters > len(images):
        raise ConfigError(
            f"data.pseudo.clusters: found {pseudo.clusters}, but there are only {len(images)} training images"
        )
    equal_clusters = with_clusters(images, pseudo, np.arange(len(images)) % pseudo.clusters)
    if pseudo.batch_size is None:
        return build_sampler(table, equal_clusters, seed)
    iterations = table.iterations or max(1, 2 * len(images) // sum(pseudo.batch_size))
    samplers = [build_sampler(sized(table, size, iterations), equal_clusters, seed) for size in pseudo.batch_size]
    return samplers[-1]


def sized(table: SamplerTable, size: int, iterations: int) -> SamplerTable:
    """``[sampler]`` with another batch size, rounded to a multiple of ``m``."""
    per_class = table.settings.get("m", 1)
    if isinstance(per_class, int) and per_class > 0:
        classes = max(1, size // per_class)
        size = classes * per_class
    return table.model_copy(update={"batch_size": size, "iterations": iterations})
