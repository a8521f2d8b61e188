"""Builders of data sets, networks, losses, miners and optimizers from a recipe's tables."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from ... import models, registry
from ...data import PATH_FACTORIES, DataSplits, Pipeline
from ...errors import ConfigError, PmlExtError, shortened
from ...evaluation.metrics import metrics_of
from ...network import Network, Normalization, Preprocessing
from ...registry import BuildContext
from .schema import (
    OPTIMIZERS,
    PROTOCOLS,
    TOP,
    DataTable,
    LossTable,
    ModelTable,
    NamedTable,
    OptimizerTable,
    Recipe,
)

FILLED_FOR_DATA, FILLED_FOR_TRUNK = ("root",), ("in_channels", "image_size")  # by a run; not options of a recipe


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge tables key by key; a table with another ``name`` replaces the old one, settings and all."""
    result = dict(base)
    for key, value in over.items():
        old = result.get(key)
        if isinstance(old, str) and isinstance(value, dict):
            old = {"name": old}  # a table's name may stand for the table
        if isinstance(old, dict) and isinstance(value, dict) and value.get("name", old.get("name")) == old.get("name"):
            result[key] = merged(old, value)
        else:
            result[key] = value
    return result


def adapter_of(annotation: Any) -> TypeAdapter[Any] | None:
    """Return the pydantic adapter of an annotation; None where there is none that pydantic can resolve."""
    if annotation is inspect.Parameter.empty or isinstance(annotation, str):
        return None
    own_config = inspect.isclass(annotation) and issubclass(annotation, BaseModel)
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(
            annotation, config=None if own_config else ConfigDict(arbitrary_types_allowed=True)
        )
        with contextlib.suppress(ValidationError):
            convert(adapter, None)  # names inside an annotation are resolved at the first use
    except Exception:  # plugins' annotations can be anything
        return None
    return adapter


def convert(adapter: TypeAdapter[Any], value: Any) -> Any:
    """Convert a value of a TOML file strictly: 16.0 is no integer, and "1" is no number."""
    return adapter.validate_json(json.dumps(value, default=str), strict=True)


def refusal(name: str, settings: Mapping[str, Any], error: BaseException) -> str:
    """Describe an error that a component, a factory or an optimizer raised because of its settings."""
    given = ", ".join(f"{key} = {value!r}" for key, value in settings.items()) or "no settings"
    return f"{name} refuses {given}: {reason_of(error)}"


def reason_of(error: BaseException) -> str:
    """Return an error's text, after its class where that says more."""
    text = str(error).strip()
    plain = isinstance(error, (ValueError, TypeError, AssertionError)) and text
    return text if plain else f"{type(error).__name__}: {text}".removesuffix(": ")


def dataset_factory(name: str) -> Callable[..., Any]:
    """Return the factory of a data set; of ``folder:PATH`` and ``table:FILE.csv`` with the path filled in."""
    prefix, _, path = name.partition(":")
    if prefix not in PATH_FACTORIES:
        return registry.factory("data set", name)
    factory, wanted = PATH_FACTORIES[prefix]
    if not path:
        raise ConfigError(f"found {name!r}, wanted {wanted}")
    return functools.partial(factory, path=path)


def trunk_factory(name: str) -> Callable[..., Any]:
    """Return the factory of a trunk; ``timm/NAME`` needs timm."""
    if name.startswith(models.TIMM):
        short = name.removeprefix(models.TIMM)
        models.timm_library(short)
        return functools.partial(models.timm_trunk, name=short)
    return models.builtin_trunk(name) or registry.factory("trunk", name)


