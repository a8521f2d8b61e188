# The names of pml_ext.plugin, by what they are for; plugin.py imports each on its first use.

# hooks, components, errors
from .errors import ConfigError as ConfigError
from .errors import DataError as DataError
from .errors import TrainingWarning as TrainingWarning
from .registry import BuildContext as BuildContext
from .registry import build as build
from .registry.components import Command as Command
from .registry.components import Component as Component
from .registry.components import Paper as Paper
from .registry.components import capabilities as capabilities
from .registry.hooks import hookimpl as hookimpl
from .registry.hooks import packaged as packaged
from .run_view import RunView as RunView

# losses of pairs, and what they are reduced from
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

# distances, miners, regularizers, reducers, samplers, relations
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

# functions of matrices of pairs
from .pairwise import indicators as indicators
from .pairwise import places_in as places_in
from .pairwise import prefers_floats as prefers_floats
from .pairwise import without_tiny as without_tiny
from .pairwise import weights_of_shares as weights_of_shares
from .pairwise import zero_outside as zero_outside
from .pairwise import Float64Buffers as Float64Buffers
from .pairwise import all_entries as all_entries
from .pairwise import apply_or_plain as apply_or_plain
from .pairwise import autocast_off as autocast_off
from .pairwise import check_batch as check_batch
from .pairwise import constant as constant
from .pairwise import euclidean_distances as euclidean_distances
from .pairwise import exp_bounded as exp_bounded
from .pairwise import fill_outside as fill_outside
from .pairwise import gram as gram
from .pairwise import hard_pair_masks as hard_pair_masks
from .pairwise import in_parts as in_parts
from .pairwise import in_tiles as in_tiles
from .pairwise import log_one_plus_exp as log_one_plus_exp
from .pairwise import log_one_plus_sums as log_one_plus_sums
from .pairwise import log_sum_exp as log_sum_exp
from .pairwise import masked_max as masked_max
from .pairwise import masked_mean as masked_mean
from .pairwise import masked_min as masked_min
from .pairwise import masked_sum as masked_sum
from .pairwise import masked_sums as masked_sums
from .pairwise import normalize as normalize
from .pairwise import pair_masks as pair_masks
from .pairwise import pairs_and_limits as pairs_and_limits
from .pairwise import pair_to_full_precision as pair_to_full_precision
from .pairwise import rows_per_tile as rows_per_tile
from .pairwise import run_eagerly as run_eagerly
from .pairwise import tiles_of_rows as tiles_of_rows
from .pairwise import to_full_precision as to_full_precision
from .pairwise import transformed as transformed
from .pairwise import widest_dtype as widest_dtype
from .pairwise import with_log_weights as with_log_weights

# PML's base classes, and the types of their settings
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

# checks of settings
from .settings import check_choice as check_choice
from .settings import check_count as check_count
from .settings import check_flag as check_flag
from .settings import check_number as check_number
from .settings import check_tile_size as check_tile_size

# data sets, clustering, figures, trackers and stores
from .evaluation import kmeans as kmeans

import pml_ext_train.data as _data
import pml_ext_train.files as _files
import pml_ext_train.records as _records
import pml_ext_train.report as _report
import pml_ext_train.retrieval as _retrieval

DataSplits = _data.DataSplits
LabeledImages = _data.LabeledImages
Rows = _retrieval.Rows
SearchFilter = _retrieval.SearchFilter
SearchResult = _retrieval.SearchResult
Store = _retrieval.Store
Tracker = _records.Tracker
figures = _report.figures
write_atomically = _files.write_atomically
