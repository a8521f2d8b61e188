# The public names of pml_ext, for type checkers; a test compares them with __init__.py and with the registry.
from pml_ext.miners import SemiHardTripletMiner as SemiHardTripletMiner
from pml_ext.samplers import MPerLabelSampler as MPerLabelSampler
from pml_ext.samplers import TreeSampler as TreeSampler
from pml_ext_angular.losses import AngularLoss as AngularLoss
from pml_ext_angular.losses import AngularTripletLoss as AngularTripletLoss
from pml_ext_angular.losses import NPairAngularLoss as NPairAngularLoss
from pml_ext_angular.losses import NPairLoss as NPairLoss
from pml_ext_cbml.losses import CBMLLoss as CBMLLoss
from pml_ext_cbml.miners import HardPairMiner as HardPairMiner
from pml_ext_cbml.regularizers import MetricVarianceRegularizer as MetricVarianceRegularizer
from pml_ext_cbml.softmax import SoftmaxLoss as SoftmaxLoss
from pml_ext_density.clustering import ClusteringLoss as ClusteringLoss
from pml_ext_density.regularizers import DensityRegularizer as DensityRegularizer
from pml_ext_density.samplers import WholeClassSampler as WholeClassSampler
from pml_ext_density.spreading import EntropyRegularizer as EntropyRegularizer
from pml_ext_density.spreading import GlobalOrthogonalRegularizer as GlobalOrthogonalRegularizer
from pml_ext_pddm.distances import MahalanobisDistance as MahalanobisDistance
from pml_ext_pddm.distances import PDDMDistance as PDDMDistance
from pml_ext_pddm.losses import PDDMLoss as PDDMLoss
from pml_ext_pddm.miners import HardQuadrupletMiner as HardQuadrupletMiner
from pml_ext_search.trained import load_run as load_run
from pml_ext_triplets.losses import BatchAllTripletLoss as BatchAllTripletLoss
from pml_ext_triplets.miners import AnchorSwapMiner as AnchorSwapMiner
from pml_ext_triplets.miners import LocalPositiveMiner as LocalPositiveMiner
from pml_ext_triplets.samplers import HardNegativePoolSampler as HardNegativePoolSampler

from . import evaluation as evaluation
from . import plugin as plugin
from . import registry as registry
from . import testing as testing
from .distributed import DistributedBatchSampler as DistributedBatchSampler
from .distributed import DistributedLoss as DistributedLoss
from .distributed import DistributedMiner as DistributedMiner
from .distributed import keep_freed_memory as keep_freed_memory
from .errors import ConfigError as ConfigError
from .errors import DataError as DataError
from .errors import MissingExtraError as MissingExtraError
from .errors import PmlExtError as PmlExtError
from .evaluation import RetrievalAccuracyCalculator as RetrievalAccuracyCalculator
from .losses import CachedGradients as CachedGradients
from .losses import CrossBatchMemory as CrossBatchMemory
from .losses import MultipleLosses as MultipleLosses
from .losses import RegularizedLoss as RegularizedLoss
from .losses import SelfSupervisedLoss as SelfSupervisedLoss
from .losses import TiledContrastiveLoss as TiledContrastiveLoss
from .losses import TiledMultiSimilarityLoss as TiledMultiSimilarityLoss
from .losses import TiledNTXentLoss as TiledNTXentLoss
from .losses import TiledSupConLoss as TiledSupConLoss
from .losses import TiledTripletMarginLoss as TiledTripletMarginLoss
from .losses import WithRelation as WithRelation
from .registry import register as register
from .relations import DifferentGroups as DifferentGroups
from .relations import FromMatrix as FromMatrix
from .relations import Hierarchy as Hierarchy
from .relations import Near as Near
from .relations import NegativesOnly as NegativesOnly
from .relations import Relation as Relation
from .relations import SharedLabel as SharedLabel
from .whitening import TotalWhitening as TotalWhitening
from .whitening import WithinClassWhitening as WithinClassWhitening

__version__: str

def __dir__() -> list[str]: ...
