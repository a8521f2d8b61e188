# The public names of pml_ext, for type checkers; a test compares them with __init__.py and with the registry.
from pml_ext.miners import SemiHardTripletMiner as SemiHardTripletMiner
from pml_ext.samplers import MPerLabelSampler as MPerLabelSampler, TreeSampler as TreeSampler
from pml_ext_angular.losses import (
    AngularLoss as AngularLoss,
    AngularTripletLoss as AngularTripletLoss,
    NPairAngularLoss as NPairAngularLoss,
    NPairLoss as NPairLoss,
)
from pml_ext_cbml.losses import CBMLLoss as CBMLLoss
from pml_ext_cbml.miners import HardPairMiner as HardPairMiner
from pml_ext_cbml.regularizers import MetricVarianceRegularizer as MetricVarianceRegularizer
from pml_ext_cbml.softmax import SoftmaxLoss as SoftmaxLoss
from pml_ext_density.clustering import ClusteringLoss as ClusteringLoss
from pml_ext_density.regularizers import DensityRegularizer as DensityRegularizer
from pml_ext_density.samplers import WholeClassSampler as WholeClassSampler
from pml_ext_density.spreading import (
    EntropyRegularizer as EntropyRegularizer,
    GlobalOrthogonalRegularizer as GlobalOrthogonalRegularizer,
)
from pml_ext_pddm.distances import MahalanobisDistance as MahalanobisDistance, PDDMDistance as PDDMDistance
from pml_ext_pddm.losses import PDDMLoss as PDDMLoss
from pml_ext_pddm.miners import HardQuadrupletMiner as HardQuadrupletMiner
from pml_ext_search.trained import load_run as load_run
from pml_ext_train.launch import train as train
from pml_ext_triplets.losses import BatchAllTripletLoss as BatchAllTripletLoss
from pml_ext_triplets.miners import AnchorSwapMiner as AnchorSwapMiner, LocalPositiveMiner as LocalPositiveMiner
from pml_ext_triplets.samplers import HardNegativePoolSampler as HardNegativePoolSampler

from . import evaluation as evaluation, plugin as plugin, registry as registry, testing as testing
from .distributed import (
    DistributedBatchSampler as DistributedBatchSampler,
    DistributedLoss as DistributedLoss,
    DistributedMiner as DistributedMiner,
    keep_freed_memory as keep_freed_memory,
)
from .errors import (
    ConfigError as ConfigError,
    DataError as DataError,
    MissingExtraError as MissingExtraError,
    PmlExtError as PmlExtError,
)
from .evaluation import RetrievalAccuracyCalculator as RetrievalAccuracyCalculator
from .losses import (
    CachedGradients as CachedGradients,
    CrossBatchMemory as CrossBatchMemory,
    MultipleLosses as MultipleLosses,
    NestedLoss as NestedLoss,
    RegularizedLoss as RegularizedLoss,
    SelfSupervisedLoss as SelfSupervisedLoss,
    TiledContrastiveLoss as TiledContrastiveLoss,
    TiledMultiSimilarityLoss as TiledMultiSimilarityLoss,
    TiledNTXentLoss as TiledNTXentLoss,
    TiledSupConLoss as TiledSupConLoss,
    TiledTripletMarginLoss as TiledTripletMarginLoss,
    WithRelation as WithRelation,
)
from .registry import register as register
from .relations import (
    DifferentGroups as DifferentGroups,
    FromMatrix as FromMatrix,
    Hierarchy as Hierarchy,
    Near as Near,
    NegativesOnly as NegativesOnly,
    Relation as Relation,
    SharedLabel as SharedLabel,
)
from .whitening import TotalWhitening as TotalWhitening, WithinClassWhitening as WithinClassWhitening

__version__: str

def __dir__() -> list[str]: ...
