"""Tensor functions of pair losses: precision, similarity, masks, masked reductions.

They work on matrices ``[B, R]`` (batch by references) in float32 or float64, with autocast off.
"""

from .batch import (
    Float64Buffers as Float64Buffers,
    apply_or_plain as apply_or_plain,
    autocast_off as autocast_off,
    check_batch as check_batch,
    check_indices_tuple as check_indices_tuple,
    check_references as check_references,
    constant as constant,
    labels_as_tensor as labels_as_tensor,
    labels_to_int64 as labels_to_int64,
    normalizes as normalizes,
    pair_to_full_precision as pair_to_full_precision,
    run_eagerly as run_eagerly,
    to_device as to_device,
    to_full_precision as to_full_precision,
    transformed as transformed,
    widest_dtype as widest_dtype,
    with_bad_input as with_bad_input,
)
from .listed import Kind as Kind, ListedTuples as ListedTuples, TupleBatch as TupleBatch, sample_tuples as sample_tuples
from .masks import (
    AllPairsExceptSelf as AllPairsExceptSelf,
    PairsOfRows as PairsOfRows,
    RelationWeights as RelationWeights,
    all_entries as all_entries,
    fill_outside as fill_outside,
    hard_pair_masks as hard_pair_masks,
    indicators as indicators,
    pair_masks as pair_masks,
    pairs_and_limits as pairs_and_limits,
    places_in as places_in,
    prefers_floats as prefers_floats,
    weights_of_shares as weights_of_shares,
    without_tiny as without_tiny,
    zero_at_most as zero_at_most,
    zero_outside as zero_outside,
)
from .reductions import (
    exp_bounded as exp_bounded,
    log_one_plus_exp as log_one_plus_exp,
    log_one_plus_sums as log_one_plus_sums,
    log_sum_exp as log_sum_exp,
    masked_max as masked_max,
    masked_mean as masked_mean,
    masked_min as masked_min,
    masked_sum as masked_sum,
    masked_sums as masked_sums,
    with_log_weights as with_log_weights,
)
from .similarity import (
    cosine_similarity as cosine_similarity,
    euclidean_distances as euclidean_distances,
    gram as gram,
    normalize as normalize,
    normalized_matrix as normalized_matrix,
)
from .tiles import (
    Sharing as Sharing,
    in_parts as in_parts,
    in_tiles as in_tiles,
    rows_per_tile as rows_per_tile,
    shared as shared,
    tiles_of_rows as tiles_of_rows,
)
