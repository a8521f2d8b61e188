"""A plugin layer on pytorch-metric-learning (PML).

``from pml_ext import CBMLLoss`` works for every registered class, of this distribution and of third parties; what else
is public is listed in ``_PUBLIC``; ``from pml_ext import *`` gives both. Importing this package imports neither torch
nor PML; the first name that needs them does.
"""

from __future__ import annotations

import importlib
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as _version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pml_ext_angular import AngularLoss as AngularLoss
    from pml_ext_angular import AngularTripletLoss as AngularTripletLoss
    from pml_ext_angular import NPairAngularLoss as NPairAngularLoss
    from pml_ext_angular import NPairLoss as NPairLoss
    from pml_ext_cbml import CBMLLoss as CBMLLoss
    from pml_ext_cbml import HardPairMiner as HardPairMiner
    from pml_ext_cbml import MetricVarianceRegularizer as MetricVarianceRegularizer
    from pml_ext_density import DensityRegularizer as DensityRegularizer
    from pml_ext_density import EntropyRegularizer as EntropyRegularizer
    from pml_ext_density import GlobalOrthogonalRegularizer as GlobalOrthogonalRegularizer
    from pml_ext_pddm import HardQuadrupletMiner as HardQuadrupletMiner
    from pml_ext_pddm import PDDMDistance as PDDMDistance
    from pml_ext_pddm import PDDMLoss as PDDMLoss
    from pml_ext_triplets import AnchorSwapMiner as AnchorSwapMiner
    from pml_ext_triplets import BatchAllTripletLoss as BatchAllTripletLoss
    from pml_ext_triplets import HardNegativePoolSampler as HardNegativePoolSampler
    from pml_ext_triplets import LocalPositiveMiner as LocalPositiveMiner

    from . import registry as registry
    from .distributed import DistributedLoss as DistributedLoss
    from .distributed import DistributedMiner as DistributedMiner
    from .errors import ConfigError as ConfigError
    from .errors import DataError as DataError
    from .errors import MissingExtraError as MissingExtraError
    from .errors import PluginError as PluginError
    from .errors import PmlExtError as PmlExtError
    from .errors import TrainingError as TrainingError
    from .errors import UnknownNameError as UnknownNameError
    from .evaluation import RetrievalAccuracyCalculator as RetrievalAccuracyCalculator
    from .hookspecs import hookimpl as hookimpl
    from .losses import MultipleLosses as MultipleLosses
    from .losses import SelfSupervisedLoss as SelfSupervisedLoss
    from .memory import CrossBatchMemory as CrossBatchMemory
    from .registry import Component as Component
    from .registry import Paper as Paper
    from .registry import register as register
    from .regularizers import LabelledRegularizer as LabelledRegularizer
    from .regularizers import RegularizedLoss as RegularizedLoss
    from .retrieval import load_run as load_run
    from .samplers import WholeClassSampler as WholeClassSampler

try:
    __version__ = _version("pml-ext")
except PackageNotFoundError:  # the sources on a path, not installed: there are no entry points either
    __version__ = "0+unknown"

# Public names of the core, by the module that defines them; registered classes resolve through the registry.
_PUBLIC = {
    "Component": "pml_ext.registry",
    "Paper": "pml_ext.registry",
    "register": "pml_ext.registry",
    "hookimpl": "pml_ext.hookspecs",
    "CrossBatchMemory": "pml_ext.memory",
    "DistributedLoss": "pml_ext.distributed",
    "DistributedMiner": "pml_ext.distributed",
    "MultipleLosses": "pml_ext.losses",
    "SelfSupervisedLoss": "pml_ext.losses",
    "LabelledRegularizer": "pml_ext.regularizers",
    "RegularizedLoss": "pml_ext.regularizers",
    "RetrievalAccuracyCalculator": "pml_ext.evaluation",
    "WholeClassSampler": "pml_ext.samplers",
    "load_run": "pml_ext.retrieval",
    "PmlExtError": "pml_ext.errors",
    "PluginError": "pml_ext.errors",
    "UnknownNameError": "pml_ext.errors",
    "ConfigError": "pml_ext.errors",
    "DataError": "pml_ext.errors",
    "MissingExtraError": "pml_ext.errors",
    "TrainingError": "pml_ext.errors",
}
_SUBMODULES = ("benchmark", "cli", "data", "distances", "distributed", "errors", "evaluation", "experiment",
               "hookspecs", "losses", "memory", "models", "pairwise", "reducers", "registry", "regularizers",
               "retrieval", "samplers", "settings", "testing")  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return _star_names()
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


def _star_names() -> list[str]:
    """What ``from pml_ext import *`` gives: public names and registered classes, as far as they can be had."""
    from . import registry
    from .errors import PluginError

    names = []
    for name in sorted({*_PUBLIC, *registry.class_names()}):
        try:
            __getattr__(name)
        except (ImportError, PluginError):  # of an extra that is not installed; of two plugins' classes
            continue
        names.append(name)
    return names


def __dir__() -> list[str]:
    from . import registry

    return sorted({"__version__", *_PUBLIC, *_SUBMODULES, *registry.class_names()})
