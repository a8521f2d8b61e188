"""Looks up every name of a recipe and checks every setting, so that a run does not fail on one an hour later."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from pydantic import BaseModel, ValidationError

from ... import registry
from ...components import KINDS
from ...data import build_transforms
from ...errors import ConfigError, PmlExtError, shortened
from ...registry import BuildContext
from .building import (
    FROM_RUN_FOR_DATA,
    FROM_RUN_FOR_TRUNK,
    build,
    build_loss,
    build_optimizer,
    dataset_factory,
    loss_context,
    metric_names,
    options_of,
    own_optimizer,
    trunk_factory,
)
from .papers import quoted
from .schema import OPTIMIZERS, SHUFFLE, LossTable, MemoryTable, NamedTable, OptimizerTable, Recipe
from .values import adapter_of, alike, reason_of, refusal, strictly, wanted_by

# What the run fills in where a component wants it; here with stand-ins, so that constructors can be tried.
_SAMPLER_CONTEXT: BuildContext = {
    "labels": [label for label in range(4096) for _ in range(2)],
    "length_before_new_iter": 1 << 20,
    "batch_size": 2,
    "seed": 0,
}


class _KeyProblem(Exception):
    """Something is wrong with the value of a key."""

    def __init__(self, key: str, text: object) -> None:
        super().__init__(key, text)
        self.key, self.text = key, str(text)


def validate(tables: Mapping[str, Any], source: str, quotes: bool = True) -> Recipe:
    """A recipe from plain tables, with every name and setting checked.

    Args:
        tables: the recipe's tables.
        source: its file or name, for error texts.
        quotes: whether what it quotes of a paper is to be there; of a finished run's it may have changed since.

    Raises:
        ConfigError: naming the source, the key, what was found and what is wanted.
    """
    try:
        recipe = Recipe.model_validate(tables)
    except ValidationError as error:
        raise ConfigError(shortened(f"{source}: {_first_problem(error)}")) from None
    except RecursionError:
        raise ConfigError(f"{source}: tables nested too deep; wanted the tables of a recipe") from None
    try:
        _check_names(recipe)
        if quotes:
            quoted(recipe.paper, recipe.data.name)
    except _KeyProblem as problem:
        raise ConfigError(shortened(f"{source}: {problem.key}: {problem.text}")) from None
    except ConfigError as error:
        raise ConfigError(shortened(f"{source}: {error}")) from None
    return recipe


def _first_problem(error: ValidationError) -> str:
    problem = error.errors()[0]
    key = ".".join(str(part) for part in problem["loc"]) or "the recipe"
    message = problem["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    if problem["type"] == "extra_forbidden":
        unknown = str(problem["loc"][-1])
        return f"{key}: {_unknown_key('key', unknown, _fields_at(problem['loc'][:-1]))}"
    if problem["type"] == "missing":
        return f"{key}: missing, and without a default"
    if problem["type"] == "value_error":
        return f"{key}: {message}"
    return f"{key}: found {problem['input']!r}; {message}"


def _unknown_key(what: str, key: str, known: Iterable[str]) -> str:
    """Describe a key that a table does not have: the tables that have it, or else the nearest keys."""

    def tables(model: type[BaseModel], path: str) -> Iterator[str]:
        if key in model.model_fields and path:
            yield path
        for name, field in model.model_fields.items():
            inner = next(filter(_is_table, (field.annotation, *typing.get_args(field.annotation))), None)
            if inner is not None and name != "stages":
                yield from tables(inner, f"{path}.{name}".strip("."))

    found = " or ".join(f"[{table}]" for table in sorted(tables(Recipe, ""), key=lambda table: table.count(".")))
    return f"no {what} {key!r}; it belongs to {found}" if found else registry.unknown(what, key, known)


def _is_table(annotation: Any) -> bool:
    return inspect.isclass(annotation) and issubclass(annotation, BaseModel)


def _fields_at(location: tuple[int | str, ...]) -> list[str]:
    model: Any = Recipe
    for part in location:
        if isinstance(part, str) and part in model.model_fields:
            annotation = model.model_fields[part].annotation
            candidates = [annotation, *typing.get_args(annotation)]
            model = next((c for c in candidates if inspect.isclass(c) and issubclass(c, BaseModel)), model)
    return list(model.model_fields)


def _check_names(recipe: Recipe) -> None:
    """Looks up every name and checks every setting, so that a run does not fail on one an hour later."""
    factory = _looked_up("data.name", lambda: dataset_factory(recipe.data.name))
    _check_call("data", recipe.data.name, options_of(factory, FROM_RUN_FOR_DATA), recipe.data.settings)
    augment = options_of(build_transforms, ("image_size", "channels", "crop", "normalize", "pipeline"))
    _check_call("data.augment", "augment", augment, recipe.data.augment)
    trunk = recipe.model.trunk
    factory = _looked_up("model.trunk.name", lambda: trunk_factory(trunk.name))
    _check_call("model.trunk", trunk.name, options_of(factory, FROM_RUN_FOR_TRUNK), trunk.settings)
    _check_optimizer("optimizer", recipe.optimizer)
    for index, stage in enumerate(recipe.all_stages()):
        prefix = f"stages.{index}." if index < len(recipe.stages) else ""
        _check_loss(f"{prefix}loss", stage.loss, recipe)
        assert stage.sampler is not None
        _check_memory(f"{prefix}loss.memory", stage.loss.memory, stage.sampler.batch_size, recipe.schedule.epochs)
        if stage.sampler.name != SHUFFLE:
            _check_component(f"{prefix}sampler", "sampler", stage.sampler, _SAMPLER_CONTEXT)
    if recipe.evaluation.shortlist is not None:
        context = loss_context(recipe, [0, 1])
        from ...evaluation import learned_metric

        losses = (build_loss(stage.loss, context)[0] for stage in recipe.all_stages())
        if not any(learned_metric(loss.modules()) for loss in losses):
            raise _KeyProblem(
                "evaluation.shortlist",
                f"found {recipe.evaluation.shortlist}, but no loss of the recipe "
                "has a learned metric to re-rank by; leave it out",
            )
    if recipe.evaluation.select is not None:
        known = metric_names(recipe)
        if recipe.evaluation.select not in known:
            raise _KeyProblem("evaluation.select", registry.unknown("metric", recipe.evaluation.select, known))


def _check_memory(key: str, table: MemoryTable | None, batch_size: int, epochs: int) -> None:
    if table is None:
        return
    if table.size < batch_size:
        raise _KeyProblem(f"{key}.size", f"found {table.size}; a memory holds at least one batch, here {batch_size}")
    if table.start_epoch > epochs:
        raise _KeyProblem(f"{key}.start_epoch", f"found {table.start_epoch}; the run has {epochs} epochs")


def _check_loss(key: str, table: LossTable, recipe: Recipe) -> None:
    context = loss_context(recipe, [0, 1])
    if recipe.data.labels == "clusters":
        _check_without_classes(key, table)
    _check_component(key, "loss", table, context)
    if table.miner is not None:
        _check_component(f"{key}.miner", "miner", table.miner, context)
        if "indices_tuple" not in registry.get(table.name, "loss").capabilities:
            raise _KeyProblem(f"{key}.miner", f"{table.name} takes no miner's indices_tuple")
        if any(True for _ in build("miner", table.miner, context).parameters()):
            raise _KeyProblem(
                f"{key}.miner",
                f"{table.miner.name} has parameters here (a learned distance), which "
                "nothing would train; take a loss that has them and mines by them itself",
            )
    if table.regularizer is not None:
        _check_component(f"{key}.regularizer", "regularizer", table.regularizer, context)
    if table.memory is not None:
        try:
            build_loss(table, context)
        except Exception as error:
            raise _KeyProblem(f"{key}.memory", reason_of(error)) from None
    try:
        _check_optimizer(f"{key}.optimizer", own_optimizer(recipe.optimizer, table))
    except ValidationError as error:
        raise _KeyProblem(f"{key}.optimizer", _first_problem(error)) from None


def _check_without_classes(key: str, table: LossTable) -> None:
    """Refuses what keeps something of a class from one epoch to the next, where each epoch has clusters of its own."""
    if table.memory is not None:
        raise _KeyProblem(
            f"{key}.memory",
            "it keeps labels of past batches, and with data.labels = 'clusters' each "
            "epoch has others; leave out [loss.memory]",
        )
    for inner, kind, name in _components_in(key, "loss", table.name, table.model_dump()):
        component = _looked_up(f"{inner}.name", functools.partial(registry.get, name, kind))
        if component.settings.keys() & {"num_classes", "class_labels"}:
            raise _KeyProblem(
                inner,
                f"{name} keeps something for each class (num_classes), and with data.labels = "
                "'clusters' each epoch has other classes; take a loss of pairs or triplets",
            )


def _components_in(key: str, kind: str, name: str, settings: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Key, kind and name of a component, and of components in its settings."""
    yield key, kind, name
    for inner, value in settings.items():
        of = inner.rsplit("_", 1)[-1]
        if isinstance(value, Mapping) and isinstance(value.get("name"), str) and of in KINDS:
            yield from _components_in(f"{key}.{inner}", of, value["name"], value)


