"""Builders of relations, losses, miners and optimizers from a recipe."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pml_ext import registry
from pml_ext.errors import ConfigError, needs_extra
from pml_ext.registry import BuildContext
from pml_ext.registry.components import Component

from .conversion import checked_settings, located, options_of
from .schema import DataTable, LossTable, NamedTable, OptimizerTable, Recipe, wrong_setting
from .tables import merged

with needs_extra("train", "a recipe"):
    from pydantic import ValidationError

if TYPE_CHECKING:  # imported inside the builders, so that reading a recipe does not import torch
    import torch

    from pml_ext.relations import Relation


def build_relation(table: DataTable, class_names: Sequence[str]) -> Relation | None:
    """Build the relation of ``[data] relation`` between named classes, or return None."""
    if table.relation is None:
        return None
    from pml_ext.relations import RELATIONS

    factory = RELATIONS[table.relation.name]
    options = options_of("data.relation", table.relation.name, factory, ("names", "paths"), table.relation.settings)
    with located("data.relation", table.relation):
        return factory(class_names, **options)


def loss_context(recipe: Recipe, labels: list[int], class_names: Sequence[str] = ()) -> BuildContext:
    """Return the settings of losses that a run fills in; clusters have no number of classes."""
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
    """Build a loss with regularizer and memory, and its miner, if no memory holds it."""
    from pml_ext.losses import CrossBatchMemory, NestedLoss, RegularizedLoss

    if table.relation == "none":
        context = {name: value for name, value in context.items() if name != "relation"}
    loss = _component(key, "loss", table, context)
    _check_regularizer_weights(key, table, loss)
    miner = _build_miner(f"{key}.miner", table.name, table.miner, context) if table.miner is not None else None
    loss = _related(key, loss, context)
    if table.nested:
        if table.nested[-1] != context["embedding_size"]:
            raise ConfigError(
                f"found {table.nested}; the last size must be model.embedding_size, {context['embedding_size']}",
                key=f"{key}.nested",
            )
        with located(f"{key}.nested"):
            loss = NestedLoss(loss, table.nested)
    if table.regularizer is not None:
        regularizer = _component(f"{key}.regularizer", "regularizer", table.regularizer, context)
        with located(f"{key}.regularizer"):
            loss = RegularizedLoss(loss, regularizer, table.regularizer.weight)
    _check_optimizer_has_parameters(key, table, loss)
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


def _check_regularizer_weights(key: str, table: LossTable, loss: torch.nn.Module) -> None:
    for name in table.settings:
        part = name.removesuffix("_reg_weight")
        if part != name and getattr(loss, f"{part}_regularizer", None) is None:
            raise ConfigError(
                f"{table.name} has no {part}_regularizer to weight; add [{key}.regularizer] with name and weight",
                key=f"{key}.{name}",
            )


def _check_optimizer_has_parameters(key: str, table: LossTable, loss: torch.nn.Module) -> None:
    """Allow ``[loss.optimizer]`` without parameters beside a regularizer, for sweeps."""
    if table.optimizer and table.regularizer is None and next(loss.parameters(), None) is None:
        raise ConfigError(
            f"{table.name} has no parameters here that an optimizer would train; leave it out",
            key=f"{key}.optimizer.{next(iter(table.optimizer))}",
        )


def _build_miner(key: str, loss: str, table: NamedTable, context: Mapping[str, Any]) -> torch.nn.Module:
    """Build a loss's miner; ConfigError if the loss cannot use it or nothing trains it."""
    miner = _related(key, _component(key, "miner", table, context), context)
    if "indices_tuple" not in registry.capabilities(registry.get(loss, "loss").cls):
        raise ConfigError(f"{loss} does not accept a miner's indices_tuple", key=key)
    if next(miner.parameters(), None) is not None:
        raise ConfigError(
            f"{table.name} has parameters (a learned distance) that nothing would train; use a loss that "
            "has such a distance and mines by itself",
            key=key,
        )
    return miner


def _related(key: str, module: torch.nn.Module, context: Mapping[str, Any]) -> torch.nn.Module:
    """Return a module that uses the context's relation, wrapped if needed."""
    from pml_ext.losses import WithRelation, relation_of

    relation = context.get("relation")
    if relation is None or relation_of(module) is not None:
        return module
    with located(key):
        return WithRelation(module, relation)


def own_optimizer(optimizer: OptimizerTable, loss: LossTable) -> OptimizerTable:
    """Return ``[loss.optimizer]`` merged over ``[optimizer]``."""
    try:
        return OptimizerTable.model_validate(merged(optimizer.model_dump(), loss.optimizer))
    except ValidationError as error:
        raise wrong_setting(error).inside("loss.optimizer") from None


def build_optimizer(
    table: OptimizerTable, parameters: Iterable[Any], lr_factor: float = 1.0, key: str = "optimizer"
) -> torch.optim.Optimizer:
    """Build the torch optimizer of a table; ``key`` is for errors."""
    with located(key, table):
        optimizer: torch.optim.Optimizer = table.optimizer(
            parameters, lr=table.lr * lr_factor, weight_decay=table.weight_decay, **table.settings
        )
    return optimizer


def placeholder_classes(table: DataTable) -> list[str]:
    """Return class names that fit the relation, to check a recipe without data."""
    relation = table.relation
    if relation is not None and relation.name == "near":
        return ["0", "1"]  # names that are numbers
    settings = {} if relation is None else relation.settings
    level = settings.get("level", 1)  # of a hierarchy, whose tree is then at least one level deeper
    ancestors = "/".join(["parent"] * level) if isinstance(level, int) and 0 < level < 100 else "parent"
    return [f"{ancestors}/0", f"{ancestors}/1", str(settings.get("unknown", "unknown"))]


def _component(key: str, kind: str, table: NamedTable, context: Mapping[str, Any]) -> Any:
    """Build a component; losses that need labels 0 to ``num_classes`` - 1 get them."""
    component = checked_component(key, kind, table, context)
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
    """Raise ConfigError unless a reducer has an ``accepted`` number of class weights."""
    from pml_ext import pml

    try:
        pml.check_class_weights(loss, accepted, classes)
    except ValueError as error:
        raise ConfigError(str(error), key="loss.reducer") from None


def checked_component(key: str, kind: str, table: NamedTable, context: Mapping[str, Any]) -> Component:
    """Return a table's component; ConfigError for an unknown name or setting."""
    with located(f"{key}.name"):
        component = registry.get(table.name, kind)
    if kind != "sampler" and _settings_by_class(component) and "num_classes" not in context:
        raise ConfigError(
            f"{table.name} keeps values for each class (num_classes), but clusters change with each epoch; "
            "use a loss of pairs or triplets",
            key=key,
        )
    _, missing = registry.fill_settings(component.cls, context, table.settings)
    checked_settings(key, table.name, component.settings, table.settings, component.settings.keys() - set(missing))
    return component


def _settings_by_class(component: Component) -> set[str]:
    return component.settings.keys() & {"num_classes", "class_labels"}


def _number_labels(classes: list[int], loss: Any, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Replace labels by their indices in the sorted ``classes``."""
    import torch

    def numbered(labels: torch.Tensor | None) -> torch.Tensor | None:
        if labels is None:
            return None
        return torch.searchsorted(torch.tensor(classes, device=labels.device), labels)

    # labels and ref_labels are the second and the fifth argument of a loss
    positional = [numbered(value) if place in (1, 4) else value for place, value in enumerate(given)]
    of_labels = {name: numbered(named[name]) for name in ("labels", "ref_labels") if name in named}
    return tuple(positional), named | of_labels
