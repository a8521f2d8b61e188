"""All imports from pytorch-metric-learning (PML): its base classes and everything else that is used."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from pytorch_metric_learning import distances
from pytorch_metric_learning import losses as losses
from pytorch_metric_learning import miners as miners
from pytorch_metric_learning import reducers as reducers
from pytorch_metric_learning import regularizers as regularizers
from pytorch_metric_learning.distances import CosineSimilarity as CosineSimilarity
from pytorch_metric_learning.distances import DotProductSimilarity as DotProductSimilarity
from pytorch_metric_learning.distances import LpDistance as LpDistance
from pytorch_metric_learning.losses import ContrastiveLoss as ContrastiveLoss
from pytorch_metric_learning.miners import EmbeddingsAlreadyPackagedAsTriplets as EmbeddingsAlreadyPackagedAsTriplets
from pytorch_metric_learning.reducers import BaseReducer as BaseReducer
from pytorch_metric_learning.reducers import MultipleReducers as MultipleReducers
from pytorch_metric_learning.reducers import per_anchor_reducer
from pytorch_metric_learning.trainers import MetricLossOnly as MetricLossOnly  # PML 3 takes away
from pytorch_metric_learning.utils import common_functions as common_functions  # PML 3 takes away
from pytorch_metric_learning.utils.loss_and_miner_utils import convert_to_pairs as convert_to_pairs
from pytorch_metric_learning.utils.loss_and_miner_utils import convert_to_triplets as convert_to_triplets
from pytorch_metric_learning.utils.loss_and_miner_utils import get_all_pairs_indices as get_all_pairs_indices
from pytorch_metric_learning.utils.loss_and_miner_utils import get_all_triplets_indices as get_all_triplets_indices
from pytorch_metric_learning.utils.module_with_records import ModuleWithRecords as ModuleWithRecords
from torch import Tensor
from torch.utils.data import Sampler


class ModuleSettings(TypedDict, total=False):
    collect_stats: bool | None


class MinerSettings(ModuleSettings, total=False):
    distance: Any


class RegularizerSettings(MinerSettings, total=False):
    reducer: Any


class LossSettings(RegularizerSettings, total=False):
    embedding_regularizer: Any
    embedding_reg_weight: float


# Names whose modules import scikit-learn or faiss, which losses do without: imported when they are first asked for.
_IMPORTED_LATER = {
    "EQUALITY": "accuracy_calculator",
    "AccuracyCalculator": "accuracy_calculator",
    "CustomKNN": "inference",
    "FaissKMeans": "inference",
    "FaissKNN": "inference",
    "HookContainer": "logging_presets",  # PML 3 takes away
}


def __getattr__(name: str) -> Any:
    """Return one of :data:`_IMPORTED_LATER`."""
    if name not in _IMPORTED_LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"pytorch_metric_learning.utils.{_IMPORTED_LATER[name]}")
    return getattr(module, name)


if TYPE_CHECKING:  # PML is untyped: stubs with the types of settings and calls
    from pytorch_metric_learning.utils.accuracy_calculator import EQUALITY as EQUALITY
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator as AccuracyCalculator
    from pytorch_metric_learning.utils.inference import CustomKNN as CustomKNN
    from pytorch_metric_learning.utils.inference import FaissKMeans as FaissKMeans
    from pytorch_metric_learning.utils.inference import FaissKNN as FaissKNN
    from pytorch_metric_learning.utils.logging_presets import HookContainer as HookContainer

    class _CalledAsLoss:
        def __call__(
            self,
            embeddings: Tensor,
            labels: Tensor | None = None,
            indices_tuple: tuple[Tensor, ...] | None = None,
            ref_emb: Tensor | None = None,
            ref_labels: Tensor | None = None,
        ) -> Tensor: ...

    class BaseMetricLossFunction(_CalledAsLoss, losses.BaseMetricLossFunction):
        def __init__(self, **settings: Unpack[LossSettings]) -> None: ...

    class BaseLossWrapper(_CalledAsLoss, losses.BaseLossWrapper): ...

    class MultipleLosses(_CalledAsLoss, losses.MultipleLosses): ...

    class SelfSupervisedLoss(losses.SelfSupervisedLoss):
        def __call__(self, embeddings: Tensor, ref_emb: Tensor | Sequence[Tensor]) -> Tensor: ...

    class BaseMiner(miners.BaseMiner):
        def __init__(self, **settings: Unpack[MinerSettings]) -> None: ...
        def __call__(
            self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
        ) -> tuple[Tensor, ...]: ...

    class BaseRegularizer(regularizers.BaseRegularizer):
        def __init__(self, **settings: Unpack[RegularizerSettings]) -> None: ...
        def __call__(self, embeddings: Tensor, labels: Tensor | None = None) -> Tensor: ...

    class BaseDistance(distances.BaseDistance):
        def __call__(self, query_emb: Tensor, ref_emb: Tensor | None = None) -> Tensor: ...

else:
    BaseMetricLossFunction = losses.BaseMetricLossFunction
    BaseLossWrapper = losses.BaseLossWrapper
    MultipleLosses = losses.MultipleLosses
    SelfSupervisedLoss = losses.SelfSupervisedLoss
    BaseMiner = miners.BaseMiner
    BaseRegularizer = regularizers.BaseRegularizer
    BaseDistance = distances.BaseDistance

per_anchor_mean = per_anchor_reducer.aggregation_func

# The base classes that say what kind a class is. A sampler is any of torch's.
BASES: dict[str, tuple[type, ...]] = {
    "loss": (BaseMetricLossFunction, BaseLossWrapper, MultipleLosses),
    "miner": (BaseMiner,),
    "regularizer": (BaseRegularizer,),
    "distance": (BaseDistance,),
    "sampler": (Sampler,),
    "reducer": (BaseReducer,),
}
