"""Builders of data sets, preprocessing and networks from a recipe."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pml_ext import registry
from pml_ext.errors import ConfigError

from .. import networks
from .conversion import FILLED_FOR_DATA, FILLED_FOR_TRUNK, located, options_of
from .schema import (
    FITTED_EMBEDDERS,
    IDENTITY,
    DataTable,
    ImagesTable,
    ModelTable,
    NamedTable,
    Recipe,
    cut_of,
    frozen_patterns,
    transform_tables,
)

if TYPE_CHECKING:  # imported inside the builders, so that reading a recipe does not import torch
    import torch

    from ..data import DataSplits, ImageTransforms, Pipeline

VECTORS = "vectors:"  # begins the name of a data set of vectors


def build_dataset(table: DataTable, root: Path | None) -> DataSplits:
    """Build the data set of ``[data]``; ``root`` is the folder of its files."""
    from ..data import DataSplits

    factory = dataset_factory(table.name)
    options = options_of("data", table.name, factory, FILLED_FOR_DATA, table.settings)
    if table.relation is not None and "label_sets" in registry.settings_of(factory):
        options["label_sets"] = table.relation.name == "shared-label"
    with located("data", table):
        splits = factory(root, **options)
    if not isinstance(splits, DataSplits):
        plugin, _ = registry.find("data set", table.name)
        raise ConfigError(
            f"{table.name} of the plugin {plugin!r} gives {type(splits).__name__}; wanted pml_ext.plugin.DataSplits, "
            "with train and test",
            key="data",
        )
    return splits


def build_trunk(table: NamedTable, channels: int, image_size: int, trained: bool = False) -> torch.nn.Module:
    """Build the trunk of ``[model]``; ``trained`` leaves out pretrained weights."""
    import torch

    factory = trunk_factory(table.name)
    options = options_of("model.trunk", table.name, factory, FILLED_FOR_TRUNK, trunk_settings(table, trained))
    with located("model.trunk", table):
        trunk: torch.nn.Module = factory(channels, image_size, **options)
    if not isinstance(trunk, torch.nn.Module):
        plugin, _ = registry.find("trunk", table.name)
        raise ConfigError(
            f"{table.name} of the plugin {plugin!r} gives {type(trunk).__name__}; wanted a torch.nn.Module",
            key="model.trunk",
        )
    weights = table.settings.get("weights")
    if networks.is_file(weights) and not trained:
        networks.load_weights(trunk, str(weights))
    return trunk


def build_network(
    table: ModelTable,
    preprocessing: networks.Preprocessing | networks.VectorInput,
    features: int | None = None,
    trained: bool = False,
) -> networks.Network:
    """Build the network of ``[model]``; ``trained`` leaves out pretrained weights."""
    import torch

    if isinstance(preprocessing, networks.VectorInput):
        trunk: torch.nn.Module = torch.nn.Identity()
    else:
        trunk = build_trunk(table.trunk, preprocessing.channels, preprocessing.image_size, trained)
    hidden_sizes = None if table.embedder == "none" else table.hidden_layers
    network = networks.Network(
        preprocessing, trunk, table.embedding_size, hidden_sizes, features, table.norm, table.dropout
    )
    network.embedder.requires_grad_(table.embedder not in FITTED_EMBEDDERS)
    cut = cut_of(table.freeze)
    if table.lora is not None:
        networks.add_lora(network.trunk, table.lora.rank, table.lora.targets)
    elif cut is None:
        networks.freeze(network.trunk, frozen_patterns(table.freeze))
    elif not trained:
        networks.frozen_stem(network.trunk, cut.until)
    return network


def vector_input_of(recipe: Recipe, splits: DataSplits) -> networks.VectorInput:
    """Return the input of a head on vectors; ConfigError for images."""
    if splits.vector_size is None:
        raise ConfigError(
            f"{IDENTITY} is for vectors, but {recipe.data.name} has images; set data.name = 'vectors:FILE' "
            "(or data.vectors of pairs and triplets), or a trunk such as convnet",
            key="model.trunk",
        )
    check_vectors(recipe)
    return networks.VectorInput(vector_size=splits.vector_size)


def check_vectors(recipe: Recipe) -> None:
    """Raise ConfigError for settings of images beside vectors."""
    model = recipe.model
    data = recipe.data
    if not model.takes_vectors:
        raise ConfigError(
            f"{model.trunk.name} is for images, and {data.name} has vectors; "
            f"--set model.trunk={IDENTITY} trains a head on them",
            key="model.trunk",
        )
    if model.trunk.settings:
        raise ConfigError(
            f"{IDENTITY} has no settings; leave it out", key=f"model.trunk.{next(iter(model.trunk.settings))}"
        )
    unused = [f"data.images.{key}" for key in data.images.changed(type(data.images).model_fields)]
    unused += [f"data.augment.{key}" for key in data.augment]
    unused += [f"data.{key}" for key in data.changed(("workers", "cache", "unreadable", "views"))]
    unused += ["engine.channels_last"] if recipe.engine.channels_last else []
    if unused:
        raise ConfigError(f"it is for images, and {data.name} has vectors; leave it out", key=unused[0])


def preprocessing_of(recipe: Recipe, splits: DataSplits) -> tuple[networks.Preprocessing, Pipeline]:
    """Return the preprocessing of images, and the random crops and flips of training."""
    from ..data import Pipeline

    if splits.vector_size is not None:
        check_vectors(recipe)
        raise ConfigError(f"{recipe.data.name} has vectors, without pixels; wanted images")
    images = recipe.data.images
    trunk = recipe.model.trunk
    pretrained = networks.pretrained_images(trunk.name, trunk.settings)
    resize = images.resize
    squash = images.squash
    if images.crop is not None:
        size = images.crop
    elif pretrained is not None and pretrained.image_size and "image_size" not in recipe.data.settings:
        size = pretrained.image_size
        if splits.crop and resize is None and not squash:
            resize = pretrained.resize
            squash = pretrained.squash
    else:
        size = int(splits.image_size)
    _check_images(recipe, splits.channels, size)
    if pretrained is None and images.mean is None:
        _check_normalization_is_known(trunk)
    bgr = images.bgr
    interpolation = images.interpolation
    if pretrained is not None:
        bgr = bgr or (pretrained.bgr and images.mean is None and splits.channels == 3)
        interpolation = interpolation or pretrained.interpolation
    preprocessing = networks.Preprocessing(
        image_size=size,
        channels=splits.channels,  # type: ignore[arg-type]
        crop=splits.crop,
        normalize=_normalization(images, pretrained, splits.channels, bgr),
        resize=resize,
        squash=squash,
        interpolation=interpolation or "bilinear",
        bgr=bgr,
        value_range=images.value_range,
    )
    area = images.random_crop_scale
    scale = None if area is None else (area[0], area[1])
    return preprocessing, Pipeline(random_crop=images.random_crop, random_crop_scale=scale, flip=images.flip)


def _check_normalization_is_known(trunk: NamedTable) -> None:
    if trunk.name.startswith(networks.HF) and networks.is_pretrained(trunk.settings):
        raise ConfigError(
            f"{trunk.name}: no preprocessor_config.json, so mean and std are not known. Write it with "
            "processor.save_pretrained(FOLDER), or add --set data.images.mean=[0.5,0.5,0.5] --set "
            "data.images.std=[0.5,0.5,0.5]",
            key="model.trunk",
        )


def _normalization(
    images: ImagesTable, pretrained: networks.PretrainedImages | None, channels: int, bgr: bool
) -> networks.Normalization | None:
    """Return the recipe's mean and deviation, or the pretrained weights', or None."""
    if images.mean is not None and images.std is not None:
        times = channels // len(images.mean)  # a single number stands for all channels
        return networks.Normalization(mean=images.mean * times, std=images.std * times)
    if pretrained is None:
        return None
    order = slice(None, None, -1 if bgr else 1)
    return networks.Normalization(mean=list(pretrained.mean[order]), std=list(pretrained.std[order]))


def augmentation_of(table: DataTable, preprocessing: networks.Preprocessing) -> dict[str, Any]:
    """Return ``[data.augment]`` for ``build_transforms``, with transforms built.

    ConfigError for a transform that does not fit the images.
    """
    settings = dict(table.augment)
    tables = settings.pop("transforms", [])
    if tables:
        transforms = image_transforms("data.augment.transforms", tables)
        transforms.try_on(preprocessing.channels, preprocessing.image_size)
        settings["transforms"] = [transforms]
    return settings


def image_transforms(key: str, tables: Any) -> ImageTransforms:
    """Build the transforms of a list with this ``key``."""
    from ..data import ImageTransforms, NamedTransform

    built = []
    for number, table in enumerate(transform_tables(tables, key)):
        place = f"{key}.{number}"
        text = json.dumps(table.model_dump())
        built.append(NamedTransform(place, table.name, text, _build_transform(place, table)))
    return ImageTransforms(built)


def _build_transform(key: str, table: NamedTable) -> Callable[[Any], Any]:
    with located(f"{key}.name"):
        factory = registry.factory("transform", table.name)
    settings = table.settings
    inner: dict[str, Any] = {}
    if "transforms" in settings and "transforms" in registry.settings_of(factory):
        transforms = image_transforms(f"{key}.transforms", settings.pop("transforms"))
        inner["transforms"] = [transform.function for transform in transforms.transforms]
    options = options_of(key, table.name, factory, inner, settings)
    with located(key, table):
        return factory(**inner, **options)  # type: ignore[no-any-return]


def _check_images(recipe: Recipe, channels: int, size: int) -> None:
    images = recipe.data.images
    has_color_means = images.mean is not None and len(images.mean) != 1
    if channels == 1 and (images.bgr or has_color_means):
        raise ConfigError(
            f"bgr, and means of three channels, are for color; {recipe.data.name} is gray", key="data.images"
        )
    if images.resize is not None and images.resize < size:
        raise ConfigError(
            f"found {images.resize}; wanted at least the {size} of data.images.crop", key="data.images.resize"
        )


def dataset_factory(name: str) -> Callable[..., Any]:
    """Return a data set's factory, with the path of ``folder:PATH`` filled in."""
    from ..data import PATH_FACTORIES, is_vector_file

    prefix, _, path = name.partition(":")
    if prefix not in PATH_FACTORIES:
        if os.path.exists(name) and name not in registry.values("data set"):
            kind = "folder" if os.path.isdir(name) else "vectors" if is_vector_file(name) else "table"
            raise ConfigError(f"no data set {name!r}; for your own data type --set data.name={kind}:{name}")
        return registry.factory("data set", name)
    factory, wanted = PATH_FACTORIES[prefix]
    if not path:
        raise ConfigError(f"found {name!r}, wanted {wanted}")
    return functools.partial(factory, path=path)


def trunk_factory(name: str) -> Callable[..., Any]:
    """Return a trunk's factory; ``timm/NAME`` needs timm."""
    if name.startswith(networks.trunks.TIMM):
        short = name.removeprefix(networks.trunks.TIMM)
        networks.trunks.timm_library(short)  # MissingExtraError if timm is not installed
        return functools.partial(networks.trunks.timm_trunk, name=short)
    if name.startswith(networks.HF):
        return functools.partial(networks.hf_trunk, name=name.removeprefix(networks.HF))
    return networks.trunks.builtin_trunk(name) or registry.factory("trunk", name)


def trunk_settings(table: NamedTable, trained: bool = False) -> dict[str, Any]:
    """Return a trunk's settings; a file of weights is loaded later and left out."""
    settings = dict(table.settings)
    if trained or networks.is_file(settings.get("weights")) or not networks.is_pretrained(settings):
        settings.pop("weights", None)
    return settings
