"""Pure tensor functions that every pair loss shares: precision, similarity, pair masks, masked reductions.

All work on dense matrices of shape ``[B, R]`` (batch by references) with boolean masks, so that nothing loops over
anchors, copies to the CPU or waits for the device. They take float32 or float64 with autocast off, as
:class:`FullPrecisionForward` sets it up.
"""

from .batch import (
    FullPrecisionForward,
    FullPrecisionMining,
    autocast_off,
    check_batch,
    check_indices_tuple,
    check_references,
    normalizes,
    pair_to_full_precision,
    to_full_precision,
    with_bad_input,
)
from .classes import ClassLabels, ClassMembers, class_members
from .euclidean import euclidean_distances
from .masks import PairsOfRows, all_places, hard_pair_masks, pair_masks
from .reductions import exp_bounded, log_one_plus_sum_exp, masked_max, masked_mean, masked_min, masked_sum
from .similarity import cosine_similarity, gram, normalize
from .tiles import Sharing, in_tiles, rows_per_tile, shared, sharing, tiles_of_rows
from .transforms import apart, transformed

__all__ = [
    "ClassLabels",
    "ClassMembers",
    "FullPrecisionForward",
    "FullPrecisionMining",
    "PairsOfRows",
    "Sharing",
    "all_places",
    "apart",
    "autocast_off",
    "check_batch",
    "check_indices_tuple",
    "check_references",
    "class_members",
    "cosine_similarity",
    "euclidean_distances",
    "exp_bounded",
    "gram",
    "hard_pair_masks",
    "in_tiles",
    "log_one_plus_sum_exp",
    "masked_max",
    "masked_mean",
    "masked_min",
    "masked_sum",
    "normalize",
    "normalizes",
    "pair_masks",
    "pair_to_full_precision",
    "rows_per_tile",
    "shared",
    "sharing",
    "tiles_of_rows",
    "to_full_precision",
    "transformed",
    "with_bad_input",
]
