"""A plugin layer on pytorch-metric-learning (PML): ``from pml_ext import CBMLLoss``.

Every registered class can be imported from here, and is loaded on first use. Type checkers read ``__init__.pyi``.
"""

import importlib
from importlib.metadata import PackageNotFoundError, version as _version
from typing import Any

import lazy_loader

from . import errors, registry

try:
    __version__ = _version("pml-ext")
except PackageNotFoundError:  # the sources are on the path but not installed, so there are no entry points
    __version__ = "0+unknown"

_MODULES = ["evaluation", "plugin", "registry", "testing"]
_get, _, _NAMES = lazy_loader.attach(
    __name__,
    _MODULES,
    {
        "distributed": ["DistributedBatchSampler", "DistributedLoss", "DistributedMiner", "keep_freed_memory"],
        "errors": ["ConfigError", "DataError", "MissingExtraError", "PmlExtError"],
        "evaluation": ["RetrievalAccuracyCalculator"],
        "losses": [
            "CachedGradients",
            "CrossBatchMemory",
            "MultipleLosses",
            "NestedLoss",
            "RegularizedLoss",
            "SelfSupervisedLoss",
            "TiledContrastiveLoss",
            "TiledMultiSimilarityLoss",
            "TiledNTXentLoss",
            "TiledSupConLoss",
            "TiledTripletMarginLoss",
            "WithRelation",
        ],
        "miners": ["SemiHardTripletMiner"],
        "registry": ["register"],
        "relations": ["DifferentGroups", "FromMatrix", "Hierarchy", "Near", "NegativesOnly", "Relation", "SharedLabel"],
        "samplers": ["MPerLabelSampler", "TreeSampler"],
        "whitening": ["TotalWhitening", "WithinClassWhitening"],
    },
)
# Names of shipped plugins, which no other plugin can replace: the other plugins are not even imported.
_OF_PLUGINS = {
    "AngularLoss": "pml_ext_angular.losses",
    "AngularTripletLoss": "pml_ext_angular.losses",
    "NPairAngularLoss": "pml_ext_angular.losses",
    "NPairLoss": "pml_ext_angular.losses",
    "CBMLLoss": "pml_ext_cbml.losses",
    "HardPairMiner": "pml_ext_cbml.miners",
    "MetricVarianceRegularizer": "pml_ext_cbml.regularizers",
    "SoftmaxLoss": "pml_ext_cbml.softmax",
    "ClusteringLoss": "pml_ext_density.clustering",
    "DensityRegularizer": "pml_ext_density.regularizers",
    "WholeClassSampler": "pml_ext_density.samplers",
    "EntropyRegularizer": "pml_ext_density.spreading",
    "GlobalOrthogonalRegularizer": "pml_ext_density.spreading",
    "MahalanobisDistance": "pml_ext_pddm.distances",
    "PDDMDistance": "pml_ext_pddm.distances",
    "PDDMLoss": "pml_ext_pddm.losses",
    "HardQuadrupletMiner": "pml_ext_pddm.miners",
    "load_run": "pml_ext_search.trained",
    "BatchAllTripletLoss": "pml_ext_triplets.losses",
    "AnchorSwapMiner": "pml_ext_triplets.miners",
    "LocalPositiveMiner": "pml_ext_triplets.miners",
    "HardNegativePoolSampler": "pml_ext_triplets.samplers",
    "train": "pml_ext_train.launch",
}


def __getattr__(name: str) -> Any:
    if name == "__all__":  # without modules, and without what cannot be imported
        names = {*_allowed(), *registry.registered("class")}
        return sorted({*_NAMES} - {*_MODULES} | {*filter(_is_importable, names)})
    if name.startswith("_"):
        raise AttributeError(f"module 'pml_ext' has no attribute {name!r}")
    if name in _NAMES:
        return _get(name)
    if name in _allowed():
        with errors.needs_extra("train", f"pml_ext.{name}"):
            return getattr(importlib.import_module(_OF_PLUGINS[name]), name)
    try:
        return registry.find("class", name)[1].cls
    except errors.UnknownNameError as error:
        raise AttributeError(f"module 'pml_ext' has no attribute {name!r}: {error}") from None


def _allowed() -> set[str]:
    return {name for name, module in _OF_PLUGINS.items() if registry.is_allowed(_entry_point_of(module))}


def _entry_point_of(module: str) -> str:
    """``"cbml"`` for ``"pml_ext_cbml.losses"``; training registers under ``"pml"``."""
    return module.partition(".")[0].removeprefix("pml_ext_").replace("train", "pml")


def _is_importable(name: str) -> bool:
    """Whether a name can be imported; ``pml-ext plugins`` shows why not."""
    try:
        __getattr__(name)
    except errors.PmlExtError:
        return False
    return True


def __dir__() -> list[str]:
    return sorted({"__version__", *_NAMES, *_allowed(), *registry.registered("class")})
