"""Pure tensor functions that every pair loss shares: precision, similarity, pair masks, masked reductions.

They work on dense matrices ``[B, R]`` (batch by references) with boolean masks, in float32 or float64 with autocast
off, as :class:`FullPrecisionForward` sets it up; nothing loops over anchors or waits for the device.
"""

from .batch import FullPrecisionForward as FullPrecisionForward
from .batch import FullPrecisionMining as FullPrecisionMining
from .batch import autocast_off as autocast_off
from .batch import check_batch as check_batch
from .batch import check_indices_tuple as check_indices_tuple
from .batch import check_references as check_references
from .batch import normalizes as normalizes
from .batch import pair_to_full_precision as pair_to_full_precision
from .batch import to_full_precision as to_full_precision
from .batch import with_bad_input as with_bad_input
from .classes import ClassLabels as ClassLabels
from .classes import ClassMembers as ClassMembers
from .classes import class_members as class_members
from .masks import AllButItself as AllButItself
from .masks import PairsOfRows as PairsOfRows
from .masks import all_places as all_places
from .masks import hard_pair_masks as hard_pair_masks
from .masks import pair_masks as pair_masks
from .reductions import exp_bounded as exp_bounded
from .reductions import log_one_plus_exp as log_one_plus_exp
from .reductions import log_sum_exp as log_sum_exp
from .reductions import log_sums_exp as log_sums_exp
from .reductions import masked_max as masked_max
from .reductions import masked_mean as masked_mean
from .reductions import masked_min as masked_min
from .reductions import masked_sum as masked_sum
from .reductions import moments_of_pairs as moments_of_pairs
from .reductions import with_log_weights as with_log_weights
from .relations import RELATIONS as RELATIONS
from .relations import FromMatrix as FromMatrix
from .relations import Hierarchy as Hierarchy
from .relations import NegativesOnly as NegativesOnly
from .relations import Related as Related
from .relations import Relation as Relation
from .relations import SharedLabel as SharedLabel
from .relations import label_tensors as label_tensors
from .relations import related as related
from .relations import related_pairs as related_pairs
from .similarity import cosine_similarity as cosine_similarity
from .similarity import euclidean_distances as euclidean_distances
from .similarity import gram as gram
from .similarity import normalize as normalize
from .tiles import Sharing as Sharing
from .tiles import in_parts as in_parts
from .tiles import in_tiles as in_tiles
from .tiles import rows_per_tile as rows_per_tile
from .tiles import shared as shared
from .tiles import tiles_of_rows as tiles_of_rows
from .transforms import apart as apart
from .transforms import transformed as transformed
