"""Recipes: one TOML file says what to train, on what, how, and how it is tested.

A recipe is read, merged with what it ``extends``, overridden by ``--set``, split by its ``[sweep]``, and validated
whole before any data are loaded. Every error names the file, the key, what was found and what is wanted.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import itertools
import json
import tomllib
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from .. import registry
from ..building import BuildContext
from ..data import DataSplits, build_transforms, folder
from ..devices import Precision
from ..errors import ConfigError, PmlExtError, UnknownNameError
from ..evaluation import learned_metric
from ..losses import CrossBatchMemory, RegularizedLoss

SHUFFLE = "shuffle"  # the sampler name that means plain shuffling
OPTIMIZERS = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "sgd": torch.optim.SGD,
}


class _Table(BaseModel):
    """A table of a recipe: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", strict=True)


class _NamedTable(_Table):
    """A table with a ``name`` and that thing's own settings beside the table's keys."""

    model_config = ConfigDict(extra="allow", strict=True)

    name: str

    @property
    def settings(self) -> dict[str, Any]:
        """The keys that belong to what is named."""
        return dict(self.model_extra or {})


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class DataTable(_NamedTable):
    """``[data]``: the data set, its options, and ``[data.augment]``, settings of ``build_transforms``."""

    workers: int = Field(0, ge=0)
    augment: dict[str, Any] = {}


class ModelTable(_Table):
    """``[model]``: a trunk from images to features, and an embedder from features to embeddings."""

    trunk: Annotated[_NamedTable, BeforeValidator(_named)]
    embedding_size: int = Field(64, ge=1)
    hidden_sizes: list[Annotated[int, Field(ge=1)]] = []
    freeze_batch_norm: bool = False


