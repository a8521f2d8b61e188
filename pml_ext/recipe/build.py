"""Builders of data sets, networks, losses and optimizers from a recipe's tables, and the checks before a run."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import registry
from ..errors import ConfigError, DataError, PmlExtError, needs_extra, shortened, unknown
from ..registry import BuildContext
from ..registry.components import KINDS, Component
from .listed import check_listed, check_listed_loss
from .schema import (
    IDENTITY,
    SHUFFLE,
    DataTable,
    ImagesTable,
    LossTable,
    ModelTable,
    NamedTable,
    OptimizerTable,
    Recipe,
    SamplerTable,
    cut_of,
    frozen_patterns,
    problem_of,
    transform_tables,
    unknown_key,
)
from .tables import merged

with needs_extra("train", "a recipe"):
    from pydantic import ConfigDict, TypeAdapter, ValidationError

if TYPE_CHECKING:  # imported inside the builders, so that reading a recipe does not import torch
    import torch

    from ..data import DataSplits, ImageTransforms, Pipeline
    from ..losses.relations import Relation
    from ..networks.network import Network, Normalization, Preprocessing, VectorInput
    from ..networks.pretrained import PretrainedImages

VECTORS = "vectors:"  # begins the name of a data set of vectors
# Settings that a run fills in; they are not options of a recipe.
_FILLED_FOR_DATA = ("root", "label_sets")
_FILLED_FOR_TRUNK = ("in_channels", "image_size")
FILLED_FOR_TRACKER = ("folder", "recipe", "iteration", "epoch")
_FILLED_FOR_TRANSFORMS = ("image_size", "channels", "crop", "normalize", "pipeline")
_SAMPLER_CONTEXT: BuildContext = {  # placeholders for the values that a run fills in
    "labels": sorted([*range(4096), *range(4096)]),
    "length_before_new_iter": 1 << 20,
    "batch_size": 2,
    "seed": 0,
}


def build_dataset(table: DataTable, root: Path | None) -> DataSplits:
    """Build a data set from ``[data]`` and the data folder, if it needs one."""
    from ..data import DataSplits

    factory = _dataset_factory(table.name)
    options = options_of("data", table.name, factory, _FILLED_FOR_DATA, table.settings)
    if table.relation is not None and "label_sets" in registry.settings_of(factory):
        options["label_sets"] = table.relation.name == "shared-label"
    with located("data", table):
        splits = factory(root, **options)
    if not isinstance(splits, DataSplits):
        plugin, _ = registry.find("data set", table.name)
        found = f"{table.name} of the plugin {plugin!r} gives {type(splits).__name__}"
        raise ConfigError(f"data: {found}; wanted pml_ext.plugin.DataSplits, with train and test")
    return splits


def build_relation(table: DataTable, class_names: Sequence[str]) -> Relation | None:
    """Build the relation of ``[data] relation`` between the named classes; return None if the recipe sets none."""
    if table.relation is None:
        return None
    from ..losses.relations import RELATIONS

    factory = RELATIONS[table.relation.name]
    options = options_of("data.relation", table.relation.name, factory, ("names", "paths"), table.relation.settings)
    with located("data.relation", table.relation):
        return factory(class_names, **options)


def build_trunk(table: NamedTable, channels: int, image_size: int, trained: bool = False) -> torch.nn.Module:
    """Build a trunk from ``[model] trunk``.

    ``trained`` leaves out pretrained weights, for a network that gets the weights of a run.
    """
    import torch

    from ..networks.pretrained import is_file, load_weights

    factory = _trunk_factory(table.name)
    settings = _trunk_settings(table, trained)
    options = options_of("model.trunk", table.name, factory, _FILLED_FOR_TRUNK, settings)
    with located("model.trunk", table):
        trunk: torch.nn.Module = factory(channels, image_size, **options)
    if not isinstance(trunk, torch.nn.Module):
        plugin, _ = registry.find("trunk", table.name)
        found = f"{table.name} of the plugin {plugin!r} gives {type(trunk).__name__}"
        raise ConfigError(f"model.trunk: {found}; wanted a torch.nn.Module")
    weights = table.settings.get("weights")
    if is_file(weights) and not trained:
        load_weights(trunk, str(weights))
    return trunk


def build_network(
    table: ModelTable, preprocessing: Preprocessing | VectorInput, features: int | None = None, trained: bool = False
) -> Network:
    """Build a network from ``[model]``; see :func:`build_trunk` and :class:`pml_ext.networks.network.Network`."""
    import torch

    from ..networks.cut import frozen_stem
    from ..networks.network import Network, VectorInput
    from ..networks.pretrained import add_lora
    from ..networks.trunks import freeze

    if isinstance(preprocessing, VectorInput):
        trunk: torch.nn.Module = torch.nn.Identity()
    else:
        trunk = build_trunk(table.trunk, preprocessing.channels, preprocessing.image_size, trained)
    if table.embedder == "none":
        hidden_sizes = None
    else:
        hidden_sizes = table.hidden_sizes
    network = Network(preprocessing, trunk, table.embedding_size, hidden_sizes, features, table.norm, table.dropout)
    network.embedder.requires_grad_(table.embedder != "pca")
    cut = cut_of(table.freeze)
    if table.lora is not None:
        add_lora(network.trunk, table.lora.rank, table.lora.targets)
    elif cut is None:
        freeze(network.trunk, frozen_patterns(table.freeze))
    elif not trained:
        frozen_stem(network.trunk, cut.until)
    return network


def vector_input_of(recipe: Recipe, splits: DataSplits) -> VectorInput:
    """Return the input of a head on vectors; ConfigError for a recipe or a data set of images."""
    from ..networks.network import VectorInput

    if splits.vector_size is None:
        raise ConfigError(
            f"model.trunk: {IDENTITY} is for vectors, and {recipe.data.name} has images; "
            "wanted data.name = 'vectors:FILE' (or data.vectors of pairs and triplets), or a trunk such as convnet"
        )
    _check_vectors(recipe)
    return VectorInput(vector_size=splits.vector_size)


def _check_vectors(recipe: Recipe) -> None:
    """Refuse settings of images in a recipe whose data set has vectors."""
    model = recipe.model
    data = recipe.data
    if not model.takes_vectors:
        raise ConfigError(
            f"model.trunk: {model.trunk.name} is for images, and {data.name} has vectors; "
            f"--set model.trunk={IDENTITY} trains a head on them"
        )
    if model.trunk.settings:
        raise ConfigError(f"model.trunk.{next(iter(model.trunk.settings))}: {IDENTITY} has no settings; leave it out")
    unused = []
    for key, field in type(data.images).model_fields.items():
        if getattr(data.images, key) != field.default:
            unused.append(f"data.images.{key}")
    unused += [f"data.augment.{key}" for key in data.augment]
    for key in ("workers", "cache", "unreadable", "views"):
        if getattr(data, key) != type(data).model_fields[key].default:
            unused.append(f"data.{key}")
    if recipe.engine.channels_last:
        unused.append("engine.channels_last")
    if unused:
        raise ConfigError(f"{unused[0]}: it is for images, and {data.name} has vectors; leave it out")


def preprocessing_of(recipe: Recipe, splits: DataSplits) -> tuple[Preprocessing, Pipeline]:
    """Return the preprocessing of all images, and the random crops and flips of training images."""
    from ..data import Pipeline
    from ..networks.network import Preprocessing
    from ..networks.pretrained import pretrained_images

    if splits.vector_size is not None:
        _check_vectors(recipe)
        raise ConfigError(f"{recipe.data.name} has vectors, without pixels; wanted images")
    images = recipe.data.images
    trunk = recipe.model.trunk
    pretrained = pretrained_images(trunk.name, trunk.settings)
    if images.crop is not None:
        size = images.crop
    elif pretrained is not None and pretrained.image_size and "image_size" not in recipe.data.settings:
        size = pretrained.image_size
    else:
        size = int(splits.image_size)
    _check_images(recipe, splits.channels, size)

    bgr = images.bgr
    interpolation = images.interpolation
    if pretrained is not None:
        if pretrained.bgr and images.mean is None and splits.channels == 3:
            bgr = True
        interpolation = interpolation or pretrained.interpolation
    preprocessing = Preprocessing(
        image_size=size,
        channels=splits.channels,  # type: ignore[arg-type]
        crop=splits.crop,
        normalize=_normalization(images, pretrained, splits.channels, bgr),
        resize=images.resize,
        squash=images.squash,
        interpolation=interpolation or "bilinear",
        bgr=bgr,
        value_range=images.value_range,
    )
    scale = None
    if images.random_crop_scale:
        smallest, largest = images.random_crop_scale
        scale = (smallest, largest)
    return preprocessing, Pipeline(random_crop=images.random_crop, random_crop_scale=scale, flip=images.flip)


def _normalization(
    images: ImagesTable, pretrained: PretrainedImages | None, channels: int, bgr: bool
) -> Normalization | None:
    """Return mean and standard deviation: the recipe's, else those of pretrained weights, else None."""
    from ..networks.network import Normalization

    if images.mean is not None and images.std is not None:
        times = channels // len(images.mean)  # a single number stands for all channels
        return Normalization(mean=images.mean * times, std=images.std * times)
    if pretrained is None:
        return None
    mean = list(pretrained.mean)
    std = list(pretrained.std)
    if bgr:
        mean.reverse()
        std.reverse()
    return Normalization(mean=mean, std=std)


