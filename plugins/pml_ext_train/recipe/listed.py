"""Recipes of listed pairs and triplets: the settings, losses and metrics that go without labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pml_ext import registry
from pml_ext.errors import ConfigError

from .schema import SHUFFLE, Recipe, StageTable

if TYPE_CHECKING:
    import torch

    from pml_ext.pairwise import Kind, ListedTuples

_BY_CLASS = (  # settings of [evaluation] for searches, classes and clusters
    "recall_at",
    "precision_at",
    "ndcg_at",
    "clusters_per_class",
    "verification",
    "lone_queries",
    "protocols",
    "shortlist",
    "validation",
    "fold",
    "held_out",
    "validation_trains",
)


def check_listed(recipe: Recipe, kind: Kind) -> None:
    """Refuse settings of a recipe that need labels, where the data are listed pairs or triplets."""
    name = recipe.data.name
    if recipe.data.labels != "given":
        raise ConfigError(f"{recipe.data.labels} are labels, and {name} lists {kind}; leave it out", key="data.labels")
    if recipe.data.views != 1:
        raise ConfigError(
            f"views of an image are positives by its label, and {name} lists {kind}; leave it out", key="data.views"
        )
    if recipe.data.relation is not None:
        raise ConfigError(f"it is one of labels, and {name} lists {kind}; leave it out", key="data.relation")
    for key in _BY_CLASS:
        if getattr(recipe.evaluation, key) != type(recipe.evaluation).model_fields[key].default:
            raise ConfigError(
                f"it is for images with labels, and {name} lists {kind}; leave it out", key=f"evaluation.{key}"
            )
    for prefix, stage in recipe.stages_by_prefix():
        _check_stage(prefix, stage, name, kind)


def _check_stage(prefix: str, stage: StageTable, name: str, kind: Kind) -> None:
    """Refuse a sampler, miner, memory or regularizer that needs labels, and a loss with something for each class."""
    sampler = stage.sampler
    if sampler is not None and (sampler.name != SHUFFLE or sampler.settings):
        raise ConfigError(
            f"{sampler.name} draws images by labels, and {name} lists {kind}; leave out name and its "
            f"settings: batch_size is the number of {kind} in a batch",
            key=f"{prefix}sampler",
        )
    loss = stage.loss
    if loss.miner is not None:
        raise ConfigError(
            f"{loss.miner.name} chooses pairs by labels, and {name} lists {kind}; leave it out",
            key=f"{prefix}loss.miner",
        )
    if loss.memory is not None:
        raise ConfigError(
            f"it pairs past images by labels, and {name} lists {kind}; leave it out", key=f"{prefix}loss.memory"
        )
    regularizer = loss.regularizer
    if regularizer is not None:
        found = registry.get(regularizer.name, "regularizer").cls
        if "labels" in getattr(found, "capabilities", ()):
            raise ConfigError(
                f"{regularizer.name} needs labels, and {name} lists {kind}; leave it out",
                key=f"{prefix}loss.regularizer",
            )
    settings = registry.get(loss.name, "loss").settings
    for setting in ("num_classes", "class_labels"):
        parameter = settings.get(setting)
        if parameter is not None and parameter.default is parameter.empty:
            raise _refused(prefix, loss.name, name, kind, "it keeps something for each class")


def check_listed_loss(key: str, loss_name: str, loss: torch.nn.Module, recipe: Recipe, kind: Kind) -> None:
    """Refuse a loss that cannot use listed pairs or triplets."""
    from pml_ext.losses import why_unusable

    reason = why_unusable(loss, kind, recipe.model.embedding_size)
    if reason:
        raise _refused(key.removesuffix("loss"), loss_name, recipe.data.name, kind, reason)


def check_conflicts(key: str, loss_name: str, loss: torch.nn.Module, recipe: Recipe, tuples: ListedTuples) -> None:
    """Refuse a loss that cannot use triplets in which an item is both positive and negative of an anchor."""
    from pml_ext.losses import takes_conflicts

    if tuples.conflict() is None or takes_conflicts(loss, recipe.model.embedding_size):
        return
    raise ConfigError(
        f"{loss_name} cannot train on {recipe.data.name}: an image is the positive of an anchor in one training "
        "triplet, and its negative in another; take pml/triplet-margin, which looks at whole triplets",
        key=f"{key}.name",
    )


def _refused(prefix: str, loss: str, name: str, kind: Kind, reason: str) -> ConfigError:
    from pml_ext.losses.listed import INSTEAD

    return ConfigError(
        f"{loss} cannot train on {name}, which lists {kind} without labels: {reason}; take "
        f"{INSTEAD[kind]}, or another of docs/pairs.md",
        key=f"{prefix}loss.name",
    )
