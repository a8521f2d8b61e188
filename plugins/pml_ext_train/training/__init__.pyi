from .activations import GIGABYTE as GIGABYTE, TrunkCut as TrunkCut, in_units as in_units, size_of as size_of
from .batches import embed_batches as embed_batches
from .closed_form import refit as refit
from .evaluation import nearest as nearest
from .features import FeatureCache as FeatureCache
from .listener import Listener as Listener, Silence as Silence
from .loader import WorkerDataset as WorkerDataset, data_loader as data_loader
from .loop import train_run as train_run
from .run import Run as Run
from .session import open_run as open_run
from .signals import (
    PASSED_ON as PASSED_ON,
    check as check,
    handle_signals as handle_signals,
    listening as listening,
    stopped as stopped,
)