def augmentation_of(table: DataTable, preprocessing: Preprocessing) -> dict[str, Any]:
    """Return the settings of ``build_transforms`` in ``[data.augment]``, with its transforms built.

    ConfigError for a transform that does not fit the images.
    """
    settings = dict(table.augment)
    tables = settings.pop("transforms", [])
    if tables:
        transforms = _image_transforms("data.augment.transforms", tables)
        transforms.try_on(preprocessing.channels, preprocessing.image_size)
        settings["transforms"] = [transforms]
    return settings


def _image_transforms(key: str, tables: Any) -> ImageTransforms:
    """Build transforms of images from a list of tables; ``key`` is the list's."""
    from ..data import ImageTransforms, NamedTransform

    built = []
    try:
        named = transform_tables(tables)
    except ValueError as error:
        raise ConfigError(f"{key}.{error}") from None
    for number, table in enumerate(named):
        place = f"{key}.{number}"
        text = json.dumps(table.model_dump())
        built.append(NamedTransform(place, table.name, text, _build_transform(place, table)))
    return ImageTransforms(built)


def _build_transform(key: str, table: NamedTable) -> Callable[[Any], Any]:
    """Build a transform of images, with those in its own ``transforms``, as of ``RandomApply``."""
    with located(f"{key}.name"):
        factory = registry.factory("transform", table.name)
    settings = table.settings
    inner: dict[str, Any] = {}
    if "transforms" in settings and "transforms" in registry.settings_of(factory):
        transforms = _image_transforms(f"{key}.transforms", settings.pop("transforms"))
        inner["transforms"] = [transform.function for transform in transforms.transforms]
    options = options_of(key, table.name, factory, inner, settings)
    with located(key, table):
        return factory(**inner, **options)  # type: ignore[no-any-return]


