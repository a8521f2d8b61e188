"""Recipes of listed pairs and triplets: what works without labels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pml_ext import registry
from pml_ext.errors import ConfigError

from .schema import SHUFFLE, Recipe, SamplerTable, StageTable

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
    """Refuse settings that need labels."""
    data = recipe.data
    by_label = [
        ("data.labels", data.labels != "given", f"{data.labels} are labels"),
        ("data.views", data.views != 1, "views of an image are positives by its label"),
        ("data.relation", data.relation is not None, "a relation is between labels"),
    ]
    by_label += [
        (f"evaluation.{key}", True, "it is for images with labels") for key in recipe.evaluation.changed(_BY_CLASS)
    ]
    for prefix, stage in recipe.stages_by_prefix():
        by_label += _settings_by_label(prefix, stage, kind)
    for key, is_set, reason in by_label:
        if is_set:
            raise ConfigError(f"{reason}, but {data.name} lists {kind}; leave it out", key=key)
    for prefix, stage in recipe.stages_by_prefix():
        for name, parameter in registry.get(stage.loss.name, "loss").settings.items():
            if name in ("num_classes", "class_labels") and parameter.default is parameter.empty:
                raise _refused(prefix, stage.loss.name, data.name, kind, "it keeps values for each class")


def _settings_by_label(prefix: str, stage: StageTable, kind: Kind) -> Iterator[tuple[str, bool, str]]:
    """Yield a stage's keys that may need labels, whether they do, and why."""
    sampler = stage.sampler or SamplerTable()
    draws = f"{sampler.name} with its settings draws images by labels (batch_size alone is the number of {kind})"
    yield f"{prefix}sampler", bool(sampler.name != SHUFFLE or sampler.settings), draws
    loss = stage.loss
    if loss.miner is not None:
        yield f"{prefix}loss.miner", True, f"{loss.miner.name} chooses pairs by labels"
    yield f"{prefix}loss.memory", loss.memory is not None, "it pairs past images by labels"
    if loss.regularizer is not None:
        found = registry.get(loss.regularizer.name, "regularizer").cls
        needs = "labels" in getattr(found, "capabilities", ())
        yield f"{prefix}loss.regularizer", needs, f"{loss.regularizer.name} needs labels"


def check_listed_loss(key: str, loss_name: str, loss: torch.nn.Module, recipe: Recipe, kind: Kind) -> None:
    """Refuse a loss that cannot use listed pairs or triplets."""
    from pml_ext.losses import why_unusable

    reason = why_unusable(loss, kind, recipe.model.embedding_size)
    if reason:
        raise _refused(key.removesuffix("loss"), loss_name, recipe.data.name, kind, reason)


def check_conflicts(key: str, loss_name: str, loss: torch.nn.Module, recipe: Recipe, tuples: ListedTuples) -> None:
    """Refuse a loss that cannot use an item as both positive and negative of an anchor."""
    from pml_ext.losses import takes_conflicts

    if tuples.conflict() is None or takes_conflicts(loss, recipe.model.embedding_size):
        return
    raise ConfigError(
        f"{loss_name} cannot train on {recipe.data.name}: an image is the positive of an anchor in one "
        "training triplet, and its negative in another; use pml/triplet-margin, which compares whole "
        "triplets",
        key=f"{key}.name",
    )


def _refused(prefix: str, loss: str, name: str, kind: Kind, reason: str) -> ConfigError:
    from pml_ext.losses.listed import INSTEAD

    return ConfigError(
        f"{loss} cannot train on {name}, which lists {kind} without labels: {reason}; use {INSTEAD[kind]}, "
        "or another of docs/pairs.md",
        key=f"{prefix}loss.name",
    )
