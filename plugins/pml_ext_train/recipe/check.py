"""Checks of a recipe's names and settings before a run."""

from __future__ import annotations

import inspect

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
from .listed import check_listed, check_listed_loss
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

_SAMPLER_CONTEXT: BuildContext = {  # placeholders for the values that a run fills in
    "labels": sorted([*range(4096), *range(4096)]),
    "length_before_new_iter": 1 << 20,
    "batch_size": 2,
    "seed": 0,
}


def check_names(recipe: Recipe, build: bool = True) -> None:
    """Look up every name of a recipe and check every setting.

    ``build`` also builds losses and optimizers, whose constructors know the ranges of values.
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
    """Refuse several views of images that nothing changes."""
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

    accepted = inspect.signature(table.optimizer).parameters
    checked_settings(key, table.name, accepted, table.settings, ("params",))
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
    if table.miner is not None:
        checked_component(f"{key}.miner", "miner", table.miner, context)
    if table.regularizer is not None:
        checked_component(f"{key}.regularizer", "regularizer", table.regularizer, context)


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
    """Refuse a trunk that stays at random weights, unless the recipe asks for them.

    Trunks of plugins may have their own weights. Raises MissingExtraError if a package is missing.
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
    if table.lora is not None or frozen_patterns(table.freeze):
        return True
    freezes = [table.freeze]
    freezes += [stage.freeze for stage in recipe.stages]
    return any(cut_of(freeze) is not None for freeze in freezes)
