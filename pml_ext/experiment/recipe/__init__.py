"""Recipes: TOML files with data set, network, loss, sampler, optimizer, schedule and evaluation of a training.

A recipe is read, merged with what it ``extends``, overridden by ``--set``, split by its ``[sweep]``, and validated
whole before any data are loaded. Every error names the file, the key, what was found and what is wanted.
"""

from .building import (
    build_dataset,
    build_loss,
    build_network,
    build_optimizer,
    dataset_factory,
    loss_context,
    merged,
    metric_names,
    own_optimizer,
    preprocessing_of,
)
from .loading import load_recipes, names_in, pipelines, plugins_in, read_tables, variant_tables
from .papers import Printed, PrintedTable, Quoted, is_full, papers, printed, quoted, texts
from .schema import (
    SHUFFLE,
    DataTable,
    EngineTable,
    EvaluationTable,
    LossTable,
    NamedTable,
    PseudoTable,
    Recipe,
    SamplerTable,
    ScheduleTable,
    StageTable,
)
from .validation import validate

__all__ = [
    "SHUFFLE",
    "DataTable",
    "EngineTable",
    "EvaluationTable",
    "LossTable",
    "NamedTable",
    "Printed",
    "PrintedTable",
    "PseudoTable",
    "Quoted",
    "Recipe",
    "SamplerTable",
    "ScheduleTable",
    "StageTable",
    "build_dataset",
    "build_loss",
    "build_network",
    "build_optimizer",
    "dataset_factory",
    "is_full",
    "load_recipes",
    "loss_context",
    "merged",
    "metric_names",
    "names_in",
    "own_optimizer",
    "papers",
    "pipelines",
    "plugins_in",
    "preprocessing_of",
    "printed",
    "quoted",
    "read_tables",
    "texts",
    "validate",
    "variant_tables",
]
