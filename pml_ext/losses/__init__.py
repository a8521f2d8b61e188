"""The base of pair losses, what wraps losses, and how a wrapper calls one."""

from .cached import CachedGradients as CachedGradients
from .cached import MicroBatched as MicroBatched
from .calling import WrapperCapabilities as WrapperCapabilities
from .calling import call_loss as call_loss
from .calling import checked as checked
from .calling import inside as inside
from .calling import relation_of as relation_of
from .memory import CrossBatchMemory as CrossBatchMemory
from .multiple import MultipleLosses as MultipleLosses
from .pair_loss import PairLoss as PairLoss
from .pair_loss import PairLossSettings as PairLossSettings
from .pairs import Pairs as Pairs
from .pairs import Terms as Terms
from .pairs import per_anchor as per_anchor
from .pairs import per_pair as per_pair
from .pairs import per_triplet as per_triplet
from .pairs import reduced as reduced
from .regularized import RegularizedLoss as RegularizedLoss
from .self_supervised import SelfSupervisedLoss as SelfSupervisedLoss
from .tiled import TiledContrastiveLoss as TiledContrastiveLoss
from .tiled import TiledMultiSimilarityLoss as TiledMultiSimilarityLoss
from .tiled import TiledNTXentLoss as TiledNTXentLoss
from .tiled import TiledSupConLoss as TiledSupConLoss
from .tiled import TiledTripletMarginLoss as TiledTripletMarginLoss
from .with_relation import WithRelation as WithRelation
