"""Pair losses, losses in tiles, cross-batch memory, gradient caching, and wrappers."""

from .cached import CachedGradients as CachedGradients, MicroBatched as MicroBatched
from .calling import (
    WrapperCapabilities as WrapperCapabilities,
    WrapsLoss as WrapsLoss,
    call_loss as call_loss,
    check_call as check_call,
    check_module as check_module,
    relation_of as relation_of,
    unwrapped as unwrapped,
)
from .compilation import Compilation as Compilation
from .listed import takes_conflicts as takes_conflicts, why_unusable as why_unusable
from .memory import CrossBatchMemory as CrossBatchMemory
from .nested import NestedLoss as NestedLoss
from .pair_loss import PairLoss as PairLoss, PairLossSettings as PairLossSettings
from .pairs import (
    Pairs as Pairs,
    Terms as Terms,
    per_anchor as per_anchor,
    per_pair as per_pair,
    per_triplet as per_triplet,
    reduced as reduced,
)
from .tiled import (
    TiledContrastiveLoss as TiledContrastiveLoss,
    TiledMultiSimilarityLoss as TiledMultiSimilarityLoss,
    TiledNTXentLoss as TiledNTXentLoss,
    TiledSupConLoss as TiledSupConLoss,
    TiledTripletMarginLoss as TiledTripletMarginLoss,
)
from .with_relation import WithRelation as WithRelation
from .wrappers import (
    MultipleLosses as MultipleLosses,
    RegularizedLoss as RegularizedLoss,
    SelfSupervisedLoss as SelfSupervisedLoss,
)
