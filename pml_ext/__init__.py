"""A plugin layer on pytorch-metric-learning (PML).

``from pml_ext import CBMLLoss`` works for every registered class, of this distribution and of third parties; what else
is public is listed in ``_PUBLIC``; ``from pml_ext import *`` gives both. Importing this package imports neither torch
nor PML; the first name that needs them does. Type checkers read ``__init__.pyi``: after a change here, or of a plugin's
classes, ``python -m pml_ext.stub`` writes it anew.
"""

from __future__ import annotations

import importlib
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as _version
from typing import Any

try:
    __version__ = _version("pml-ext")
except PackageNotFoundError:  # the sources on a path, not installed: there are no entry points either
    __version__ = "0+unknown"

# Public names of the core, by the module that defines them; registered classes resolve through the registry.
_PUBLIC = {
    "Component": "pml_ext.components",
    "Paper": "pml_ext.components",
    "register": "pml_ext.registry",
    "hookimpl": "pml_ext.hookspecs",
    "CachedGradients": "pml_ext.losses",
    "CrossBatchMemory": "pml_ext.losses",
    "DistributedLoss": "pml_ext.distributed",
    "DistributedMiner": "pml_ext.distributed",
    "MultipleLosses": "pml_ext.losses",
    "SelfSupervisedLoss": "pml_ext.losses",
    "LabeledRegularizer": "pml_ext.regularizers",
    "LabelledRegularizer": "pml_ext.regularizers",
    "PairLoss": "pml_ext.losses",
    "RegularizedLoss": "pml_ext.losses",
    "TiledContrastiveLoss": "pml_ext.losses",
    "TiledMultiSimilarityLoss": "pml_ext.losses",
    "TiledNTXentLoss": "pml_ext.losses",
    "TiledSupConLoss": "pml_ext.losses",
    "TiledTripletMarginLoss": "pml_ext.losses",
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
_SUBMODULES = (
    "benchmark",
    "cli",
    "components",
    "data",
    "distances",
    "distributed",
    "errors",
    "evaluation",
    "experiment",
    "hookspecs",
    "losses",
    "models",
    "pairwise",
    "plugin",
    "plugins",
    "reducers",
    "registry",
    "regularizers",
    "retrieval",
    "samplers",
    "settings",
    "testing",
)


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
        if registry.loading():  # an AttributeError's text is lost in "from pml_ext import X"
            raise ImportError(
                f"pml_ext has no {name} yet, since plugins are being imported; import it from the package that defines "
                "it, or inside of the function that needs it"
            ) from None
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