class OptimizerTable(_NamedTable):
    """``[optimizer]``: a torch optimizer with its options; the embedder's learning rate is ``lr * head_lr_factor``.

    ``scheduled``, of ``[loss.optimizer]``: the schedule applies to the loss's own parameters too.
    """

    name: str = "adam"
    lr: float = Field(1e-3, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    head_lr_factor: float = Field(1.0, gt=0)
    scheduled: bool = False


class RegularizerTable(_NamedTable):
    """``[loss.regularizer]``: a regularizer, labelled or not, added to the loss with a weight."""

    weight: float = 1.0


class MemoryTable(_Table):
    """``[loss.memory]``: a :class:`pml_ext.CrossBatchMemory` of so many embeddings, used from an epoch on."""

    size: int = Field(ge=1)
    start_epoch: int = Field(1, ge=1)


class LossTable(_NamedTable):
    """``[loss]``: the loss, its miner, regularizer and memory, and how its own parameters are trained."""

    miner: Annotated[_NamedTable, BeforeValidator(_named)] | None = None
    regularizer: Annotated[RegularizerTable, BeforeValidator(_named)] | None = None
    memory: MemoryTable | None = None
    optimizer: dict[str, Any] = {}


class SamplerTable(_NamedTable):
    """``[sampler]``: how batches are composed; an epoch has ``iterations`` of them, or as many as one pass gives."""

    name: str = SHUFFLE
    batch_size: int = Field(128, ge=2)
    iterations: int | None = Field(None, ge=1)


class StageTable(_Table):
    """``[[stages]]``: epochs with another loss (and sampler), before the recipe's own."""

    epochs: int = Field(ge=1)
    loss: LossTable
    sampler: SamplerTable | None = None


class ScheduleTable(_Table):
    """``[schedule]``: how many epochs, those of the stages included, and how the learning rate falls."""

    epochs: int = Field(ge=1)
    name: Literal["constant", "multi-step", "cosine"] = "constant"
    milestones: list[Annotated[int, Field(ge=1)]] = []
    gamma: float = Field(0.1, gt=0, le=1)

    @model_validator(mode="after")
    def _milestones_fit(self) -> ScheduleTable:
        if (self.name == "multi-step") != bool(self.milestones):
            raise ValueError("milestones (epochs) go with name = 'multi-step', and with it alone")
        return self


class EngineTable(_Table):
    """``[engine]``: how a training step is computed.

    Args:
        precision: of the network, forward and backward; the loss is always computed in full precision. ``"float16"``
            scales the loss and leaves out steps whose gradients overflow.
        compile: trunk and embedder are compiled by ``torch.compile``, which takes up to minutes before the first step.
        channels_last: images and convolutions lie in memory with the channels last.
        clip_gradient: the greatest norm of the gradients of trunk and embedder together; the loss's own parameters do
            not count and are not clipped. None leaves gradients as they are.
    """

    precision: Precision = "float32"
    compile: bool = False
    channels_last: bool = False
    clip_gradient: float | None = Field(None, gt=0)


class EvaluationTable(_Table):
    """``[evaluation]``: what is measured, and how the tested epoch is chosen."""

    recall_at: list[Annotated[int, Field(ge=1)]] = [1, 2, 4, 8]
    precision_at: list[Annotated[int, Field(ge=1)]] = [1]
    clusters_per_class: list[Annotated[int, Field(ge=1)]] = [1]
    lone_queries: Literal["miss", "drop"] = "miss"
    shortlist: int | None = Field(None, ge=1)
    batch_size: int = Field(256, ge=1)
    validation: float = Field(0.0, ge=0, lt=1)
    every: int = Field(1, ge=1)
    select: str | None = None

    @model_validator(mode="after")
    def _selection_needs_classes(self) -> EvaluationTable:
        if (self.select is None) != (self.validation == 0):
            raise ValueError(
                "select (a metric to choose the epoch by) goes with validation (the share of training classes to hold "
                "out for that), for example validation = 0.2, select = 'map_at_r'"
            )
        if not {1, 2, 4, 8} <= set(self.recall_at):
            raise ValueError("recall_at includes 1, 2, 4 and 8, which every run reports")
        if 1 not in self.precision_at or 1 not in self.clusters_per_class:
            raise ValueError("precision_at and clusters_per_class include 1, which every run reports")
        return self


class PaperTable(BaseModel):
    """``[paper]``: where the settings come from and what the paper reports."""

    model_config = ConfigDict(extra="allow")

    table: str = ""
    note: str = ""


class Recipe(_Table):
    """A validated recipe.

    Args:
        description: one line on what it is for.
        data: the data set and its augmentation.
        model: trunk and embedder.
        loss: the loss with what belongs to it.
        sampler: how batches are composed.
        stages: epochs with other losses, before the recipe's own.
        optimizer: of the networks.
        schedule: epochs and learning rate.
        engine: how a training step is computed.
        evaluation: what is measured.
        paper: where the settings come from.
    """

    description: str = ""
    data: DataTable
    model: ModelTable
    loss: LossTable
    sampler: SamplerTable = SamplerTable()
    stages: list[StageTable] = []
    optimizer: OptimizerTable = OptimizerTable()
    schedule: ScheduleTable
    engine: EngineTable = EngineTable()
    evaluation: EvaluationTable = EvaluationTable()
    paper: PaperTable | None = None

    @model_validator(mode="after")
    def _stages_fit(self) -> Recipe:
        warm = sum(stage.epochs for stage in self.stages)
        if warm >= self.schedule.epochs:
            raise ValueError(f"the stages take {warm} epochs, so schedule.epochs must be more than that")
        return self

    def all_stages(self) -> list[StageTable]:
        """The stages with the recipe's own loss as the last, every sampler filled in."""
        warm = sum(stage.epochs for stage in self.stages)
        own = StageTable(epochs=self.schedule.epochs - warm, loss=self.loss, sampler=self.sampler)
        return [stage.model_copy(update={"sampler": stage.sampler or self.sampler}) for stage in self.stages] + [own]

    def as_dict(self) -> dict[str, Any]:
        """The recipe as plain tables, defaults included, fit for TOML."""
        return typing.cast("dict[str, Any]", _without_none(self.model_dump()))


def load_recipes(name: str, overrides: Iterable[str] = ()) -> dict[str, Recipe]:
    """Reads a recipe and validates it whole.

    Args:
        name: a registered recipe (``"cbml/digits"``), one variant of a sweep (``"cbml/sweep@0.1"``), or the path of a
            ``.toml`` file.
        overrides: ``"key=value"`` pairs, ``loss.mvc_weight=0.1``; values in TOML, or else taken as text.

    Returns:
        ``{name: recipe}``: one entry, or one a variant where the recipe has a ``[sweep]``.

    Raises:
        ConfigError: naming the file, the key, what was found and what is wanted.
        UnknownNameError: no such recipe.
    """
    base, variant = _without_variant(name)
    source, tables = _read(base)
    sweep = tables.pop("sweep", {})
    if not isinstance(sweep, dict) or not all(isinstance(values, list) and values for values in sweep.values()):
        raise ConfigError(f'{source}: [sweep] has lists of values by key, for example "loss.alpha" = [36, 45]')
    for override in sorted(overrides, key=_names_something, reverse=True):
        key, found, text = override.partition("=")
        if not found or not key.strip():
            raise ConfigError(f"--set {override}: wanted KEY=VALUE, for example loss.name=pml/contrastive")
        _assign(tables, key.strip(), _value(text.strip()), f"--set {override}")
        sweep.pop(key.strip(), None)
    variants = {base if not sweep else f"{base}@{_label(values)}": dict(zip(sweep, values, strict=True))
                for values in itertools.product(*sweep.values())}  # fmt: skip
    if variant:
        if name not in variants:
            raise UnknownNameError(f"no variant {name!r}; variants: {', '.join(variants)}")
        variants = {name: variants[name]}
    recipes = {}
    for full_name, settings in variants.items():
        mine = copy.deepcopy(tables)
        for key, value in settings.items():
            _assign(mine, key, value, f"{source}: [sweep]")
        recipes[full_name] = validate(mine, source)
    return recipes


def validate(tables: Mapping[str, Any], source: str) -> Recipe:
    """A recipe from plain tables, with every name and setting checked.

    Args:
        tables: the recipe's tables.
        source: its file or name, for error texts.

    Raises:
        ConfigError: naming the source, the key, what was found and what is wanted.
    """
    try:
        recipe = Recipe.model_validate(tables)
    except ValidationError as error:
        raise ConfigError(f"{source}: {_first_problem(error)}") from None
    try:
        _check_names(recipe)
    except _KeyProblem as problem:
        raise ConfigError(f"{source}: {problem.key}: {problem.text}") from None
    return recipe


# Reading and merging


def _names_something(override: str) -> bool:
    """Whether an override names what a table is about; those go first, since another name begins the table anew."""
    key = override.partition("=")[0].strip()
    return "." not in key or key.endswith((".name", ".trunk", ".miner", ".regularizer"))


def _without_variant(name: str) -> tuple[str, str]:
    """A recipe's name or path, and the variant after its ``@``; a path's folders may have an ``@`` of their own."""
    path, found, variant = name.rpartition(".toml")
    if found and (not variant or variant.startswith("@")):
        return path + found, variant.removeprefix("@")
    base, _, variant = name.partition("@")
    return base, variant


def read_tables(name: str) -> dict[str, Any]:
    """A recipe's tables, merged with what it extends, not validated.

    Args:
        name: a registered recipe or the path of a ``.toml`` file.
    """
    return _read(name)[1]


def names_in(recipe: str) -> set[str]:
    """The ``name`` of everything that a registered recipe names; nothing, if its file cannot be read.

    Args:
        recipe: a registered recipe.
    """
    try:
        return set(_names(read_tables(recipe)))
    except (ConfigError, UnknownNameError):
        return set()


def _names(tables: Any) -> Iterator[str]:
    if isinstance(tables, dict):
        for key, value in tables.items():
            if isinstance(value, str) and key in ("name", "trunk", "miner", "regularizer"):
                yield value  # a name alone stands for a table with it
            yield from _names(value)
    elif isinstance(tables, list):
        for value in tables:
            yield from _names(value)


def _read(name: str, children: tuple[str, ...] = ()) -> tuple[str, dict[str, Any]]:
    """The file's name and its tables, merged into those that it extends."""
    if name in children:
        raise ConfigError(f"{name}: extends itself: {' -> '.join((*children, name))}")
    file: Traversable
    if name.endswith(".toml"):
        file = Path(name)
        if not file.is_file():
            raise ConfigError(f"{name}: no such recipe file")
    else:
        file = registry.recipe(name)
    try:
        tables = tomllib.loads(file.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from None
    tables.pop("run", None)  # what a run writes of itself beside its recipe
    parent = tables.pop("extends", None)
    if parent is None:
        return str(file), tables
    if not isinstance(parent, str):
        raise ConfigError(f"{file}: extends: found {parent!r}, wanted the name of a recipe")
    if parent.endswith(".toml") and isinstance(file, Path) and not Path(parent).is_absolute():
        parent = str(file.parent / parent)
    try:
        _, base = _read(parent, (*children, name))
    except UnknownNameError as error:
        raise ConfigError(f"{file}: extends: {error}") from None
    base.pop("paper", None)  # what a paper reports belongs to the settings of the recipe that says so
    return str(file), merged(base, tables)


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Tables merged key by key; a table that names something else replaces the old one, settings and all."""
    result = dict(base)
    for key, value in over.items():
        old = result.get(key)
        if isinstance(old, dict) and isinstance(value, dict) and value.get("name", old.get("name")) == old.get("name"):
            result[key] = merged(old, value)
        else:
            result[key] = value
    return result


def _assign(tables: dict[str, Any], key: str, value: Any, source: str) -> None:
    nested: Any = value
    for part in reversed(key.split(".")):
        nested = {part: nested}
    try:
        updated = merged(tables, nested)
    except (AttributeError, TypeError):
        raise ConfigError(f"{source}: {key!r} is not a key of a recipe") from None
    tables.clear()
    tables.update(updated)


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _label(values: Iterable[Any]) -> str:
    return ",".join(str(value.get("name", value)) if isinstance(value, dict) else str(value) for value in values)


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [_without_none(item) for item in value]
    return value


# Checking


class _KeyProblem(Exception):
    """Something is wrong with the value of a key."""

    def __init__(self, key: str, text: object) -> None:
        super().__init__(key, text)
        self.key, self.text = key, str(text)


def _first_problem(error: ValidationError) -> str:
    problem = error.errors()[0]
    key = ".".join(str(part) for part in problem["loc"]) or "the recipe"
    message = problem["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    if problem["type"] == "extra_forbidden":
        fields = _fields_at(problem["loc"][:-1])
        return f"{key}: {registry.unknown('key', str(problem['loc'][-1]), fields)}"
    if problem["type"] == "missing":
        return f"{key}: missing, and without a default"
    if problem["type"] == "value_error":
        return f"{key}: {message}"
    return f"{key}: found {problem['input']!r}; {message}"


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
    _check_call("data", recipe.data.name, _options(factory, _OF_DATA), recipe.data.settings)
    augment = _options(build_transforms, ("image_size", "channels", "crop", "normalize"))
    _check_call("data.augment", "augment", augment, recipe.data.augment)
    trunk = recipe.model.trunk
    factory = _looked_up("model.trunk.name", lambda: registry.trunk(trunk.name))
    _check_call("model.trunk", trunk.name, _options(factory, _OF_TRUNK), trunk.settings)
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
        losses = (build_loss(stage.loss, context)[0] for stage in recipe.all_stages())
        if not any(learned_metric(loss.modules()) for loss in losses):
            raise _KeyProblem("evaluation.shortlist", f"found {recipe.evaluation.shortlist}, but no loss of the recipe "
                              "has a learned metric to re-rank by; leave it out")  # fmt: skip
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


def metric_names(recipe: Recipe) -> list[str]:
    """The names of the metrics that a run of the recipe reports."""
    table = recipe.evaluation
    ranked = [f"recall_at_{k}" for k in sorted(table.recall_at)]
    ranked += [f"precision_at_{k}" for k in sorted(table.precision_at)]
    clusters = [f"{name}_{count}" for count in sorted(table.clusters_per_class) if count > 1
                for name in ("nmi", "f1", "purity")]  # fmt: skip
    return [*ranked, "r_precision", "map_at_r", "nmi", "f1", "purity", *clusters]


def dataset_factory(name: str) -> Callable[..., Any]:
    """The factory of a data set; ``folder:PATH`` gives the factory of folders with its path filled in."""
    prefix, _, path = name.partition(":")
    if prefix != "folder":
        return registry.dataset(name)
    if not path:
        raise ConfigError("found 'folder:', wanted folder:PATH, a folder with one sub-folder of images a class")

    return functools.partial(folder, path=path)


# What a run fills in by itself: no options of a recipe.
_OF_DATA, _OF_TRUNK = ("root",), ("in_channels", "image_size")


def _options(factory: Callable[..., Any], filled: Iterable[str]) -> dict[str, inspect.Parameter]:
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
        return factory(root, **_converted(factory, _OF_DATA, table.settings))  # type: ignore[no-any-return]


def build_trunk(table: _NamedTable, channels: int, image_size: int, trained: bool = False) -> torch.nn.Module:
    """A trunk from its table.

    Args:
        table: ``[model] trunk``.
        channels: of the images.
        image_size: of the images, in pixels.
        trained: whether its weights will be a run's, so that no pretrained ones are fetched.

    Raises:
        ConfigError: the trunk refuses an option.
    """
    factory = registry.trunk(table.name)
    given = {name: value for name, value in table.settings.items() if not (trained and name == "weights")}
    with _refusing("model.trunk", table):
        return factory(channels, image_size, **_converted(factory, _OF_TRUNK, given))  # type: ignore[no-any-return]


def _converted(factory: Callable[..., Any], filled: Iterable[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """Options as a factory's annotations want them: a path for a text, say."""
    options = _options(factory, filled)
    adapters = {name: _adapter(options[name].annotation) for name in given}
    return {name: value if (adapter := adapters[name]) is None else _strictly(adapter, value)
            for name, value in given.items()}  # fmt: skip


@contextlib.contextmanager
def _refusing(key: str, table: _NamedTable) -> Iterator[None]:
    """What a factory says of its options, under their key."""
    try:
        yield
    except PmlExtError:
        raise
    except (ValueError, TypeError, AssertionError) as error:
        raise ConfigError(f"{key}: {table.name} refuses {_listed(table.settings)}: {error}") from error


def _listed(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value!r}" for name, value in settings.items()) or "no settings"


# What the run fills in where a component wants it; here with stand-ins, so that constructors can be tried.
_SAMPLER_CONTEXT: BuildContext = {
    "labels": [label for label in range(4096) for _ in range(2)],
    "length_before_new_iter": 1 << 20,
    "batch_size": 2,
    "seed": 0,
}


def loss_context(recipe: Recipe, labels: list[int]) -> BuildContext:
    """What a loss may ask for by argument name without a recipe saying it."""
    return {"embedding_size": recipe.model.embedding_size, "num_classes": len(labels), "class_labels": labels,
            "collect_stats": True}  # fmt: skip


def build(kind: str, table: _NamedTable, context: Mapping[str, Any]) -> Any:
    """A component from its table; settings that the table leaves out come from the context.

    Args:
        kind: the component's kind.
        table: its name and settings.
        context: a :class:`pml_ext.building.BuildContext`.
    """
    return registry.build(table.name, kind, context, **table.settings)


def build_loss(table: LossTable, context: Mapping[str, Any]) -> tuple[torch.nn.Module, torch.nn.Module | None]:
    """A loss with its regularizer and memory, and its miner, if the memory does not have that.

    Args:
        table: ``[loss]``.
        context: see :func:`loss_context`.
    """
    loss = build("loss", table, context)
    if table.regularizer is not None:
        loss = RegularizedLoss(loss, build("regularizer", table.regularizer, context), table.regularizer.weight)
    miner = build("miner", table.miner, context) if table.miner is not None else None
    if table.memory is None:
        return loss, miner
    memory = CrossBatchMemory(
        loss, context["embedding_size"], table.memory.size, miner, first_epoch=table.memory.start_epoch,
        collect_stats=True,
    )  # fmt: skip
    return memory, None


def _check_loss(key: str, table: LossTable, recipe: Recipe) -> None:
    context = loss_context(recipe, [0, 1])
    _check_component(key, "loss", table, context)
    if table.miner is not None:
        _check_component(f"{key}.miner", "miner", table.miner, context)
        if "indices_tuple" not in registry.get(table.name, "loss").capabilities:
            raise _KeyProblem(f"{key}.miner", f"{table.name} takes no miner's indices_tuple")
        if any(True for _ in build("miner", table.miner, context).parameters()):
            raise _KeyProblem(f"{key}.miner", f"{table.miner.name} has parameters here (a learned distance), which "
                              "nothing would train; take a loss that has them and mines by them itself")  # fmt: skip
    if table.regularizer is not None:
        _check_component(f"{key}.regularizer", "regularizer", table.regularizer, context)
    if table.memory is not None:
        try:
            build_loss(table, context)
        except (TypeError, ValueError) as error:
            raise _KeyProblem(f"{key}.memory", error) from None
    try:
        _check_optimizer(f"{key}.optimizer", own_optimizer(recipe.optimizer, table))
    except ValidationError as error:
        raise _KeyProblem(f"{key}.optimizer", _first_problem(error)) from None


def own_optimizer(optimizer: OptimizerTable, loss: LossTable) -> OptimizerTable:
    """How a loss's own parameters are trained: as the networks, but for what ``[loss.optimizer]`` says."""
    return OptimizerTable.model_validate(merged(optimizer.model_dump(), loss.optimizer))


def _check_component(key: str, kind: str, table: _NamedTable, context: Mapping[str, Any]) -> None:
    component = _looked_up(f"{key}.name", lambda: registry.get(table.name, kind))
    lacking = registry.required(component.cls, context, table.settings)[1]
    _check_call(key, table.name, component.settings, table.settings, supplied=set(component.settings) - set(lacking))
    if kind == "sampler":  # its arguments are the data's; tried when they are there
        return
    try:
        build(kind, table, context)
    except PmlExtError as error:
        raise _KeyProblem(key, error) from None
    except (ValueError, TypeError, AssertionError) as error:
        raise _KeyProblem(key, f"{table.name} refuses {_listed(table.settings)}: {error}") from None


def _check_optimizer(key: str, table: OptimizerTable) -> None:
    if table.name not in OPTIMIZERS:
        raise _KeyProblem(f"{key}.name", registry.unknown("optimizer", table.name, OPTIMIZERS))
    accepted = dict(inspect.signature(OPTIMIZERS[table.name]).parameters)
    _check_call(key, table.name, accepted, table.settings, supplied=("params",))
    try:
        build_optimizer(table, [torch.nn.Parameter(torch.zeros(1))])
    except (ValueError, TypeError) as error:
        raise _KeyProblem(key, error) from None


def build_optimizer(table: OptimizerTable, parameters: Iterable[Any], lr_factor: float = 1.0) -> torch.optim.Optimizer:
    """The torch optimizer of a table over some parameters."""
    optimizer = OPTIMIZERS[table.name]
    return optimizer(parameters, lr=table.lr * lr_factor, weight_decay=table.weight_decay, **table.settings)  # type: ignore[no-any-return,operator]


def _looked_up(key: str, look_up: Callable[[], Any]) -> Any:
    try:
        return look_up()
    except PmlExtError as error:
        raise _KeyProblem(key, error) from None


def _check_call(key: str, owner: str, accepted: Mapping[str, inspect.Parameter], given: Mapping[str, Any],
                supplied: Iterable[str] = ()) -> None:  # fmt: skip
    """Checks the names and types of settings, and that none is missing but those that the run supplies."""
    for name, value in given.items():
        if name not in accepted:
            raise _KeyProblem(f"{key}.{name}", registry.unknown(f"setting of {owner}", name, accepted))
        _check_type(f"{key}.{name}", accepted[name], value)
    for name, parameter in accepted.items():
        if parameter.default is parameter.empty and name not in given and name not in supplied:
            raise _KeyProblem(f"{key}.{name}", f"missing, and {owner} has no default for it")


def _check_type(key: str, parameter: inspect.Parameter, value: Any) -> None:
    """Checks a value against the annotation, or against the default's type where that says nothing."""
    annotation, default = parameter.annotation, parameter.default
    if isinstance(value, dict) and "name" in value:  # a component of its own, built and so checked later
        return
    adapter = _adapter(annotation)
    if adapter is None:
        if isinstance(default, (bool, int, float, str)) and not _alike(default, value):
            wanted = {bool: "true or false", str: "text"}.get(type(default), "a number")
            raise _KeyProblem(key, f"found {value!r}; wanted {wanted} (default {default!r})")
        return
    try:
        result = _strictly(adapter, value)
    except ValidationError as error:
        raise _KeyProblem(key, f"found {value!r}; {_wanted(annotation, error)}") from None
    if isinstance(value, (bool, float)) and not isinstance(result, type(value)):  # true is no 1, and 1.0 is none
        raise _KeyProblem(key, f"found {value!r}; wanted {inspect.formatannotation(annotation)}")


def _adapter(annotation: Any) -> TypeAdapter[Any] | None:
    """What reads values of an annotation; None where there is none to go by, or one that cannot be resolved."""
    if annotation is inspect.Parameter.empty or isinstance(annotation, str):
        return None
    own_config = inspect.isclass(annotation) and issubclass(annotation, BaseModel)
    config = None if own_config else ConfigDict(arbitrary_types_allowed=True)
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(annotation, config=config)
        with contextlib.suppress(ValidationError):
            _strictly(adapter, None)  # names inside it are resolved when it is first used
    except Exception:  # pydantic cannot make anything of it
        return None
    return adapter


def _strictly(adapter: TypeAdapter[Any], value: Any) -> Any:
    """A value as an annotation wants it, strictly: TOML has the types of JSON, so 16.0 is no integer, and "1" none."""
    return adapter.validate_json(json.dumps(value, default=str), strict=True)


def _wanted(annotation: Any, error: ValidationError) -> str:
    problems = error.errors()
    if any(problem["type"] == "needs_python_object" for problem in problems):
        return f"wanted {inspect.formatannotation(annotation)}; a component is a table with its name"
    texts = dict.fromkeys(problem["msg"].removeprefix("Input should be ") for problem in problems)
    return "input should be " + " or ".join(texts)


def _alike(default: Any, value: Any) -> bool:
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(default, bool) and isinstance(value, bool)
    return isinstance(value, str) == isinstance(default, str) and isinstance(value, (int, float, str))
