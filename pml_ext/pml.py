"""The door to pytorch-metric-learning (PML): its base classes and what else of it is built on.

A name that moves in another version of PML moves here. Importing this module imports torch and PML.
"""

import importlib
from typing import Any

from pytorch_metric_learning import distances, losses, miners, reducers, regularizers, samplers
from pytorch_metric_learning.distances import BaseDistance, CosineSimilarity, DotProductSimilarity, LpDistance
from pytorch_metric_learning.losses import (
    BaseLossWrapper,
    BaseMetricLossFunction,
    ContrastiveLoss,
    MultipleLosses,
    SelfSupervisedLoss,
)
from pytorch_metric_learning.miners import BaseMiner, EmbeddingsAlreadyPackagedAsTriplets
from pytorch_metric_learning.reducers import BaseReducer, MultipleReducers
from pytorch_metric_learning.regularizers import BaseRegularizer
from pytorch_metric_learning.utils.accuracy_calculator import EQUALITY, AccuracyCalculator
from pytorch_metric_learning.utils.inference import CustomKNN, FaissKMeans, FaissKNN
from pytorch_metric_learning.utils.loss_and_miner_utils import (
    convert_to_pairs,
    convert_to_triplets,
    get_all_pairs_indices,
)
from pytorch_metric_learning.utils.module_with_records import ModuleWithRecords
from torch.utils.data import Sampler

# What PML 3 takes away, imported when it is asked for: only the checks of a component's surroundings do.
_GONE_IN_3 = {
    "HookContainer": "pytorch_metric_learning.utils.logging_presets",
    "MetricLossOnly": "pytorch_metric_learning.trainers",
    "common_functions": "pytorch_metric_learning.utils",
}

# The base classes that say what kind a class is. A sampler is any of torch's.
BASES: dict[str, tuple[type, ...]] = {
    "loss": (BaseMetricLossFunction, BaseLossWrapper, MultipleLosses),
    "miner": (BaseMiner,),
    "regularizer": (BaseRegularizer,),
    "distance": (BaseDistance,),
    "sampler": (Sampler,),
    "reducer": (BaseReducer,),
}
# The modules that have the classes which PML offers.
MODULES = (losses, miners, regularizers, distances, samplers, reducers)

__all__ = [
    "BASES",
    "EQUALITY",
    "MODULES",
    "AccuracyCalculator",
    "BaseDistance",
    "BaseLossWrapper",
    "BaseMetricLossFunction",
    "BaseMiner",
    "BaseReducer",
    "BaseRegularizer",
    "ContrastiveLoss",
    "CosineSimilarity",
    "CustomKNN",
    "DotProductSimilarity",
    "EmbeddingsAlreadyPackagedAsTriplets",
    "FaissKMeans",
    "FaissKNN",
    "LpDistance",
    "ModuleWithRecords",
    "MultipleLosses",
    "MultipleReducers",
    "SelfSupervisedLoss",
    "convert_to_pairs",
    "convert_to_triplets",
    "get_all_pairs_indices",
    "reducers",
]


def __getattr__(name: str) -> Any:
    if name not in _GONE_IN_3:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_GONE_IN_3[name]), name)