def _check_images(recipe: Recipe, channels: int, size: int) -> None:
    """Refuse settings of ``[data.images]`` that do not fit the data set's channels or the size of the crop."""
    images = recipe.data.images
    has_color_means = images.mean is not None and len(images.mean) != 1
    if channels == 1 and (images.bgr or has_color_means):
        raise ConfigError(f"data.images: bgr, and means of three channels, are for color; {recipe.data.name} is gray")
    if images.resize is not None and images.resize < size:
        raise ConfigError(f"data.images.resize: found {images.resize}; wanted at least the {size} of data.images.crop")


def _dataset_factory(name: str) -> Callable[..., Any]:
    """Return the factory of a data set; fill in the path of ``folder:PATH`` and others with a path."""
    from ..data import PATH_FACTORIES, is_vector_file

    prefix, _, path = name.partition(":")
    if prefix not in PATH_FACTORIES:
        if os.path.exists(name) and name not in registry.factories("data set"):
            kind = "table"
            if os.path.isdir(name):
                kind = "folder"
            elif is_vector_file(name):
                kind = "vectors"
            raise ConfigError(f"no data set {name!r}; for your own data type --set data.name={kind}:{name}")
        return registry.factory("data set", name)
    factory, wanted = PATH_FACTORIES[prefix]
    if not path:
        raise ConfigError(f"found {name!r}, wanted {wanted}")
    return functools.partial(factory, path=path)


