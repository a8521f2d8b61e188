"""Validation of a recipe before a run: every name is looked up and every setting is tried."""

from __future__ import annotations

import contextlib
import inspect
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from pydantic import BaseModel, TypeAdapter, ValidationError

from ... import registry
from ...components import KINDS
from ...data import build_transforms
from ...errors import ConfigError, PmlExtError, shortened
from ...registry import BuildContext
from .building import (
    FILLED_FOR_DATA,
    FILLED_FOR_TRUNK,
    adapter_of,
    build,
    build_loss,
    build_optimizer,
    convert,
    dataset_factory,
    loss_context,
    metric_names,
    options_of,
    own_optimizer,
    reason_of,
    refusal,
    trunk_factory,
)
from .papers import quoted
from .schema import OPTIMIZERS, SHUFFLE, LossTable, NamedTable, OptimizerTable, Recipe

_SAMPLER_CONTEXT: BuildContext = {  # stand-ins for what a run fills in
    "labels": [label for label in range(4096) for _ in range(2)],
    "length_before_new_iter": 1 << 20,
    "batch_size": 2,
    "seed": 0,
}


def validate(tables: Mapping[str, Any], source: str, quotes: bool = True) -> Recipe:
    """Return the recipe of plain tables, with every name and setting checked.

    Args:
        tables: the recipe's tables.
        source: its file or name, for error texts.
        quotes: check that a paper has the quoted rows; a finished run's paper may have changed since.

    Raises:
        ConfigError: naming the source, the key, what was found and what is wanted.
    """
    try:
        recipe = Recipe.model_validate(tables)
        _check_names(recipe)
        if quotes:
            quoted(recipe.paper, recipe.data.name)
    except ValidationError as error:
        raise ConfigError(shortened(f"{source}: {_first_problem(error)}")) from None
    except RecursionError:
        raise ConfigError(f"{source}: tables nested too deep; wanted the tables of a recipe") from None
    except ConfigError as error:
        raise ConfigError(shortened(f"{source}: {error}")) from None
    return recipe


def _error(key: str, text: object) -> ConfigError:
    return ConfigError(f"{key}: {text}")


