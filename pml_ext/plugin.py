"""Everything that a plugin may import of ``pml_ext``: hooks, base classes, pair functions, checks, the view of a run.

.. code-block:: python

    from pml_ext.plugin import BaseMetricLossFunction, Component, FullPrecisionForward, hookimpl, pair_masks

The plugins of this distribution import this module and nothing else of ``pml_ext``. Names are added here; none is taken
away without a major version. Importing it needs torch and PML; what needs the extra ``train`` (data sets, clustering,
figures) is imported when it is asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from .components import Component, Paper, capabilities
from .distances import (
    DistanceSettings,
    EuclideanDistance,
    GramCosineSimilarity,
    GramDotProductSimilarity,
    NormalizedRows,
    SimilaritySettings,
    matrix_of,
    require_distance,
    require_similarity,
)
from .errors import (
    ConfigError,
    DataError,
    MissingExtraError,
    PmlExtError,
    TrainingError,
    TrainingWarning,
    needs_extra,
    unknown,
)
from .hookspecs import hookimpl, packaged
from .losses import (
    MultipleLosses,
    PairLoss,
    PairLossSettings,
    Pairs,
    RegularizedLoss,
    Terms,
    call_loss,
    per_anchor,
    per_pair,
    per_triplet,
    reduced,
)
from .miners import TiledMiner
from .pairwise import (
    ClassLabels,
    ClassMembers,
    FullPrecisionForward,
    FullPrecisionMining,
    all_places,
    apart,
    autocast_off,
    check_batch,
    check_indices_tuple,
    check_references,
    class_members,
    cosine_similarity,
    euclidean_distances,
    exp_bounded,
    gram,
    hard_pair_masks,
    in_tiles,
    log_one_plus_sum_exp,
    masked_max,
    masked_mean,
    masked_min,
    masked_sum,
    normalize,
    pair_masks,
    pair_to_full_precision,
    rows_per_tile,
    tiles_of_rows,
    to_full_precision,
    transformed,
)

# PML's own base classes and what else of it a component is made of: from here, so that they are found whatever PML's
# version. Its losses and miners themselves are components: build("pml/contrastive", "loss").
from .pml import (
    BaseDistance,
    BaseMetricLossFunction,
    BaseMiner,
    BaseReducer,
    BaseRegularizer,
    CosineSimilarity,
    DotProductSimilarity,
    EmbeddingsAlreadyPackagedAsTriplets,
    LossSettings,
    LpDistance,
    MinerSettings,
    ModuleSettings,
    RegularizerSettings,
)
from .reducers import SumOfReducedReducer, SumOverDivisorReducer
from .registry import BuildContext, build
from .regularizers import LabeledRegularizer
from .samplers import sampler_state, set_sampler_state
from .settings import (
    check_choice,
    check_count,
    check_flag,
    check_number,
    check_tile_size,
    number_settings,
    own_settings,
)

if TYPE_CHECKING:
    from .data import DataSplits, LabeledImages, read_image
    from .evaluation import figures, kmeans

_WITH_EXTRA = {  # what needs the extra "train", and the module that has it, or is it
    "DataSplits": "pml_ext.data",
    "LabeledImages": "pml_ext.data",
    "read_image": "pml_ext.data",
    "figures": "pml_ext.evaluation.figures",
    "kmeans": "pml_ext.evaluation",
}

__all__ = [
    "BaseDistance",
    "BaseMetricLossFunction",
    "BaseMiner",
    "BaseReducer",
    "BaseRegularizer",
    "BuildContext",
    "ClassLabels",
    "ClassMembers",
    "Component",
    "ConfigError",
    "CosineSimilarity",
    "DataError",
    "DataSplits",
    "DistanceSettings",
    "DotProductSimilarity",
    "EmbeddingsAlreadyPackagedAsTriplets",
    "EuclideanDistance",
    "FullPrecisionForward",
    "FullPrecisionMining",
    "GramCosineSimilarity",
    "GramDotProductSimilarity",
    "LabeledImages",
    "LabeledRegularizer",
    "LossSettings",
    "LpDistance",
    "MinerSettings",
    "MissingExtraError",
    "ModuleSettings",
    "MultipleLosses",
    "NormalizedRows",
    "PairLoss",
    "PairLossSettings",
    "Pairs",
    "Paper",
    "PmlExtError",
    "RegularizedLoss",
    "RegularizerSettings",
    "RunView",
    "SimilaritySettings",
    "SumOfReducedReducer",
    "SumOverDivisorReducer",
    "Terms",
    "TiledMiner",
    "TrainingError",
    "TrainingWarning",
    "all_places",
    "apart",
    "autocast_off",
    "build",
    "call_loss",
    "capabilities",
    "check_batch",
    "check_choice",
    "check_count",
    "check_flag",
    "check_indices_tuple",
    "check_number",
    "check_references",
    "check_tile_size",
    "class_members",
    "cosine_similarity",
    "euclidean_distances",
    "exp_bounded",
    "figures",
    "gram",
    "hard_pair_masks",
    "hookimpl",
    "in_tiles",
    "kmeans",
    "log_one_plus_sum_exp",
    "masked_max",
    "masked_mean",
    "masked_min",
    "masked_sum",
    "matrix_of",
    "needs_extra",
    "normalize",
    "number_settings",
    "own_settings",
    "packaged",
    "pair_masks",
    "pair_to_full_precision",
    "per_anchor",
    "per_pair",
    "per_triplet",
    "read_image",
    "reduced",
    "require_distance",
    "require_similarity",
    "rows_per_tile",
    "sampler_state",
    "set_sampler_state",
    "tiles_of_rows",
    "to_full_precision",
    "transformed",
]


@runtime_checkable
class RunView(Protocol):
    """The part of a run that ``prepare``, ``start_epoch``, ``after_step`` and ``figures`` of a component may use.

    A run has more; that is its own and changes.
    """

    @property
    def folder(self) -> Path:
        """The run's folder; a component's own tables belong into its ``records``."""

    @property
    def seed(self) -> int:
        """The seed of all generators."""

    @property
    def device(self) -> torch.device:
        """The device of networks and losses."""

    @property
    def epoch(self) -> int:
        """The current epoch, from 1; 0 in ``prepare``."""

    @property
    def rank(self) -> int:
        """The number of this process, from 0; only process 0 writes files."""

    @property
    def processes(self) -> int:
        """The number of processes that train together."""

    @property
    def splits(self) -> Mapping[str, LabeledImages]:
        """The images without augmentation, by name.

        There are ``"train"``; ``"test"``, or ``"query"`` and ``"gallery"`` where the data have these; ``"validation"``
        if classes are held out; and ``"train_sample"``, the training images that are tested, if these are not all.
        """

    def embeddings(self, split: str, layer: Literal["embedder", "trunk"] = "embedder") -> Tensor:
        """Return the network's output, or the trunk's, for all images of a split, not normalized.

        It is ``[N, D]``, float32, on the run's device, in the order of :meth:`labels`.
        """

    def batches(self, split: str, layer: Literal["embedder", "trunk"] = "embedder") -> Iterator[tuple[Tensor, Tensor]]:
        """Yield :meth:`embeddings` ``[B, D]`` and :meth:`labels` ``[B]`` batch by batch, so that memory is bounded."""

    def labels(self, split: str) -> Tensor:
        """Return the labels of a split: ``[N]``, int64, on the run's device.

        Those of ``"train"`` are the epoch's clusters while a recipe with ``data.labels = "clusters"`` trains.
        """


def __getattr__(name: str) -> Any:
    if name not in _WITH_EXTRA:
        raise AttributeError(f"module 'pml_ext.plugin': {unknown('name', name, __all__)}")
    with needs_extra("train", f"pml_ext.plugin.{name}"):
        module = importlib.import_module(_WITH_EXTRA[name])
    return module if name == "figures" else getattr(module, name)


def __dir__() -> list[str]:
    return list(__all__)
