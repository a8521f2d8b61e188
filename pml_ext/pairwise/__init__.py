"""Pure tensor functions that every pair loss shares: precision, similarity, pair masks, masked reductions.

They work on dense matrices ``[B, R]`` (batch by references) with boolean masks, in float32 or float64 with autocast
off; nothing loops over anchors or waits for the device.
"""

from .batch import Float64Buffers as Float64Buffers
from .batch import apply_or_plain as apply_or_plain
from .batch import autocast_off as autocast_off
from .batch import check_batch as check_batch
from .batch import check_indices_tuple as check_indices_tuple
from .batch import check_references as check_references
from .batch import labels_as_tensor as labels_as_tensor
from .batch import labels_to_int64 as labels_to_int64
from .batch import normalizes as normalizes
from .batch import pair_to_full_precision as pair_to_full_precision
from .batch import run_eagerly as run_eagerly
from .batch import to_device as to_device
from .batch import to_full_precision as to_full_precision
from .batch import transformed as transformed
from .batch import widest_dtype as widest_dtype
from .batch import with_bad_input as with_bad_input
from .fill import fill_outside as fill_outside
from .fill import indicators as indicators
from .fill import prefers_floats as prefers_floats
from .fill import row_numbers as row_numbers
from .fill import scaled_product as scaled_product
from .fill import weights_of_shares as weights_of_shares
from .fill import without_tiny as without_tiny
from .fill import zero_at_most as zero_at_most
from .fill import zero_outside as zero_outside
from .listed import Kind as Kind
from .listed import ListedTuples as ListedTuples
from .listed import TupleBatch as TupleBatch
from .listed import sample_tuples as sample_tuples
from .masks import AllPairsExceptSelf as AllPairsExceptSelf
from .masks import PairsOfRows as PairsOfRows
from .masks import RelationWeights as RelationWeights
from .masks import all_entries as all_entries
from .masks import hard_pair_masks as hard_pair_masks
from .masks import pair_masks as pair_masks
from .masks import places_in as places_in
from .reductions import exp_bounded as exp_bounded
from .reductions import log_one_plus_exp as log_one_plus_exp
from .reductions import log_one_plus_sums as log_one_plus_sums
from .reductions import log_sum_exp as log_sum_exp
from .reductions import masked_max as masked_max
from .reductions import masked_mean as masked_mean
from .reductions import masked_min as masked_min
from .reductions import masked_sum as masked_sum
from .reductions import with_log_weights as with_log_weights
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
