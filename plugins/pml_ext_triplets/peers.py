"""What ``pml-ext bench`` measures :class:`~pml_ext_triplets.BatchAllTripletLoss` against."""

from __future__ import annotations

from pytorch_metric_learning.losses import TripletMarginLoss


def all_triplets() -> TripletMarginLoss:
    """PML's triplet loss, which lists all triplets and takes the mean of those that are not zero.

    Returns:
        A loss with the value of ``BatchAllTripletLoss()``.
    """
    return TripletMarginLoss(margin=0.2)
