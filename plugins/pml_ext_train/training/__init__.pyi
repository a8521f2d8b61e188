from .activations import GIGABYTE as GIGABYTE, TrunkCut as TrunkCut, in_units as in_units, size_of as size_of
from .batches import Batch as Batch, draw as draw, embed_batches as embed_batches, epoch_batches as epoch_batches
from .checkpoint import load as load
from .checkpointing import Checkpointer as Checkpointer
from .closed_form import refit as refit
from .engine import Engine as Engine, Objective as Objective, Step as Step
from .evaluation import (
    clustered as clustered,
    evaluate_split as evaluate_split,
    metrics_after as metrics_after,
    nearest as nearest,
    tested_features as tested_features,
)
from .feature_reader import FeatureReader as FeatureReader
from .features import FeatureCache as FeatureCache, Features as Features
from .listener import Listener as Listener, Silence as Silence
from .loader import WorkerDataset as WorkerDataset, data_loader as data_loader
from .loop import train_run as train_run
from .pseudo_labels import relabel as relabel
from .run import OnNonfinite as OnNonfinite, Run as Run
from .signals import (
    PASSED_ON as PASSED_ON,
    check as check,
    handle_signals as handle_signals,
    listening as listening,
    stopped as stopped,
)
from .stages import Stages as Stages
from .state import load_model as load_model, open_run as open_run
from .view import NoLabelsError as NoLabelsError, View as View
from .workers import worker_context as worker_context
