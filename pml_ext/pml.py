"""All imports from pytorch-metric-learning (PML)."""

import importlib
import importlib.metadata
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import torch
from pytorch_metric_learning import (
    distances,
    losses as losses,
    miners as miners,
    reducers as reducers,
    regularizers as regularizers,
)
from pytorch_metric_learning.distances import (
    CosineSimilarity as CosineSimilarity,
    DotProductSimilarity as DotProductSimilarity,
    LpDistance as LpDistance,
)
from pytorch_metric_learning.losses import ContrastiveLoss as ContrastiveLoss
from pytorch_metric_learning.miners import EmbeddingsAlreadyPackagedAsTriplets as EmbeddingsAlreadyPackagedAsTriplets
from pytorch_metric_learning.reducers import BaseReducer as BaseReducer, MultipleReducers as MultipleReducers
from pytorch_metric_learning.utils.module_with_records import ModuleWithRecords as ModuleWithRecords
from torch import Tensor, nn
from torch.utils.data import Sampler

MAJOR = int(importlib.metadata.version("pytorch-metric-learning").partition(".")[0])


class ModuleSettings(TypedDict, total=False):
    collect_stats: bool | None


class MinerSettings(ModuleSettings, total=False):
    distance: Any


class RegularizerSettings(MinerSettings, total=False):
    reducer: Any


class LossSettings(RegularizerSettings, total=False):
    embedding_regularizer: Any
    embedding_reg_weight: float


# Modules that losses do without, which are imported when one of their names is first asked for. Where a name is in
# PML 2, and in PML 3; None where PML 3 has nothing like it.
_IMPORTED_LATER: dict[str, tuple[str, str | None]] = {
    "AccuracyCalculator": ("utils.accuracy_calculator:AccuracyCalculator", "evaluation:AccuracyCalculator"),
    "CustomKNN": ("utils.inference:CustomKNN", "evaluation:CustomKNN"),
    "FaissKMeans": ("utils.inference:FaissKMeans", "evaluation:FaissKMeans"),
    "FaissKNN": ("utils.inference:FaissKNN", "evaluation:FaissKNN"),
    "HookContainer": ("utils.logging_presets:HookContainer", None),
    "MetricLossOnly": ("trainers:MetricLossOnly", None),
    "common_functions": ("utils.common_functions:", None),
}


def __getattr__(name: str) -> Any:
    """One of :data:`_IMPORTED_LATER`."""
    if name not in _IMPORTED_LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    in_2, in_3 = _IMPORTED_LATER[name]
    place = in_2 if MAJOR < 3 else in_3
    if place is None:
        raise AttributeError(f"pytorch-metric-learning {MAJOR} has no {name}, which version 2 had")
    origin, _, inner = place.partition(":")
    module = importlib.import_module(f"pytorch_metric_learning.{origin}")
    return getattr(module, inner) if inner else module


if TYPE_CHECKING:  # PML is untyped: stubs with the types of settings and calls
    from pytorch_metric_learning.trainers import MetricLossOnly as MetricLossOnly
    from pytorch_metric_learning.utils import common_functions as common_functions
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator as AccuracyCalculator
    from pytorch_metric_learning.utils.inference import (
        CustomKNN as CustomKNN,
        FaissKMeans as FaissKMeans,
        FaissKNN as FaissKNN,
    )
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

    class BaseCrossBatchMemory(_CalledAsLoss, losses.CrossBatchMemory): ...

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
    BaseCrossBatchMemory = losses.CrossBatchMemory  # the type that PML's DistributedLossWrapper asks for
    MultipleLosses = losses.MultipleLosses
    SelfSupervisedLoss = losses.SelfSupervisedLoss
    BaseMiner = miners.BaseMiner
    BaseRegularizer = regularizers.BaseRegularizer
    BaseDistance = distances.BaseDistance

per_anchor_mean = reducers.PerAnchorReducer().aggregation_func  # its default, which reducers.py knows by identity

# What PML 2.9 has in modules that are private in PML 3, with the same values in the same order.

EQUALITY = torch.eq  # how PML's calculator compares labels by default


def get_all_pairs_indices(labels: Tensor, ref_labels: Tensor | None = None) -> tuple[Tensor, ...]:
    """All positive and negative pairs; no row is its own positive."""
    positives, negatives = _pairs_of(labels, ref_labels)
    return (*torch.where(positives), *torch.where(negatives))


