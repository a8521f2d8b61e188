# Written by python -m pml_ext.stub; a test holds it to the registry.
from typing import Any

from pml_ext.miners import SemiHardTripletMiner as SemiHardTripletMiner
from pml_ext_angular.losses import AngularLoss as AngularLoss
from pml_ext_angular.losses import AngularTripletLoss as AngularTripletLoss
from pml_ext_angular.losses import NPairAngularLoss as NPairAngularLoss
from pml_ext_angular.losses import NPairLoss as NPairLoss
from pml_ext_cbml.losses import CBMLLoss as CBMLLoss
from pml_ext_cbml.miners import HardPairMiner as HardPairMiner
from pml_ext_cbml.regularizers import MetricVarianceRegularizer as MetricVarianceRegularizer
from pml_ext_cbml.softmax import SoftmaxLoss as SoftmaxLoss
from pml_ext_density.regularizers import DensityRegularizer as DensityRegularizer
from pml_ext_density.spreading import EntropyRegularizer as EntropyRegularizer
from pml_ext_density.spreading import GlobalOrthogonalRegularizer as GlobalOrthogonalRegularizer
from pml_ext_pddm.distances import PDDMDistance as PDDMDistance
from pml_ext_pddm.losses import PDDMLoss as PDDMLoss
from pml_ext_pddm.miners import HardQuadrupletMiner as HardQuadrupletMiner
from pml_ext_triplets.losses import BatchAllTripletLoss as BatchAllTripletLoss
from pml_ext_triplets.miners import AnchorSwapMiner as AnchorSwapMiner
from pml_ext_triplets.miners import LocalPositiveMiner as LocalPositiveMiner
from pml_ext_triplets.samplers import HardNegativePoolSampler as HardNegativePoolSampler

from . import benchmark as benchmark
from . import cli as cli
from . import components as components
from . import data as data
from . import distances as distances
from . import distributed as distributed
from . import errors as errors
from . import evaluation as evaluation
from . import experiment as experiment
from . import hookspecs as hookspecs
from . import losses as losses
from . import models as models
from . import pairwise as pairwise
from . import plugin as plugin
from . import plugins as plugins
from . import reducers as reducers
from . import registry as registry
from . import regularizers as regularizers
from . import retrieval as retrieval
from . import samplers as samplers
from . import settings as settings
from . import testing as testing
from .components import Component as Component
from .components import Paper as Paper
from .distributed import DistributedLoss as DistributedLoss
from .distributed import DistributedMiner as DistributedMiner
from .errors import ConfigError as ConfigError
from .errors import DataError as DataError
from .errors import MissingExtraError as MissingExtraError
from .errors import PluginError as PluginError
from .errors import PmlExtError as PmlExtError
from .errors import TrainingError as TrainingError
from .errors import UnknownNameError as UnknownNameError
from .evaluation import RetrievalAccuracyCalculator as RetrievalAccuracyCalculator
from .hookspecs import hookimpl as hookimpl
from .losses import CachedGradients as CachedGradients
from .losses import CrossBatchMemory as CrossBatchMemory
from .losses import MultipleLosses as MultipleLosses
from .losses import PairLoss as PairLoss
from .losses import RegularizedLoss as RegularizedLoss
from .losses import SelfSupervisedLoss as SelfSupervisedLoss
from .losses import TiledContrastiveLoss as TiledContrastiveLoss
from .losses import TiledMultiSimilarityLoss as TiledMultiSimilarityLoss
from .losses import TiledNTXentLoss as TiledNTXentLoss
from .losses import TiledSupConLoss as TiledSupConLoss
from .losses import TiledTripletMarginLoss as TiledTripletMarginLoss
from .registry import register as register
from .regularizers import LabeledRegularizer as LabeledRegularizer
from .regularizers import LabelledRegularizer as LabelledRegularizer
from .retrieval import load_run as load_run
from .samplers import WholeClassSampler as WholeClassSampler

__version__: str

def __getattr__(name: str) -> Any: ...  # classes of other distributions and of the running process
def __dir__() -> list[str]: ...
