"""From a recipe's tables to data, networks, losses, miners and optimizers."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from ... import models, registry
from ...data import PATH_FACTORIES, DataSplits, Pipeline
from ...errors import ConfigError, PmlExtError, shortened
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
from .values import adapter_of, merged, refusal, strictly

# What a run fills in by itself: no options of a recipe.
FROM_RUN_FOR_DATA, FROM_RUN_FOR_TRUNK = ("root",), ("in_channels", "image_size")


def dataset_factory(name: str) -> Callable[..., Any]:
    """The factory of a data set; ``folder:PATH`` and ``table:FILE.csv`` give a factory with its path filled in."""
    prefix, _, path = name.partition(":")
    if prefix not in PATH_FACTORIES:
        return registry.dataset(name)
    factory, wanted = PATH_FACTORIES[prefix]
    if not path:
        raise ConfigError(f"found {name!r}, wanted {wanted}")
    return functools.partial(factory, path=path)


def trunk_factory(name: str) -> Callable[..., Any]:
    """The factory of a trunk; ``timm/NAME`` gives timm's factory with the name filled in, where timm is installed."""
    if name.startswith(models.TIMM):
        short = name.removeprefix(models.TIMM)
        models.timm_library(short)
        return functools.partial(models.timm_trunk, name=short)
    return models.builtin_trunk(name) or registry.trunk(name)


def options_of(factory: Callable[..., Any], filled: Iterable[str]) -> dict[str, inspect.Parameter]:
    """The settings of a factory that a recipe may have."""
    taken = {*filled, *(factory.keywords if isinstance(factory, functools.partial) else ())}
    return {name: parameter for name, parameter in registry.settings_of(factory).items() if name not in taken}


def build_dataset(table: DataTable, root: Path | None) -> DataSplits:
    """The images of a data set.

    Args:
        table: ``[data]``.
        root: the folder of the data, where the data set wants one.

    Raises:
        ConfigError: the data set refuses an option.
        DataError: data are missing or unreadable.
    """
    factory = dataset_factory(table.name)
    with _refusing("data", table):
        return factory(root, **_converted(factory, FROM_RUN_FOR_DATA, table.settings))  # type: ignore[no-any-return]


def build_trunk(table: NamedTable, channels: int, image_size: int, trained: bool = False) -> torch.nn.Module:
    """A trunk from its table.

    Args:
        table: ``[model] trunk``.
        channels: of the images.
        image_size: of the images, in pixels.
        trained: whether its weights will be a run's, so that no pretrained ones are fetched.

    Raises:
        ConfigError: the trunk refuses an option.
    """
    factory = trunk_factory(table.name)
    given = {name: value for name, value in table.settings.items() if not (trained and name == "weights")}
    with _refusing("model.trunk", table):
        return factory(channels, image_size, **_converted(factory, FROM_RUN_FOR_TRUNK, given))  # type: ignore[no-any-return]


def normalization_of(table: NamedTable) -> Normalization | None:
    """What the pretrained weights of a trunk want their images to be normalized by; None without such weights.

    Args:
        table: ``[model] trunk``.
    """
    values = models.pretrained_normalization(table.name, table.settings)
    return Normalization(mean=list(values[0]), std=list(values[1])) if values is not None else None


