"""What ``pml-ext bench`` measures :class:`~pml_ext_triplets.BatchAllTripletLoss` against."""

from __future__ import annotations

from typing import Any

from pml_ext.plugin import build


def all_triplets() -> Any:
    """PML's triplet loss, which lists all triplets and takes the mean of those that are not zero.

    Returns:
        A loss with the value of ``BatchAllTripletLoss()``.
    """
    return build("pml/triplet-margin", "loss", margin=0.2)
