"""Everything that a command on runs may import from ``pml_ext``: runs, networks, images, metrics, output, errors.

The names are imported on first use, so that a command imports what it uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import __version__ as __version__
from .registry.lazy import lazily

if TYPE_CHECKING:
    from . import registry as registry
    from .cli.options import AsJson as AsJson
    from .cli.options import DataFolder as DataFolder
    from .cli.options import Device as Device
    from .cli.options import ImageFolder as ImageFolder
    from .cli.options import OnDevice as OnDevice
    from .cli.options import Overrides as Overrides
    from .cli.options import RayAddress as RayAddress
    from .cli.options import RunFolder as RunFolder
    from .cli.options import StoreFolder as StoreFolder
    from .cli.options import Workers as Workers
    from .cli.output import Progress as Progress
    from .cli.output import mean_and_std as mean_and_std
    from .cli.output import print_json as print_json
    from .cli.output import print_result as print_result
    from .cli.output import print_table as print_table
    from .cli.output import process_number as process_number
    from .cli.output import say as say
    from .cli.output import stderr as stderr
    from .cli.output import stdout as stdout
    from .data import Steps as Steps
    from .data import image_tensor as image_tensor
    from .data import read_image as read_image
    from .data.reading import FORMATS as FORMATS
    from .distributed import from_rank_0 as from_rank_0
    from .distributed import from_ranks as from_ranks
    from .distributed import num_processes as num_processes
    from .distributed import process_group as process_group
    from .distributed import rank as rank
    from .distributed.devices import Precision as Precision
    from .distributed.devices import autocast as autocast
    from .distributed.devices import check_precision as check_precision
    from .distributed.devices import choose_device as choose_device
    from .errors import ConfigError as ConfigError
    from .errors import DataError as DataError
    from .errors import PmlExtError as PmlExtError
    from .errors import StoppedError as StoppedError
    from .errors import TrainingError as TrainingError
    from .errors import UnwritableError as UnwritableError
    from .errors import counted as counted
    from .errors import first_of as first_of
    from .errors import needs_extra as needs_extra
    from .errors import one_line as one_line
    from .errors import printable as printable
    from .errors import shortened as shortened
    from .errors import unknown as unknown
    from .evaluation import Search as Search
    from .evaluation import figures as figures
    from .evaluation import has_faiss as has_faiss
    from .evaluation import kmeans as kmeans
    from .evaluation import learned_metric as learned_metric
    from .evaluation import neighbors_under as neighbors_under
    from .evaluation import reranked_under as reranked_under
    from .evaluation.figures import BLUE as BLUE
    from .evaluation.figures import GRAY as GRAY
    from .evaluation.figures import WRONG as WRONG
    from .evaluation.figures import Cell as Cell
    from .evaluation.figures import answer as answer
    from .evaluation.figures import gallery as gallery
    from .evaluation.fonts import drawable as drawable
    from .evaluation.fonts import font_file as font_file
    from .evaluation.fonts import short_name as short_name
    from .evaluation.neighbors import nearest_of as nearest_of
    from .evaluation.neighbors import without as without
    from .evaluation.projection import COLORS as COLORS
    from .evaluation.projection import SHAPES as SHAPES
    from .evaluation.projection import flattened as flattened
    from .evaluation.projection import mark as mark
    from .evaluation.sampling import sample_indices as sample_indices
    from .files import DamagedError as DamagedError
    from .files import locked_folder as locked_folder
    from .files import read_json as read_json
    from .files import read_toml as read_toml
    from .files import write_atomically as write_atomically
    from .files import write_json as write_json
    from .files import write_text as write_text
    from .files import writing as writing
    from .files.checksums import check_unchanged as check_unchanged
    from .files.checksums import sha256_of as sha256_of
    from .networks.network import Network as Network
    from .networks.network import Preprocessing as Preprocessing
    from .networks.trunks import builtin_trunk as builtin_trunk
    from .pml import BaseDistance as BaseDistance
    from .recipe import Recipe as Recipe
    from .recipe import build_dataset as build_dataset
    from .recipe import build_loss as build_loss
    from .recipe import build_network as build_network
    from .recipe import flat as flat
    from .recipe import is_full as is_full
    from .recipe import load_recipe as load_recipe
    from .recipe import load_recipes as load_recipes
    from .recipe import loss_context as loss_context
    from .recipe import merged as merged
    from .recipe import nested as nested
    from .recipe import plugins_in as plugins_in
    from .recipe import preprocessing_of as preprocessing_of
    from .recipe import quoted as quoted
    from .recipe import ranges_of as ranges_of
    from .recipe import tables_of_papers as tables_of_papers
    from .recipe.schema import PaperTable as PaperTable
    from .recipe.schema import TuneTable as TuneTable
    from .registry.lazy import lazily as lazily
    from .report import ReportFigure as ReportFigure
    from .report import ReportTable as ReportTable
    from .report import draw as draw
    from .report import percent as percent
    from .report import render as render
    from .training import checkpoint as checkpoint
    from .training import signals as signals
    from .training.batches import WorkerDataset as WorkerDataset
    from .training.batches import data_loader as data_loader
    from .training.evaluation import nearest as nearest
    from .training.export import write_export as write_export
    from .training.features import FeatureCache as FeatureCache
    from .training.launch import QUICK as QUICK
    from .training.launch import Plan as Plan
    from .training.launch import execute as execute
    from .training.launch import locked as locked
    from .training.launch import read_metrics as read_metrics
    from .training.launch import spread as spread
    from .training.launch import train as train
    from .training.records import CURVE as CURVE
    from .training.records import VALIDATION as VALIDATION
    from .training.records import Records as Records
    from .training.records import Series as Series
    from .training.records import metric_series as metric_series
    from .training.records import write_csv as write_csv
    from .training.run import METRICS as METRICS
    from .training.run import Listener as Listener
    from .training.run import Run as Run
    from .training.run import Silence as Silence
    from .training.trackers import phases_of as phases_of
    from .training.view import View as View

__getattr__ = lazily(__name__, "train", "the names of pml_ext.tool")