def _first_problem(error: ValidationError) -> str:
    problem = error.errors()[0]
    *above, last = (str(part) for part in problem["loc"]) if problem["loc"] else ("the recipe",)
    key, message = ".".join([*above, last]), problem["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    if problem["type"] == "extra_forbidden":
        table: type[BaseModel] = Recipe
        for part in above:
            table = next(_tables_in(table, part), table)
        return f"{key}: {_unknown_key('key', last, table.model_fields)}"
    if problem["type"] == "missing":
        return f"{key}: missing, and without a default"
    return f"{key}: {message}" if problem["type"] == "value_error" else f"{key}: found {problem['input']!r}; {message}"


def _tables_in(table: type[BaseModel], name: str) -> Iterator[type[BaseModel]]:
    """Yield the classes of tables in the annotation of a field."""
    annotation = table.model_fields[name].annotation if name in table.model_fields else None
    for each in (annotation, *typing.get_args(annotation)):
        if inspect.isclass(each) and issubclass(each, BaseModel):
            yield each


def _unknown_key(what: str, key: str, known: Iterable[str]) -> str:
    """Describe a key that a table does not have: the tables that have it, or else the nearest keys."""

    def owners(table: type[BaseModel], path: str) -> Iterator[str]:
        if path and key in table.model_fields:
            yield path
        for name in table.model_fields:
            for inner in _tables_in(table, name):
                yield from owners(inner, f"{path}.{name}".strip("."))

    found = sorted((path for path in owners(Recipe, "") if "stages" not in path), key=lambda path: path.count("."))
    tables = " or ".join(f"[{path}]" for path in found)
    return f"no {what} {key!r}; it belongs to {tables}" if found else registry.unknown(what, key, known)


def _check_names(recipe: Recipe) -> None:
    with _located("data.name"):
        factory = dataset_factory(recipe.data.name)
    _check_settings("data", recipe.data.name, options_of(factory, FILLED_FOR_DATA), recipe.data.settings)
    augment = options_of(build_transforms, ("image_size", "channels", "crop", "normalize", "pipeline"))
    _check_settings("data.augment", "augment", augment, recipe.data.augment)
    trunk = recipe.model.trunk
    with _located("model.trunk.name"):
        factory = trunk_factory(trunk.name)
    _check_settings("model.trunk", trunk.name, options_of(factory, FILLED_FOR_TRUNK), trunk.settings)
    _check_optimizer("optimizer", recipe.optimizer)
    for index, stage in enumerate(recipe.all_stages()):
        prefix = f"stages.{index}." if index < len(recipe.stages) else ""
        assert stage.sampler is not None
        _check_loss(f"{prefix}loss", stage.loss, recipe, stage.sampler.batch_size)
        if stage.sampler.name != SHUFFLE:
            _check_component(f"{prefix}sampler", "sampler", stage.sampler, _SAMPLER_CONTEXT)
    evaluation = recipe.evaluation
    if evaluation.shortlist is not None:
        from ...evaluation import learned_metric

        losses = (build_loss(stage.loss, loss_context(recipe, [0, 1]))[0] for stage in recipe.all_stages())
        if not any(learned_metric(loss.modules()) for loss in losses):
            text = "but no loss of the recipe has a learned metric to re-rank by; leave it out"
            raise _error("evaluation.shortlist", f"found {evaluation.shortlist}, {text}")
    if evaluation.select is not None and evaluation.select not in (known := metric_names(recipe)):
        raise _error("evaluation.select", registry.unknown("metric", evaluation.select, known))


def _check_loss(key: str, table: LossTable, recipe: Recipe, batch_size: int) -> None:
    context = loss_context(recipe, [0, 1])
    if recipe.data.labels == "clusters":
        _check_without_classes(key, table)
    _check_component(key, "loss", table, context)
    if table.miner is not None:
        _check_component(f"{key}.miner", "miner", table.miner, context)
        if "indices_tuple" not in registry.get(table.name, "loss").capabilities:
            raise _error(f"{key}.miner", f"{table.name} takes no miner's indices_tuple")
        if any(True for _ in build("miner", table.miner, context).parameters()):
            raise _error(
                f"{key}.miner",
                f"{table.miner.name} has parameters here (a learned distance), which "
                "nothing would train; take a loss that has them and mines by them itself",
            )
    if table.regularizer is not None:
        _check_component(f"{key}.regularizer", "regularizer", table.regularizer, context)
    if (memory := table.memory) is not None:
        try:
            build_loss(table, context)
        except Exception as error:
            raise _error(f"{key}.memory", reason_of(error)) from None
        if memory.size < batch_size:
            text = f"found {memory.size}; a memory holds at least one batch, here {batch_size}"
            raise _error(f"{key}.memory.size", text)
        if memory.start_epoch > (epochs := recipe.schedule.epochs):
            raise _error(f"{key}.memory.start_epoch", f"found {memory.start_epoch}; the run has {epochs} epochs")
    try:
        _check_optimizer(f"{key}.optimizer", own_optimizer(recipe.optimizer, table))
    except ValidationError as error:
        raise _error(f"{key}.optimizer", _first_problem(error)) from None


def _check_without_classes(key: str, table: LossTable) -> None:
    """Refuse whatever keeps state of a class between epochs, since each epoch has clusters of its own."""
    if table.memory is not None:
        raise _error(
            f"{key}.memory",
            "it keeps labels of past batches, and with data.labels = 'clusters' each "
            "epoch has others; leave out [loss.memory]",
        )
    for inner, kind, name in _components_in(key, "loss", table.name, table.model_dump()):
        with _located(f"{inner}.name"):
            component = registry.get(name, kind)
        if component.settings.keys() & {"num_classes", "class_labels"}:
            raise _error(
                inner,
                f"{name} keeps something for each class (num_classes), and with data.labels = "
                "'clusters' each epoch has other classes; take a loss of pairs or triplets",
            )


def _components_in(key: str, kind: str, name: str, settings: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield key, kind and name of a component and of the components in its settings."""
    yield key, kind, name
    for inner, value in settings.items():
        if _is_component(inner, value):
            yield from _components_in(f"{key}.{inner}", inner.rsplit("_", 1)[-1], value["name"], value)


def _is_component(key: str, value: Any) -> bool:
    return key.rsplit("_", 1)[-1] in KINDS and isinstance(value, Mapping) and isinstance(value.get("name"), str)


def _check_component(key: str, kind: str, table: NamedTable, context: Mapping[str, Any]) -> None:
    with _located(f"{key}.name"):
        component = registry.get(table.name, kind)
    lacking = registry.required(component.cls, context, table.settings)[1]
    _check_settings(key, table.name, component.settings, table.settings, {*component.settings} - {*lacking})
    if kind != "sampler":  # a sampler is tried on the data's labels when these are there
        with _located(key, table):
            build(kind, table, context)


def _check_optimizer(key: str, table: OptimizerTable) -> None:
    if table.name not in OPTIMIZERS:
        raise _error(f"{key}.name", registry.unknown("optimizer", table.name, OPTIMIZERS))
    accepted = inspect.signature(OPTIMIZERS[table.name]).parameters
    _check_settings(key, table.name, accepted, table.settings, ("params",))
    with _located(key, table):
        build_optimizer(table, [torch.nn.Parameter(torch.zeros(1))])


@contextlib.contextmanager
def _located(key: str, table: NamedTable | None = None) -> Iterator[None]:
    """Put the key before the text of an error; other errors than ours are refusals of a table's settings."""
    try:
        yield
    except PmlExtError as error:
        raise _error(key, error) from None
    except Exception as error:  # constructors may raise anything
        if table is None:
            raise
        raise _error(key, refusal(table.name, table.settings, error)) from None


def _check_settings(
    key: str,
    owner: str,
    accepted: Mapping[str, inspect.Parameter],
    given: Mapping[str, Any],
    filled: Iterable[str] = (),
) -> None:
    """Check names and types of settings, and that all without a default are given or filled in by the run."""
    for name, value in given.items():
        if name not in accepted:
            raise _error(f"{key}.{name}", _unknown_key(f"setting of {owner}", name, accepted))
        if not _is_component(name, value):  # components are tried by building them
            _check_type(f"{key}.{name}", accepted[name], value)
    for name, parameter in accepted.items():
        if parameter.default is parameter.empty and name not in given and name not in filled:
            raise _error(f"{key}.{name}", f"missing, and {owner} has no default for it")


def _check_type(key: str, parameter: inspect.Parameter, value: Any) -> None:
    """Check a value against the annotation, or against the default's type where there is no usable annotation."""
    annotation, default = parameter.annotation, parameter.default
    adapter, kind = adapter_of(annotation), key.rpartition(".")[2].rsplit("_", 1)[-1]
    if adapter is None:
        if kind in KINDS and default is None:
            raise _error(key, f"found {value!r}; wanted a table with the name of a {kind}")
        annotation = {bool: bool, str: str, int: float, float: float}.get(type(default), Any)
        adapter = TypeAdapter(annotation)
    try:
        result = convert(adapter, value)
    except ValidationError as error:
        problems = error.errors()
        text = "input should be " + " or ".join(
            dict.fromkeys(p["msg"].removeprefix("Input should be ") for p in problems)
        )
        if any(problem["type"] == "needs_python_object" for problem in problems):
            text = f"wanted {inspect.formatannotation(annotation)}; a component is a table with its name"
        raise _error(key, f"found {value!r}; {text}") from None
    if isinstance(value, (bool, float)) and not isinstance(result, type(value)):  # true is not 1, nor is 1.0
        raise _error(key, f"found {value!r}; wanted {inspect.formatannotation(annotation)}")
