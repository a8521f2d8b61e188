"""Everything that a plugin may import from ``pml_ext``: hooks, base classes, pair functions, checks, the view of a run.

PML's own base classes are here too; its losses and miners are components: ``build("pml/contrastive", "loss")``. Data
sets, clustering and figures, which need the extra ``train``, are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

# Hooks, components, errors: imported at once.
from .errors import ConfigError as ConfigError
from .errors import DataError as DataError
from .errors import TrainingWarning as TrainingWarning
from .lazy import lazily as lazily
from .lazy import own_imports as _own_imports
from .registry import BuildContext as BuildContext
from .registry import build as build
from .registry.components import Command as Command
from .registry.components import Component as Component
from .registry.components import Paper as Paper
from .registry.components import capabilities as capabilities
from .registry.hooks import hookimpl as hookimpl
from .registry.hooks import packaged as packaged
from .run_view import RunView as RunView

if TYPE_CHECKING:  # losses of pairs, and what they are reduced from
    from .losses import Compilation as Compilation
    from .losses import PairLoss as PairLoss
    from .losses import PairLossSettings as PairLossSettings
    from .losses import Pairs as Pairs
    from .losses import Terms as Terms
    from .losses import call_loss as call_loss
    from .losses import per_anchor as per_anchor
    from .losses import per_pair as per_pair
    from .losses import per_triplet as per_triplet
    from .losses import reduced as reduced
    from .losses.classes import ClassLabels as ClassLabels
    from .losses.classes import ClassMembers as ClassMembers
    from .losses.classes import class_members as class_members
    from .losses.full_precision import FullPrecisionForward as FullPrecisionForward

if TYPE_CHECKING:  # distances, miners, regularizers, reducers, samplers, relations
    from .distances import EuclideanDistance as EuclideanDistance
    from .distances import GramCosineSimilarity as GramCosineSimilarity
    from .distances import GramDotProductSimilarity as GramDotProductSimilarity
    from .distances import NormalizedRows as NormalizedRows
    from .distances import matrix_of as matrix_of
    from .distances import require_distance as require_distance
    from .distances import require_similarity as require_similarity
    from .miners import FullPrecisionMining as FullPrecisionMining
    from .miners import PairMiner as PairMiner
    from .miners import PairMinerSettings as PairMinerSettings
    from .miners import TiledMiner as TiledMiner
    from .reducers import SumOverDivisorReducer as SumOverDivisorReducer
    from .regularizers import LabeledRegularizer as LabeledRegularizer
    from .relations import Relation as Relation
    from .samplers import GroupSampler as GroupSampler
    from .samplers import members_by_class as members_by_class

if TYPE_CHECKING:  # functions of matrices of pairs
    from .pairwise import Float64Buffers as Float64Buffers
    from .pairwise import all_entries as all_entries
    from .pairwise import apply_or_plain as apply_or_plain
    from .pairwise import autocast_off as autocast_off
    from .pairwise import check_batch as check_batch
    from .pairwise import euclidean_distances as euclidean_distances
    from .pairwise import exp_bounded as exp_bounded
    from .pairwise import fill_outside as fill_outside
    from .pairwise import gram as gram
    from .pairwise import hard_pair_masks as hard_pair_masks
    from .pairwise import in_parts as in_parts
    from .pairwise import in_tiles as in_tiles
    from .pairwise import indicators as indicators
    from .pairwise import log_one_plus_exp as log_one_plus_exp
    from .pairwise import log_one_plus_sums as log_one_plus_sums
    from .pairwise import log_sum_exp as log_sum_exp
    from .pairwise import masked_max as masked_max
    from .pairwise import masked_mean as masked_mean
    from .pairwise import masked_min as masked_min
    from .pairwise import masked_sum as masked_sum
    from .pairwise import normalize as normalize
    from .pairwise import pair_masks as pair_masks
    from .pairwise import pair_to_full_precision as pair_to_full_precision
    from .pairwise import places_in as places_in
    from .pairwise import prefers_floats as prefers_floats
    from .pairwise import rows_per_tile as rows_per_tile
    from .pairwise import run_eagerly as run_eagerly
    from .pairwise import scaled_product as scaled_product
    from .pairwise import tiles_of_rows as tiles_of_rows
    from .pairwise import to_full_precision as to_full_precision
    from .pairwise import transformed as transformed
    from .pairwise import weights_of_shares as weights_of_shares
    from .pairwise import widest_dtype as widest_dtype
    from .pairwise import with_log_weights as with_log_weights
    from .pairwise import without_tiny as without_tiny
    from .pairwise import zero_outside as zero_outside

if TYPE_CHECKING:  # PML's base classes, and the types of their settings
    from .pml import BaseDistance as BaseDistance
    from .pml import BaseMetricLossFunction as BaseMetricLossFunction
    from .pml import BaseMiner as BaseMiner
    from .pml import BaseReducer as BaseReducer
    from .pml import BaseRegularizer as BaseRegularizer
    from .pml import DotProductSimilarity as DotProductSimilarity
    from .pml import EmbeddingsAlreadyPackagedAsTriplets as EmbeddingsAlreadyPackagedAsTriplets
    from .pml import LossSettings as LossSettings
    from .pml import MinerSettings as MinerSettings
    from .pml import ModuleSettings as ModuleSettings
    from .pml import RegularizerSettings as RegularizerSettings

if TYPE_CHECKING:  # checks of settings
    from .settings import check_choice as check_choice
    from .settings import check_count as check_count
    from .settings import check_flag as check_flag
    from .settings import check_number as check_number
    from .settings import check_tile_size as check_tile_size

if TYPE_CHECKING:  # data sets, clustering, figures, trackers and stores
    from .data import DataSplits as DataSplits
    from .data import LabeledImages as LabeledImages
    from .evaluation import figures as figures
    from .evaluation import kmeans as kmeans
    from .files import write_atomically as write_atomically
    from .retrieval.stores import Rows as Rows
    from .retrieval.stores import SearchFilter as SearchFilter
    from .retrieval.stores import SearchResult as SearchResult
    from .retrieval.stores import Store as Store
    from .training.trackers import Tracker as Tracker

__getattr__ = lazily(__name__, "train", "data sets, clustering and figures of pml_ext.plugin")


def __dir__() -> list[str]:
    return sorted({*_own_imports(__name__)} - {"lazily", "_own_imports"})
