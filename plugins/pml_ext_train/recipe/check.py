"""Checks of a recipe's names and settings before a run."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pml_ext import registry
from pml_ext.errors import ConfigError, unknown
from pml_ext.registry import BuildContext

from .. import networks
from .build import VECTORS, check_vectors, dataset_factory, image_transforms, trunk_factory, trunk_settings
from .conversion import (
    FILLED_FOR_DATA,
    FILLED_FOR_TRACKER,
    FILLED_FOR_TRANSFORMS,
    FILLED_FOR_TRUNK,
    checked_settings,
    located,
    options_of,
)
from .losses import (
    build_loss,
    build_optimizer,
    build_relation,
    checked_component,
    loss_context,
    own_optimizer,
    placeholder_classes,
)
from .schema import (
    SHUFFLE,
    DataTable,
    LossTable,
    OptimizerTable,
    Recipe,
    SamplerTable,
    cut_of,
    frozen_patterns,
)

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
_SAMPLER_CONTEXT: BuildContext = {  # placeholders for the values that a run fills in
    "labels": sorted([*range(4096), *range(4096)]),
    "length_before_new_iter": 1 << 20,
    "batch_size": 2,
    "seed": 0,
}


def check_names(recipe: Recipe, build: bool = True) -> None:
    """Check every name and setting of a recipe.

    ``build`` also builds losses and optimizers, which check ranges of values.
    """
    _check_data(recipe.data)
    with located("model.trunk.name"):
        factory = trunk_factory(recipe.model.trunk.name)
    options_of("model.trunk", recipe.model.trunk.name, factory, FILLED_FOR_TRUNK, trunk_settings(recipe.model.trunk))
    listed = recipe.data.listed
    if recipe.data.name.startswith(VECTORS) or (listed and "vectors" in recipe.data.settings):
        check_vectors(recipe)
    if listed is not None:
        check_listed(recipe, listed)
    _check_views(recipe.data)
    for tracker in recipe.track:
        with located("track.name"):
            factory = registry.factory("tracker", tracker.name)
        options_of("track", tracker.name, factory, FILLED_FOR_TRACKER, tracker.settings)
    _check_optimizer("optimizer", recipe.optimizer, build)
    # Without this setting, no loss of the recipe needs to be known.
    build_losses = build or recipe.evaluation.shortlist is not None
    has_learned_metric = False
    for prefix, stage in recipe.stages_by_prefix():
        _check_sampler(f"{prefix}sampler", stage.sampler, recipe)
        optimizer = own_optimizer(recipe.optimizer, stage.loss)
        _check_optimizer(f"{prefix}loss.optimizer", optimizer, build or bool(stage.loss.optimizer))
        if build_losses:
            has_learned_metric |= _check_loss(f"{prefix}loss", stage.loss, recipe)
        else:
            _check_loss_settings(f"{prefix}loss", stage.loss, recipe)
    _check_evaluation(recipe, has_learned_metric)


def _check_data(data: DataTable) -> None:
    from ..data import build_transforms

    with located("data.name"):
        factory = dataset_factory(data.name)
    options_of("data", data.name, factory, FILLED_FOR_DATA, data.settings)
    settings = dict(data.augment)
    transforms = settings.pop("transforms", [])
    options_of("data.augment", "augment", build_transforms, FILLED_FOR_TRANSFORMS, settings)
    if transforms:
        image_transforms("data.augment.transforms", transforms)


def _check_views(data: DataTable) -> None:
    images = data.images
    random_settings = [images.random_crop, images.random_crop_scale, images.flip, *data.augment.values()]
    if data.views > 1 and not any(random_settings):
        raise ConfigError(
            f"found {data.views}, but views are equal without augmentation; add [data.augment], such as "
            "--set data.augment.random_crop=true",
            key="data.views",
        )


def _check_optimizer(key: str, table: OptimizerTable, build: bool) -> None:
    import torch

    checked_settings(key, table.name, inspect.signature(table.optimizer).parameters, table.settings, ("params",))
    if build:
        build_optimizer(table, [torch.nn.Parameter(torch.zeros(1))], key=key)


def _check_sampler(key: str, table: SamplerTable | None, recipe: Recipe) -> None:
    if table is None:
        return
    if table.name == SHUFFLE:
        checked_settings(key, SHUFFLE, {}, table.settings)
        return
    per_class = table.settings.get("m")
    if isinstance(per_class, int) and per_class < 1:
        raise ConfigError(f"{key}.m: found {per_class}; wanted 1 image of a class or more")
    context = dict(_SAMPLER_CONTEXT)
    relation = build_relation(recipe.data, placeholder_classes(recipe.data))
    if relation is not None:
        context["relation"] = relation
    checked_component(key, "sampler", table, context)  # building it needs the labels of the data


def _check_loss(key: str, table: LossTable, recipe: Recipe) -> bool:
    """Build a loss without data; return whether it has a learned metric."""
    from pml_ext.evaluation import learned_metric

    context = loss_context(recipe, [0, 1], placeholder_classes(recipe.data))
    loss, _ = build_loss(table, context, key)
    if recipe.data.listed is not None:
        check_listed_loss(key, table.name, loss, recipe, recipe.data.listed)
    return learned_metric(loss.modules()) is not None


def _check_loss_settings(key: str, table: LossTable, recipe: Recipe) -> None:
    """Check a loss, its miner and regularizer without building them."""
    context = loss_context(recipe, [0, 1], placeholder_classes(recipe.data))
    checked_component(key, "loss", table, context)
    for kind, part in (("miner", table.miner), ("regularizer", table.regularizer)):
        if part is not None:
            checked_component(f"{key}.{kind}", kind, part, context)


def _check_evaluation(recipe: Recipe, has_learned_metric: bool) -> None:
    from pml_ext.evaluation.metrics import SMALLER_IS_BETTER

    shortlist = recipe.evaluation.shortlist
    if shortlist is not None and not has_learned_metric:
        raise ConfigError(
            f"found {shortlist}, but no loss has a learned metric to re-rank by", key="evaluation.shortlist"
        )
    select = recipe.evaluation.select
    known = [name for name in recipe.metric_names() if name not in SMALLER_IS_BETTER]
    if select is not None and select not in known:
        raise ConfigError(unknown("metric", select, known), key="evaluation.select")


def check_weights(recipe: Recipe) -> None:
    """Raise ConfigError for a frozen trunk with random weights that the recipe does not ask for.

    Trunks of plugins may bring their own weights. MissingExtraError for a missing package.
    """
    table = recipe.model
    name = table.trunk.name
    networks.trunks.check_packages(name, table.trunk.settings.get("weights"))
    if table.init is not None or table.trunk.settings.get("weights") is not None or table.takes_vectors:
        return
    is_of_plugin = (
        not name.startswith((networks.trunks.TIMM, networks.HF)) and networks.trunks.builtin_trunk(name) is None
    )
    if is_of_plugin or not _keeps_trunk_weights(recipe):
        return
    wanted = [*networks.weights_to_choose(name), "a file", f"{networks.RANDOM!r} if that is meant"]
    raise ConfigError(
        f"{name} is frozen and has no weights, so its features would be random; wanted weights = "
        f"{' or '.join(wanted)}: --set model.trunk.weights=WEIGHTS, in probe {name}=WEIGHTS",
        key="model.trunk",
    )


def _keeps_trunk_weights(recipe: Recipe) -> bool:
    table = recipe.model
    has_cut = any(map(cut_of, (table.freeze, *(stage.freeze for stage in recipe.stages))))
    return has_cut or table.lora is not None or bool(frozen_patterns(table.freeze))


def check_listed(recipe: Recipe, kind: Kind) -> None:
    """Raise ConfigError for settings that need labels."""
    name = recipe.data.name
    for key, is_set, reason in _settings_by_label(recipe, kind):
        if is_set:
            raise ConfigError(f"{reason}, but {name} lists {kind}; leave it out", key=key)
    for prefix, stage in recipe.stages_by_prefix():
        for setting, parameter in registry.get(stage.loss.name, "loss").settings.items():
            if setting in ("num_classes", "class_labels") and parameter.default is parameter.empty:
                raise _refused(prefix, stage.loss.name, name, kind, "it keeps values for each class")


def _settings_by_label(recipe: Recipe, kind: Kind) -> Iterator[tuple[str, bool, str]]:
    """Yield keys that may need labels, whether they do, and why."""
    data = recipe.data
    yield "data.labels", data.labels != "given", f"{data.labels} are labels"
    yield "data.views", data.views != 1, "views of an image are positives by its label"
    yield "data.relation", data.relation is not None, "a relation is between labels"
    for key in recipe.evaluation.changed(_BY_CLASS):
        yield f"evaluation.{key}", True, "it is for images with labels"
    for prefix, stage in recipe.stages_by_prefix():
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
    """Raise ConfigError for a loss that cannot use listed pairs or triplets."""
    from pml_ext.losses import why_unusable

    reason = why_unusable(loss, kind, recipe.model.embedding_size)
    if reason:
        raise _refused(key.removesuffix("loss"), loss_name, recipe.data.name, kind, reason)


def check_conflicts(key: str, loss_name: str, loss: torch.nn.Module, recipe: Recipe, tuples: ListedTuples) -> None:
    """Raise ConfigError if a loss cannot use an item as both positive and negative."""
    from pml_ext.losses import takes_conflicts

    if tuples.conflict() is None or takes_conflicts(loss, recipe.model.embedding_size):
        return
    raise ConfigError(
        f"{loss_name} cannot train on {recipe.data.name}: an image is the positive of an anchor in one training "
        "triplet, and its negative in another; use pml/triplet-margin",
        key=f"{key}.name",
    )


def _refused(prefix: str, loss: str, name: str, kind: Kind, reason: str) -> ConfigError:
    from pml_ext.losses.listed import INSTEAD

    return ConfigError(
        f"{loss} cannot train on {name}, which lists {kind} without labels: {reason}; use {INSTEAD[kind]}, "
        "or another of docs/pairs.md",
        key=f"{prefix}loss.name",
    )