def get_all_triplets_indices(labels: Tensor, ref_labels: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """All triplets, by anchor, positive and negative."""
    positives, negatives = _pairs_of(labels, ref_labels)
    anchors, near = torch.where(positives)
    pair, far = torch.where(negatives[anchors])
    return anchors[pair], near[pair], far


def _pairs_of(labels: Tensor, ref_labels: Tensor | None) -> tuple[Tensor, Tensor]:
    of_batch = ref_labels is None or ref_labels is labels
    equal = labels[:, None] == (labels if ref_labels is None else ref_labels)[None, :]
    positives = equal.clone().fill_diagonal_(False) if of_batch else equal
    return positives, ~equal


def convert_to_pairs(indices_tuple: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The two pairs of each triplet; pairs stay unchanged."""
    if len(indices_tuple) == 4:
        return indices_tuple
    anchors, positives, negatives = indices_tuple
    return anchors, positives, anchors, negatives


def convert_to_triplets(indices_tuple: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Triplets of all positive and negative pairs that share an anchor."""
    if len(indices_tuple) == 3:
        return indices_tuple
    anchors, positives, other_anchors, negatives = indices_tuple
    positive, negative = torch.where(anchors[:, None] == other_anchors)
    return anchors[positive], positives[positive], negatives[negative]


# The base classes that say what kind a class is. A sampler is any of torch's. In PML 3, memory and self-supervision are
# modules of no base.
BASES: dict[str, tuple[type, ...]] = {
    "loss": (BaseMetricLossFunction, BaseLossWrapper, MultipleLosses, BaseCrossBatchMemory, SelfSupervisedLoss),
    "miner": (BaseMiner,),
    "regularizer": (BaseRegularizer,),
    "distance": (BaseDistance,),
    "sampler": (Sampler,),
    "reducer": (BaseReducer,),
}

# PML's losses that take references, as their sources say. Those that refuse or ignore them are left out, and NCALoss,
# which compares an embedding with its own copy among the references, against the indices_tuple.
_TAKE_REFERENCES = """
AngularLoss CircleLoss ContrastiveLoss DynamicSoftMarginLoss GeneralizedLiftedStructureLoss IntraPairVarianceLoss
LiftedStructureLoss MarginLoss MultiSimilarityLoss NTXentLoss SignalToNoiseRatioContrastiveLoss SupConLoss
TripletMarginLoss TupletMarginLoss
"""
_TAKE_LABELS_ALONE = ("InstanceLoss", "P2SGradLoss", "PNPLoss", "RankedListLoss")
_USUAL = frozenset({"labels", "indices_tuple"})
_CAPABILITIES: dict[str, frozenset[str]] = {
    **dict.fromkeys(_TAKE_REFERENCES.split(), _USUAL | {"references"}),
    **dict.fromkeys(_TAKE_LABELS_ALONE, frozenset({"labels"})),
    "ManifoldLoss": frozenset({"indices_tuple"}),
    "VICRegLoss": frozenset({"references"}),
    "SelfSupervisedLoss": frozenset({"references"}),
    "CrossBatchMemory": _USUAL | {"state"},
}


def capabilities_of(component: object) -> frozenset[str]:
    """Capabilities that a class or instance declares, or of the nearest PML class among its bases."""
    declared = getattr(component, "capabilities", None)
    if declared is not None:
        return frozenset(declared)
    cls = component if isinstance(component, type) else type(component)
    for base in cls.__mro__:
        if base.__module__.startswith("pytorch_metric_learning."):
            return _CAPABILITIES.get(base.__name__, _USUAL)
    return _USUAL


def converted_settings(
    cls: type, settings: Mapping[str, Any], class_labels: Sequence[int] | None = None
) -> dict[str, Any]:
    """Settings of a recipe in the types that PML's class accepts.

    ``weights`` of ``ClassWeightedReducer``, one for each of the sorted ``class_labels``, become a tensor indexed by
    label; another length is already indexed by label.
    """
    weights = settings.get("weights")
    if not issubclass(cls, reducers.ClassWeightedReducer) or not isinstance(weights, (list, tuple)):
        return dict(settings)
    if not all(isinstance(weight, (int, float)) for weight in weights):
        raise ValueError(f"weights of pml/class-weighted must be numbers, one for each class; got {weights!r}")
    values = torch.tensor(weights, dtype=torch.float64)
    if class_labels is not None and len(weights) == len(class_labels):
        by_label = torch.zeros(max(class_labels) + 1, dtype=torch.float64)
        values = by_label.index_copy_(0, torch.tensor(class_labels), values)
    return {**settings, "weights": values}


def check_class_weights(loss: nn.Module, accepted: Collection[int], classes: int) -> None:
    """ValueError unless each ClassWeightedReducer of a loss has an ``accepted`` length."""
    for module in loss.modules():
        if isinstance(module, reducers.ClassWeightedReducer) and len(module.weights) not in accepted:
            raise ValueError(
                f"weights of pml/class-weighted must be {classes} numbers, one for each training class "
                f"in the order of their labels; got {len(module.weights)}"
            )


def most_of_batch(cls: type, settings: Mapping[str, Any], classes: int) -> int | None:
    """How many images MPerClassSampler draws from all ``classes``; None for other samplers."""
    from pytorch_metric_learning import samplers

    m = settings.get("m")
    if not issubclass(cls, samplers.MPerClassSampler) or not isinstance(m, int):
        return None
    return classes * m


def check_sampler(cls: type, settings: Mapping[str, Any], batch_size: int, classes: int) -> None:
    """ValueError if PML's sampler cannot be used in a run, or would draw smaller batches."""
    from pytorch_metric_learning import samplers

    if issubclass(cls, samplers.HierarchicalSampler):
        raise ValueError(
            "pml/hierarchical needs labels of two levels, and a run's images have one class each; type "
            '--set sampler.name=tree, with [data] relation = "hierarchy"'
        )
    drawn = most_of_batch(cls, settings, classes)
    if drawn is None or drawn <= 0:
        return
    m = settings["m"]
    most = max(m, min(batch_size, drawn) // m * m)
    if most != batch_size:
        limit = f"{classes} classes x m = {m} gives at most {drawn} images a batch, in multiples of {m}"
        raise ValueError(f"found batch_size = {batch_size}; {limit}: --set sampler.batch_size={most}")