def options_of(factory: Callable[..., Any], filled: Iterable[str]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a factory that a recipe may set."""
    taken = {*filled, *(factory.keywords if isinstance(factory, functools.partial) else ())}
    return {name: parameter for name, parameter in registry.settings_of(factory).items() if name not in taken}


def _call(
    key: str, table: NamedTable, factory: Callable[..., Any], filled: Mapping[str, Any], given: Mapping[str, Any]
) -> Any:
    """Call a factory with the options of a table as its annotations want them: a path for a text, say."""
    options = options_of(factory, filled)
    try:
        adapters = {name: adapter_of(options[name].annotation) for name in given}
        converted = {
            name: value if (adapter := adapters[name]) is None else convert(adapter, value)
            for name, value in given.items()
        }
        return factory(*filled.values(), **converted)
    except (PmlExtError, OSError):  # with a text of its own
        raise
    except Exception as error:
        raise ConfigError(shortened(f"{key}: {refusal(table.name, table.settings, error)}")) from error


def build_dataset(table: DataTable, root: Path | None) -> DataSplits:
    """Build a data set from ``[data]`` and the folder of the data, where it wants one."""
    return _call("data", table, dataset_factory(table.name), {"root": root}, table.settings)  # type: ignore[no-any-return]


def build_trunk(table: NamedTable, channels: int, image_size: int, trained: bool = False) -> torch.nn.Module:
    """Build a trunk from ``[model] trunk``; a ``trained`` one gets a run's weights, and fetches no pretrained ones."""
    given = {name: value for name, value in table.settings.items() if not (trained and name == "weights")}
    filled = {"in_channels": channels, "image_size": image_size}
    return _call("model.trunk", table, trunk_factory(table.name), filled, given)  # type: ignore[no-any-return]


def preprocessing_of(recipe: Recipe, splits: DataSplits) -> tuple[Preprocessing, Pipeline]:
    """Return the preprocessing of all images, and the random crops and flips of training images."""
    images, channels = recipe.data.images, splits.channels
    size = int(images.crop or splits.image_size)
    if channels == 1 and (images.bgr or len(images.mean or [0]) != 1):
        raise ConfigError(f"data.images: bgr, and means of three channels, are for color; {recipe.data.name} is gray")
    if images.resize is not None and images.resize < size:
        raise ConfigError(
            f"data.images.resize: found {images.resize}; wanted at least the {size} pixels that are cut "
            "out, which data.images.crop says"
        )
    trunk = recipe.model.trunk
    pretrained = models.pretrained_normalization(trunk.name, trunk.settings)
    values = [list(each)[:: -1 if images.bgr else 1] for each in pretrained or ()]
    if images.mean is not None and images.std is not None:
        values = [each * (channels // len(each)) for each in (images.mean, images.std)]
    preprocessing = Preprocessing(
        image_size=size,
        channels=channels,  # type: ignore[arg-type]
        crop=splits.crop,
        normalize=Normalization(mean=values[0], std=values[1]) if values else None,
        **images.model_dump(include={"resize", "squash", "bgr", "value_range"}),
    )
    area = images.random_crop_scale
    return preprocessing, Pipeline(
        random_crop=images.random_crop, random_crop_scale=(area[0], area[1]) if area else None, flip=images.flip
    )


def build_network(
    table: ModelTable, preprocessing: Preprocessing, features: int | None = None, trained: bool = False
) -> Network:
    """Build a network from ``[model]``; see :func:`build_trunk`, and :class:`pml_ext.network.Network` for the rest."""
    trunk = build_trunk(table.trunk, preprocessing.channels, preprocessing.image_size, trained)
    hidden_sizes = None if table.embedder == "none" else table.hidden_sizes
    return Network(preprocessing, trunk, table.embedding_size, hidden_sizes, features)


def loss_context(recipe: Recipe, labels: list[int]) -> BuildContext:
    """Return the settings that a loss may leave to the run; of clusters as labels, without number and labels."""
    context: BuildContext = {"embedding_size": recipe.model.embedding_size, "collect_stats": True}
    if recipe.data.labels == "clusters":
        return context
    return context | {"num_classes": len(labels), "class_labels": labels}


def build(kind: str, table: NamedTable, context: Mapping[str, Any]) -> Any:
    """Build a component of a kind; settings that its table leaves out come from the context."""
    return registry.build(table.name, kind, context, **table.settings)


def build_loss(table: LossTable, context: Mapping[str, Any]) -> tuple[torch.nn.Module, torch.nn.Module | None]:
    """Build a loss with its regularizer and memory, and its miner unless the memory has that."""
    from ...losses import CrossBatchMemory, RegularizedLoss

    loss = build("loss", table, context)
    if table.regularizer is not None:
        loss = RegularizedLoss(loss, build("regularizer", table.regularizer, context), table.regularizer.weight)
    miner = build("miner", table.miner, context) if table.miner is not None else None
    if table.memory is None:
        return loss, miner
    size, first = table.memory.size, table.memory.start_epoch
    return CrossBatchMemory(loss, context["embedding_size"], size, miner, first_epoch=first, collect_stats=True), None


def own_optimizer(optimizer: OptimizerTable, loss: LossTable) -> OptimizerTable:
    """Return the optimizer of a loss's own parameters: ``[loss.optimizer]`` over ``[optimizer]``."""
    return OptimizerTable.model_validate(merged(optimizer.model_dump(), loss.optimizer))


def build_optimizer(table: OptimizerTable, parameters: Iterable[Any], lr_factor: float = 1.0) -> torch.optim.Optimizer:
    """Build the torch optimizer of a table over some parameters."""
    optimizer = OPTIMIZERS[table.name]
    return optimizer(parameters, lr=table.lr * lr_factor, weight_decay=table.weight_decay, **table.settings)  # type: ignore[no-any-return,operator]


def metric_names(recipe: Recipe) -> list[str]:
    """Return the names of the metrics that a run of the recipe reports."""
    table = recipe.evaluation
    metrics = metrics_of(table.recall_at, table.precision_at, table.clusters_per_class)
    classified = [f"{prefix}_top_{k}" for name, prefix in PROTOCOLS.items() if name in table.protocols for k in TOP]
    return [*(metric.name for metric in metrics if metric.in_runs), *registry.factories("metric"), *classified]