def _check_component(key: str, kind: str, table: NamedTable, context: Mapping[str, Any]) -> None:
    component = _looked_up(f"{key}.name", lambda: registry.get(table.name, kind))
    lacking = registry.required(component.cls, context, table.settings)[1]
    _check_call(key, table.name, component.settings, table.settings, supplied=set(component.settings) - set(lacking))
    if kind == "sampler":  # its arguments are the data's; tried when they are there
        return
    try:
        build(kind, table, context)
    except PmlExtError as error:
        raise _KeyProblem(key, error) from None
    except Exception as error:  # what constructors raise is not limited
        raise _KeyProblem(key, refusal(table.name, table.settings, error)) from None


def _check_optimizer(key: str, table: OptimizerTable) -> None:
    if table.name not in OPTIMIZERS:
        raise _KeyProblem(f"{key}.name", registry.unknown("optimizer", table.name, OPTIMIZERS))
    accepted = dict(inspect.signature(OPTIMIZERS[table.name]).parameters)
    _check_call(key, table.name, accepted, table.settings, supplied=("params",))
    try:
        build_optimizer(table, [torch.nn.Parameter(torch.zeros(1))])
    except Exception as error:
        raise _KeyProblem(key, refusal(table.name, table.settings, error)) from None


def _looked_up(key: str, look_up: Callable[[], Any]) -> Any:
    try:
        return look_up()
    except PmlExtError as error:
        raise _KeyProblem(key, error) from None


