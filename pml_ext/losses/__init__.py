"""The base of pair losses, what wraps losses, and how a wrapper calls one."""

from .cached import CachedGradients, MicroBatched
from .calling import WrapperCapabilities, call_loss, inside
from .memory import CrossBatchMemory
from .multiple import MultipleLosses
from .pair_loss import PairLoss, PairLossSettings
from .pairs import Pairs, Terms, per_anchor, per_pair, per_triplet, reduced
from .regularized import RegularizedLoss
from .self_supervised import SelfSupervisedLoss
from .tiled import (
    TiledContrastiveLoss,
    TiledMultiSimilarityLoss,
    TiledNTXentLoss,
    TiledSupConLoss,
    TiledTripletMarginLoss,
)

__all__ = [
    "CachedGradients",
    "CrossBatchMemory",
    "MicroBatched",
    "MultipleLosses",
    "PairLoss",
    "PairLossSettings",
    "Pairs",
    "RegularizedLoss",
    "SelfSupervisedLoss",
    "Terms",
    "TiledContrastiveLoss",
    "TiledMultiSimilarityLoss",
    "TiledNTXentLoss",
    "TiledSupConLoss",
    "TiledTripletMarginLoss",
    "WrapperCapabilities",
    "call_loss",
    "inside",
    "per_anchor",
    "per_pair",
    "per_triplet",
    "reduced",
]
