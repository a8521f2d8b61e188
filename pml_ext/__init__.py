"""A plugin layer on pytorch-metric-learning (PML).

``from pml_ext import CBMLLoss`` works for every registered class, of this distribution and of third parties; what else
is public is listed in ``_PUBLIC``. Importing this package imports neither torch nor PML; the first name that needs them does.
"""

from __future__ import annotations

import importlib
from importlib.metadata import version as _version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pml_ext_cbml import CBMLLoss, HardPairMiner, MetricVarianceRegularizer

    from . import registry
    from .errors import ConfigError, DataError, MissingExtraError, PluginError, PmlExtError, TrainingError
    from .errors import UnknownNameError
    from .evaluation import RetrievalAccuracyCalculator
    from .hookspecs import hookimpl
    from .registry import Component, Paper, register
    from .regularizers import LabelledRegularizer, RegularizedLoss

__version__ = _version("pml-ext")

# Public names that belong to the core, by the module that defines them; registered classes resolve through the registry.
_PUBLIC = {
    "Component": "pml_ext.registry",
    "Paper": "pml_ext.registry",
    "register": "pml_ext.registry",
    "hookimpl": "pml_ext.hookspecs",
    "LabelledRegularizer": "pml_ext.regularizers",
    "RegularizedLoss": "pml_ext.regularizers",
    "RetrievalAccuracyCalculator": "pml_ext.evaluation",
    "PmlExtError": "pml_ext.errors",
    "PluginError": "pml_ext.errors",
    "UnknownNameError": "pml_ext.errors",
    "ConfigError": "pml_ext.errors",
    "DataError": "pml_ext.errors",
    "MissingExtraError": "pml_ext.errors",
    "TrainingError": "pml_ext.errors",
}
_SUBMODULES = ("registry", "errors", "hookspecs", "pairwise", "regularizers", "data", "models", "evaluation", "experiment",
               "benchmark", "cli")  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    if name in _SUBMODULES:
        return importlib.import_module(f"pml_ext.{name}")
    if name.startswith("_"):
        raise AttributeError(f"module 'pml_ext' has no attribute {name!r}")
    from . import registry
    from .errors import UnknownNameError

    try:
        return registry.class_by_name(name)
    except UnknownNameError as error:
        raise AttributeError(f"module 'pml_ext' has no attribute {name!r}: {error}") from None


def __dir__() -> list[str]:
    from . import registry

    return sorted({"__version__", *_PUBLIC, *_SUBMODULES, *registry.class_names()})