def _check_call(
    key: str,
    owner: str,
    accepted: Mapping[str, inspect.Parameter],
    given: Mapping[str, Any],
    supplied: Iterable[str] = (),
) -> None:
    """Checks the names and types of settings, and that none is missing but those that the run supplies."""
    for name, value in given.items():
        if name not in accepted:
            raise _KeyProblem(f"{key}.{name}", _unknown_key(f"setting of {owner}", name, accepted))
        _check_type(f"{key}.{name}", accepted[name], value)
    for name, parameter in accepted.items():
        if parameter.default is parameter.empty and name not in given and name not in supplied:
            raise _KeyProblem(f"{key}.{name}", f"missing, and {owner} has no default for it")


def _check_type(key: str, parameter: inspect.Parameter, value: Any) -> None:
    """Checks a value against the annotation, or against the default's type where that says nothing."""
    annotation, default = parameter.annotation, parameter.default
    adapter, kind = adapter_of(annotation), key.rsplit(".", 1)[-1].rsplit("_", 1)[-1]
    if kind in KINDS and isinstance(value, dict) and isinstance(value.get("name"), str):
        return  # a component of its own, built and so checked later
    if adapter is None:
        if kind in KINDS and parameter.default is None:
            raise _KeyProblem(key, f"found {value!r}; wanted a table with the name of a {kind}")
        if isinstance(default, (bool, int, float, str)) and not alike(default, value):
            wanted = {bool: "true or false", str: "text"}.get(type(default), "a number")
            raise _KeyProblem(key, f"found {value!r}; wanted {wanted} (default {default!r})")
        return
    try:
        result = strictly(adapter, value)
    except ValidationError as error:
        raise _KeyProblem(key, f"found {value!r}; {wanted_by(annotation, error)}") from None
    if isinstance(value, (bool, float)) and not isinstance(result, type(value)):  # true is no 1, and 1.0 is none
        raise _KeyProblem(key, f"found {value!r}; wanted {inspect.formatannotation(annotation)}")