def preprocessing_of(recipe: Recipe, splits: DataSplits) -> tuple[Preprocessing, Pipeline]:
    """What is done to a data set's images before the network sees them.

    Args:
        recipe: its ``[data.images]``, and the trunk whose weights want a normalization.
        splits: of the data set.

    Returns:
        What is done to all images, and how training images are cut and mirrored besides.

    Raises:
        ConfigError: settings for color images, and the data set's are gray; or what is cut out is larger than
            what images are resized to.
    """
    images, size, channels = recipe.data.images, int(recipe.data.images.crop or splits.image_size), splits.channels
    if channels == 1 and (images.bgr or len(images.mean or [0]) != 1):
        raise ConfigError(f"data.images: bgr, and means of three channels, are for color; {recipe.data.name} is gray")
    if images.resize is not None and images.resize < size:
        raise ConfigError(
            f"data.images.resize: found {images.resize}; wanted at least the {size} pixels that are cut "
            "out, which data.images.crop says"
        )
    normalize = normalization_of(recipe.model.trunk)
    if images.mean is not None and images.std is not None:
        normalize = Normalization(
            mean=images.mean * (channels // len(images.mean)), std=images.std * (channels // len(images.std))
        )
    elif images.bgr and normalize is not None:
        normalize = Normalization(mean=normalize.mean[::-1], std=normalize.std[::-1])
    preprocessing = Preprocessing(
        image_size=size,
        channels=channels,  # type: ignore[arg-type]
        crop=splits.crop,
        normalize=normalize,
        resize=images.resize,
        squash=images.squash,
        bgr=images.bgr,
        value_range=images.value_range,
    )
    area = images.random_crop_scale
    cuts = Pipeline(
        random_crop=images.random_crop, random_crop_scale=(area[0], area[1]) if area else None, flip=images.flip
    )
    return preprocessing, cuts


def build_network(
    table: ModelTable, preprocessing: Preprocessing, features: int | None = None, trained: bool = False
) -> Network:
    """A network from its table.

    Args:
        table: ``[model]``.
        preprocessing: of its images.
        features: length of the trunk's feature vectors, where it is known.
        trained: whether its weights will be a run's, so that no pretrained ones are fetched.

    Raises:
        ConfigError: the trunk refuses an option, or images of that size.
    """
    trunk = build_trunk(table.trunk, preprocessing.channels, preprocessing.image_size, trained)
    hidden_sizes = None if table.embedder == "none" else table.hidden_sizes
    return Network(preprocessing, trunk, table.embedding_size, hidden_sizes, features)


def _converted(factory: Callable[..., Any], filled: Iterable[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """Options as a factory's annotations want them: a path for a text, say."""
    options = options_of(factory, filled)
    adapters = {name: adapter_of(options[name].annotation) for name in given}
    return {
        name: value if (adapter := adapters[name]) is None else strictly(adapter, value)
        for name, value in given.items()
    }


@contextlib.contextmanager
def _refusing(key: str, table: NamedTable) -> Iterator[None]:
    """What a factory says of its options, under their key."""
    try:
        yield
    except PmlExtError:
        raise
    except OSError:  # a file that cannot be read, which the text of the system names
        raise
    except Exception as error:
        raise ConfigError(shortened(f"{key}: {refusal(table.name, table.settings, error)}")) from error


def loss_context(recipe: Recipe, labels: list[int]) -> BuildContext:
    """What a loss may ask for by argument name without a recipe saying it; of clusters, no number and no labels."""
    context: BuildContext = {"embedding_size": recipe.model.embedding_size, "collect_stats": True}
    return (
        context if recipe.data.labels == "clusters" else context | {"num_classes": len(labels), "class_labels": labels}
    )


def build(kind: str, table: NamedTable, context: Mapping[str, Any]) -> Any:
    """A component from its table; settings that the table leaves out come from the context.

    Args:
        kind: the component's kind.
        table: its name and settings.
        context: a :class:`pml_ext.registry.BuildContext`.
    """
    return registry.build(table.name, kind, context, **table.settings)


def build_loss(table: LossTable, context: Mapping[str, Any]) -> tuple[torch.nn.Module, torch.nn.Module | None]:
    """A loss with its regularizer and memory, and its miner, if the memory does not have that.

    Args:
        table: ``[loss]``.
        context: see :func:`loss_context`.
    """
    from ...losses import CrossBatchMemory, RegularizedLoss

    loss = build("loss", table, context)
    if table.regularizer is not None:
        loss = RegularizedLoss(loss, build("regularizer", table.regularizer, context), table.regularizer.weight)
    miner = build("miner", table.miner, context) if table.miner is not None else None
    if table.memory is None:
        return loss, miner
    memory = CrossBatchMemory(
        loss,
        context["embedding_size"],
        table.memory.size,
        miner,
        first_epoch=table.memory.start_epoch,
        collect_stats=True,
    )
    return memory, None


def own_optimizer(optimizer: OptimizerTable, loss: LossTable) -> OptimizerTable:
    """How a loss's own parameters are trained: as the networks, but for what ``[loss.optimizer]`` says."""
    return OptimizerTable.model_validate(merged(optimizer.model_dump(), loss.optimizer))


def build_optimizer(table: OptimizerTable, parameters: Iterable[Any], lr_factor: float = 1.0) -> torch.optim.Optimizer:
    """The torch optimizer of a table over some parameters."""
    optimizer = OPTIMIZERS[table.name]
    return optimizer(parameters, lr=table.lr * lr_factor, weight_decay=table.weight_decay, **table.settings)  # type: ignore[no-any-return,operator]


def metric_names(recipe: Recipe) -> list[str]:
    """The names of the metrics that a run of the recipe reports."""
    table = recipe.evaluation
    ranked = [f"recall_at_{k}" for k in sorted(table.recall_at)]
    ranked += [f"precision_at_{k}" for k in sorted(table.precision_at)]
    clusters = [
        f"{name}_{count}" for count in sorted(table.clusters_per_class) if count > 1 for name in ("nmi", "f1", "purity")
    ]
    classified = [f"{prefix}_top_{k}" for name, prefix in PROTOCOLS.items() if name in table.protocols for k in TOP]
    return [*ranked, "r_precision", "map_at_r", "nmi", "f1", "purity", *clusters, *classified]