def _trunk_factory(name: str) -> Callable[..., Any]:
    """Return the factory of a trunk; ``timm/NAME`` needs timm."""
    from ..networks import trunks
    from ..networks.pretrained import HF, hf_trunk

    if name.startswith(trunks.TIMM):
        short = name.removeprefix(trunks.TIMM)
        trunks.timm_library(short)  # MissingExtraError if timm is not installed
        return functools.partial(trunks.timm_trunk, name=short)
    if name.startswith(HF):
        return functools.partial(hf_trunk, name=name.removeprefix(HF))
    return trunks.builtin_trunk(name) or registry.factory("trunk", name)


def _trunk_settings(table: NamedTable, trained: bool = False) -> dict[str, Any]:
    """Return the settings for a trunk's factory, without ``weights`` unless it loads them from its library."""
    from ..networks.pretrained import is_file, is_pretrained

    settings = dict(table.settings)
    if trained or is_file(settings.get("weights")) or not is_pretrained(settings):
        settings.pop("weights", None)
    return settings


def options_of(
    key: str, name: str, factory: Callable[..., Any], filled: Iterable[str], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options of a table, converted by the factory's annotations: for example text to a path."""
    taken = set(filled)
    if isinstance(factory, functools.partial):
        taken.update(factory.keywords)
    accepted = dict(registry.settings_of(factory))
    for taken_name in taken:
        accepted.pop(taken_name, None)
    return _checked_settings(key, name, accepted, given)


def loss_context(recipe: Recipe, labels: list[int], class_names: Sequence[str] = ()) -> BuildContext:
    """Return the loss settings that a run fills in; without number and labels of classes if labels are clusters."""
    context: BuildContext = {"embedding_size": recipe.model.embedding_size, "collect_stats": True}
    relation = build_relation(recipe.data, class_names)
    if relation is not None:
        context["relation"] = relation
    if recipe.data.labels == "clusters":
        return context
    return context | {"num_classes": len(labels), "class_labels": labels}


def build_loss(
    table: LossTable, context: Mapping[str, Any], key: str = "loss"
) -> tuple[torch.nn.Module, torch.nn.Module | None]:
    """Build a loss with its regularizer and memory, and its miner (None if the memory holds the miner)."""
    from ..losses import CrossBatchMemory, RegularizedLoss

    if table.relation == "none":
        context = dict(context)
        context.pop("relation", None)
    loss = _component(key, "loss", table, context)
    miner = None
    if table.miner is not None:
        miner = _build_miner(f"{key}.miner", table.name, table.miner, context)
    loss = _related(key, loss, context)
    if table.regularizer is not None:
        regularizer = _component(f"{key}.regularizer", "regularizer", table.regularizer, context)
        with located(f"{key}.regularizer"):
            loss = RegularizedLoss(loss, regularizer, table.regularizer.weight)
    if table.memory is None:
        return loss, miner
    with located(f"{key}.memory"):
        memory = CrossBatchMemory(
            loss,
            embedding_size=context["embedding_size"],
            memory_size=table.memory.size,
            miner=miner,
            first_epoch=table.memory.start_epoch,
            collect_stats=True,
        )
    return memory, None


def _build_miner(key: str, loss: str, table: NamedTable, context: Mapping[str, Any]) -> torch.nn.Module:
    """Build the miner of a loss; ConfigError if the loss takes none, or if nothing would train the miner."""
    miner = _related(key, _component(key, "miner", table, context), context)
    if "indices_tuple" not in registry.capabilities(registry.get(loss, "loss").cls):
        raise ConfigError(f"{key}: {loss} takes no miner's indices_tuple")
    if next(miner.parameters(), None) is not None:
        text = f"{table.name} has parameters here (a learned distance), which nothing would train"
        raise ConfigError(f"{key}: {text}; take a loss that has them and mines by them itself")
    return miner


def _related(key: str, module: torch.nn.Module, context: Mapping[str, Any]) -> torch.nn.Module:
    """Return a loss or miner that uses the context's relation, if any; wrap one that does not support relations."""
    from ..losses import WithRelation, relation_of

    relation = context.get("relation")
    if relation is None or relation_of(module) is not None:
        return module
    with located(key):
        return WithRelation(module, relation)


def trains_pretrained_trunk(recipe: Recipe) -> bool:
    """Return whether a run trains a pretrained trunk and an embedder, so that it tests the features between them."""
    from ..networks.pretrained import is_pretrained

    model = recipe.model
    trains = model.freeze != "trunk" and model.embedder != "none"
    return trains and is_pretrained(model.trunk.settings)


def stage_before_whole(recipe: Recipe) -> tuple[str, int] | None:
    """Return the phase and the last epoch of the stages after which the whole trunk trains; None without such stages.

    The phase is ``"head"`` where the trunk is frozen until then, or ``"blocks"`` where its last blocks are trained.
    """
    from ..networks.cut import HEAD

    if not trains_pretrained_trunk(recipe) or recipe.model.freeze != "none":
        return None
    epoch = 0
    phase = None
    for stage in recipe.all_stages():
        cut = cut_of(stage.freeze)
        if stage.freeze == "none":
            break
        if stage.freeze == "trunk" or (cut is not None and cut.until == HEAD):
            phase = phase or "head"
        else:
            phase = "blocks"
        epoch += stage.epochs
    return None if phase is None else (phase, epoch)


def reported_phases(recipe: Recipe) -> list[str]:
    """Return the phases whose metrics a run of the recipe reports: ``"after"``, ``"raw"`` ..."""
    from ..evaluation import learned_metric
    from ..networks.pretrained import is_pretrained

    table = recipe.evaluation
    phases = ["after"]  # after training
    if trains_pretrained_trunk(recipe):
        phases.append("features")
    if table.training_images:
        phases.append("training")
    if table.baselines:
        phases += ["raw", "before"]
        if recipe.model.takes_vectors:
            phases.append("pca")
        elif recipe.model.freeze == "trunk" or is_pretrained(recipe.model.trunk.settings):
            phases += ["frozen", "pca"]
        earlier = stage_before_whole(recipe)
        if earlier is not None:
            phases.append(earlier[0])
    # Only a loss that is built shows whether it, its miner or its regularizer has a learned metric.
    context = loss_context(recipe, [0, 1], _placeholder_classes(recipe.data))
    for stage in recipe.all_stages():
        loss, miner = build_loss(stage.loss, context)
        modules = list(loss.modules())
        if miner is not None:
            modules.extend(miner.modules())
        if learned_metric(modules) is not None:
            phases.append("learned_metric")
            if table.shortlist:
                phases.append("shortlist")
            break
    return phases


def own_optimizer(optimizer: OptimizerTable, loss: LossTable) -> OptimizerTable:
    """Return the optimizer of a loss's own parameters: ``[loss.optimizer]`` over ``[optimizer]``."""
    try:
        return OptimizerTable.model_validate(merged(optimizer.model_dump(), loss.optimizer))
    except ValidationError as error:
        raise ConfigError(f"loss.optimizer.{problem_of(error)}") from None


def build_optimizer(
    table: OptimizerTable, parameters: Iterable[Any], lr_factor: float = 1.0, key: str = "optimizer"
) -> torch.optim.Optimizer:
    """Build the torch optimizer of a table over some parameters; ``key`` is the table's, for errors."""
    with located(key, table):
        optimizer: torch.optim.Optimizer = table.optimizer(
            parameters, lr=table.lr * lr_factor, weight_decay=table.weight_decay, **table.settings
        )
    return optimizer


def check_names(recipe: Recipe, build: bool = True) -> None:
    """Look up every name of a recipe and check every setting.

    With ``build``, build the losses and optimizers too, since only their constructors know the ranges of values. A run
    that begins at once builds its own.
    """
    _check_data(recipe.data)
    _check_trunk(recipe.model.trunk)
    listed = recipe.data.listed
    if recipe.data.name.startswith(VECTORS) or (listed and "vectors" in recipe.data.settings):
        _check_vectors(recipe)
    if listed is not None:
        check_listed(recipe, listed)
    _check_views(recipe.data)
    _check_trackers(recipe.track)
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
        factory = _dataset_factory(data.name)
    options_of("data", data.name, factory, _FILLED_FOR_DATA, data.settings)
    settings = dict(data.augment)
    transforms = settings.pop("transforms", [])
    options_of("data.augment", "augment", build_transforms, _FILLED_FOR_TRANSFORMS, settings)
    if transforms:
        _image_transforms("data.augment.transforms", transforms)


def _check_views(data: DataTable) -> None:
    """Refuse several views of images that nothing changes."""
    images = data.images
    random_settings = [images.random_crop, images.random_crop_scale, images.flip, *data.augment.values()]
    if data.views > 1 and not any(random_settings):
        raise ConfigError(
            f"data.views: found {data.views}, and views would be equal without augmentation; wanted [data.augment], "
            "such as --set data.augment.random_crop=true"
        )


def _check_trunk(trunk: NamedTable) -> None:
    with located("model.trunk.name"):
        factory = _trunk_factory(trunk.name)
    options_of("model.trunk", trunk.name, factory, _FILLED_FOR_TRUNK, _trunk_settings(trunk))


def _check_trackers(trackers: Iterable[NamedTable]) -> None:
    for tracker in trackers:
        with located("track.name"):
            factory = registry.factory("tracker", tracker.name)
        options_of("track", tracker.name, factory, FILLED_FOR_TRACKER, tracker.settings)


def _check_optimizer(key: str, table: OptimizerTable, build: bool) -> None:
    import torch

    accepted = inspect.signature(table.optimizer).parameters
    _checked_settings(key, table.name, accepted, table.settings, ("params",))
    if build:
        build_optimizer(table, [torch.nn.Parameter(torch.zeros(1))], key=key)


def _check_sampler(key: str, table: SamplerTable | None, recipe: Recipe) -> None:
    if table is None:
        return
    if table.name == SHUFFLE:
        _checked_settings(key, SHUFFLE, {}, table.settings)
        return
    context = dict(_SAMPLER_CONTEXT)
    relation = build_relation(recipe.data, _placeholder_classes(recipe.data))
    if relation is not None:
        context["relation"] = relation
    _checked_component(key, "sampler", table, context)  # building it needs the labels of the data


def _check_loss(key: str, table: LossTable, recipe: Recipe) -> bool:
    """Build a loss before its data are available; return whether it has a learned metric."""
    from ..evaluation import learned_metric

    context = loss_context(recipe, [0, 1], _placeholder_classes(recipe.data))
    loss, _ = build_loss(table, context, key)
    if recipe.data.listed is not None:
        check_listed_loss(key, table.name, loss, recipe, recipe.data.listed)
    return learned_metric(loss.modules()) is not None


def _check_loss_settings(key: str, table: LossTable, recipe: Recipe) -> None:
    """Check the names and settings of a loss, its miner and its regularizer, without building them."""
    context = loss_context(recipe, [0, 1], _placeholder_classes(recipe.data))
    _checked_component(key, "loss", table, context)
    if table.miner is not None:
        _checked_component(f"{key}.miner", "miner", table.miner, context)
    if table.regularizer is not None:
        _checked_component(f"{key}.regularizer", "regularizer", table.regularizer, context)


def _check_evaluation(recipe: Recipe, has_learned_metric: bool) -> None:
    from ..evaluation.metrics import SMALLER_IS_BETTER

    shortlist = recipe.evaluation.shortlist
    if shortlist is not None and not has_learned_metric:
        raise ConfigError(f"evaluation.shortlist: found {shortlist}, but no loss has a learned metric to re-rank by")
    select = recipe.evaluation.select
    known = [name for name in recipe.metric_names() if name not in SMALLER_IS_BETTER]
    if select is not None and select not in known:
        raise ConfigError(f"evaluation.select: {unknown('metric', select, known)}")


def check_weights(recipe: Recipe) -> None:
    """Refuse a trunk that is frozen, or trained by adapters alone, at random weights that the recipe does not mention.

    Trunks of plugins may have weights of their own. MissingExtraError for weights whose package is not installed.
    """
    from ..networks import efficientnet_lite as lite
    from ..networks import trunks
    from ..networks.pretrained import HF, RANDOM

    table = recipe.model
    name = table.trunk.name
    if name in lite.VARIANTS:
        lite.check_packages(name, table.trunk.settings.get("weights"))
    if table.init is not None or table.trunk.settings.get("weights") is not None or table.takes_vectors:
        return
    is_of_plugin = not name.startswith((trunks.TIMM, HF)) and trunks.builtin_trunk(name) is None
    if is_of_plugin or not _keeps_trunk_weights(recipe):
        return
    wanted = []
    if name in lite.VARIANTS:
        wanted.append(repr(lite.IMAGENET))
    elif name.startswith(trunks.TIMM):
        wanted.append("a tag of timm")
    elif name.startswith((trunks.PREFIX, HF)):
        wanted.append("'DEFAULT'")
    wanted += ["a file", f"{RANDOM!r} if that is meant"]
    raise ConfigError(
        f"model.trunk: {name} is frozen and has no weights, so its features would be random; wanted weights = "
        f"{' or '.join(wanted)}: --set model.trunk.weights=WEIGHTS, in probe {name}=WEIGHTS"
    )


def _keeps_trunk_weights(recipe: Recipe) -> bool:
    """Return whether a run leaves the weights of its trunk, or of a part of it, as they are at its start."""
    table = recipe.model
    if table.lora is not None or frozen_patterns(table.freeze):
        return True
    freezes = [table.freeze]
    freezes += [stage.freeze for stage in recipe.stages]
    return any(cut_of(freeze) is not None for freeze in freezes)


def _placeholder_classes(table: DataTable) -> list[str]:
    """Return names of classes with which a relation can be built, to check a recipe before its data are available."""
    settings: dict[str, Any] = {}
    if table.relation is not None:
        if table.relation.name == "near":
            return ["0", "1"]  # names that are numbers
        settings = table.relation.settings
    level = settings.get("level", 1)  # of a hierarchy, whose tree is then at least one level deeper
    ancestors = "parent"
    if isinstance(level, int) and 0 < level < 100:
        ancestors = "/".join(["parent"] * level)
    unknown_class = str(settings.get("unknown", "unknown"))
    return [f"{ancestors}/0", f"{ancestors}/1", unknown_class]


def _component(key: str, kind: str, table: NamedTable, context: Mapping[str, Any]) -> Any:
    """Build the component of a table.

    A loss that wants labels from 0 to ``num_classes`` - 1 gets them, whatever the labels of the data are, and so do the
    parts that are built with it.
    """
    component = _checked_component(key, kind, table, context)
    classes = context.get("class_labels", [])
    numbers = list(range(len(classes)))
    renumbers = kind == "loss" and _settings_by_class(component) == {"num_classes"} and classes != numbers
    if renumbers:
        context = {**context, "class_labels": numbers}
    with located(key, table):
        built = registry.build(table.name, kind, context, **table.settings)
    if renumbers:
        check_class_weights(built, [len(numbers)], len(numbers))
        built.register_forward_pre_hook(functools.partial(_number_labels, classes), with_kwargs=True)
    return built


def check_class_weights(loss: Any, accepted: Collection[int], classes: int) -> None:
    """Raise ConfigError unless a reducer with weights of classes has an ``accepted`` number of them."""
    from ..pml import reducers

    for module in loss.modules():
        if isinstance(module, reducers.ClassWeightedReducer) and len(module.weights) not in accepted:
            raise ConfigError(
                f"loss.reducer: weights of pml/class-weighted must be {classes} numbers, one for each training class "
                f"in the order of their labels; got {len(module.weights)}"
            )


def _checked_component(key: str, kind: str, table: NamedTable, context: Mapping[str, Any]) -> Component:
    """Return the component of a table; ConfigError for a name or setting that is not known."""
    with located(f"{key}.name"):
        component = registry.get(table.name, kind)
    if kind != "sampler" and _settings_by_class(component) and "num_classes" not in context:
        text = f"{table.name} keeps something for each class (num_classes), and clusters change with each epoch"
        raise ConfigError(f"{key}: {text}; take a loss of pairs or triplets")
    _, missing = registry.fill_settings(component.cls, context, table.settings)
    filled = set(component.settings).difference(missing)
    _checked_settings(key, table.name, component.settings, table.settings, filled)
    return component


def _settings_by_class(component: Component) -> set[str]:
    """Return a component's settings that stand for the training classes: their number, their labels, or both."""
    return component.settings.keys() & {"num_classes", "class_labels"}


def _number_labels(classes: list[int], loss: Any, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Replace labels by their indices in the sorted ``classes``, for a loss that needs 0 to ``num_classes`` - 1."""
    import torch

    def numbered(labels: torch.Tensor | None) -> torch.Tensor | None:
        if labels is None:
            return None
        return torch.searchsorted(torch.tensor(classes, device=labels.device), labels)

    positional = list(given)
    for place in (1, 4):  # of labels and ref_labels in a loss's call
        if place < len(positional):
            positional[place] = numbered(positional[place])
    by_name = dict(named)
    for name in ("labels", "ref_labels"):
        if name in by_name:
            by_name[name] = numbered(by_name[name])
    return tuple(positional), by_name


@contextlib.contextmanager
def located(key: str, table: NamedTable | None = None) -> Iterator[None]:
    """Raise errors as ConfigError with the key in front; name the table's settings if the error is not ours."""
    try:
        yield
    except (DataError, OSError):
        raise
    except (Exception, SystemExit) as error:  # constructors may raise anything
        text = str(error)
        if table is not None and not isinstance(error, PmlExtError):
            text = _refusal(table, error)
        raise ConfigError(shortened(f"{key}: {text}")) from None


def _refusal(table: NamedTable, error: BaseException) -> str:
    """Return what a factory, or a constructor, that failed was given, and where and why it failed."""
    settings = [f"{name} = {value!r}" for name, value in table.settings.items()]
    if settings:
        refuses = f"refuses {', '.join(settings)}"
    else:
        refuses = "fails"
    says_why = isinstance(error, (ValueError, TypeError, AssertionError)) and str(error).strip()
    reason = str(error).strip() if says_why else repr(error)
    origin = registry.origin_of(error)
    if origin is not None:
        reason += f", in {origin.place}"
    return f"{table.name} {refuses}: {reason}"


def _checked_settings(
    key: str,
    owner: str,
    accepted: Mapping[str, inspect.Parameter],
    given: Mapping[str, Any],
    filled: Collection[str] = (),
) -> dict[str, Any]:
    """Return settings converted by their annotations; raise ConfigError for unknown and missing ones.

    ``accepted`` are the settings of ``owner``. Those that are ``filled`` have values from elsewhere.
    """
    for name in given:
        if name not in accepted:
            raise ConfigError(f"{key}.{name}: {unknown_key(f'setting of {owner}', name, accepted)}")
    for name, parameter in accepted.items():
        if parameter.default is parameter.empty and name not in given and name not in filled:
            raise ConfigError(f"{key}.{name}: missing, and {owner} has no default for it")
    converted = {}
    for name, value in given.items():
        converted[name] = _converted(f"{key}.{name}", accepted[name], value)
    return converted


def _validated(adapter: TypeAdapter[Any], value: Any) -> Any:
    """Return a value converted by strict rules.

    Those for JSON let a text stand for a path. A type that JSON lacks is checked by the rules for Python objects.
    """
    try:
        return adapter.validate_json(json.dumps(value, default=str), strict=True)
    except ValidationError as error:
        kinds = {problem["type"] for problem in error.errors()}
        if "needs_python_object" not in kinds:
            raise  # else the type is one such as numbers.Number
        return adapter.validate_python(value, strict=True)


_TYPES_OF_DEFAULTS = {bool: bool, str: str, int: float, float: float}  # a default of 1 may mean any number


def _converted(key: str, parameter: inspect.Parameter, value: Any) -> Any:
    """Return a value converted strictly (16.0 is not an integer) by its annotation.

    Without an annotation, or with one that could not be resolved, check the value by the default's type, and return it
    unchanged.
    """
    kind = parameter.name.rsplit("_", 1)[-1]
    default = parameter.default
    if kind in KINDS and isinstance(value, Mapping) and isinstance(value.get("name"), str):
        return value  # a component; building it checks it
    annotation = parameter.annotation
    has_type = annotation is not parameter.empty and not isinstance(annotation, str)
    if not has_type:
        if kind in KINDS and default is None:
            raise ConfigError(f"{key}: found {value!r}; wanted a table with the name of a {kind}")
        annotation = _TYPES_OF_DEFAULTS.get(type(default), Any)
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True))
        result = _validated(adapter, value)
    except ValidationError as error:
        wanted = [problem["msg"].removeprefix("Input should be ") for problem in error.errors()]
        text = f"input should be {' or '.join(dict.fromkeys(wanted))}"
        raise ConfigError(f"{key}: found {value!r}; {text}") from None
    except Exception:  # pydantic cannot resolve a plugin's annotation
        return value
    return result if has_type else value
