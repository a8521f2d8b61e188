"""Everything that a command on runs may import from ``pml_ext``: runs, networks, images, metrics, output, errors.

The names are imported on first use, so that a command imports what it uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import __version__ as __version__
from .lazy import lazily

if TYPE_CHECKING:  # the command line: options, output
    from .cli.options import AsJson as AsJson
    from .cli.options import ComparedBy as ComparedBy
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
    from .cli.results import print_results as print_results

if TYPE_CHECKING:  # errors, and texts of errors
    from .errors import ConfigError as ConfigError
    from .errors import DataError as DataError
    from .errors import MissingExtraError as MissingExtraError
    from .errors import NothingToLearnError as NothingToLearnError
    from .errors import PluginError as PluginError
    from .errors import PmlExtError as PmlExtError
    from .errors import StoppedError as StoppedError
    from .errors import TooManyPixelsError as TooManyPixelsError
    from .errors import TrainingError as TrainingError
    from .errors import UnwritableError as UnwritableError
    from .errors import counted as counted
    from .errors import first_of as first_of
    from .errors import needs_extra as needs_extra
    from .errors import one_line as one_line
    from .errors import printable as printable
    from .errors import shortened as shortened
    from .errors import unknown as unknown

if TYPE_CHECKING:  # recipes and their overrides
    from .recipe import Override as Override
    from .recipe import Recipe as Recipe
    from .recipe import build_dataset as build_dataset
    from .recipe import build_network as build_network
    from .recipe import flat as flat
    from .recipe import load_recipe as load_recipe
    from .recipe import load_recipes as load_recipes
    from .recipe import overridden as overridden
    from .recipe import overrides_of as overrides_of
    from .recipe import paper_values as paper_values
    from .recipe import plugins_in as plugins_in
    from .recipe import preprocessing_of as preprocessing_of
    from .recipe import ranges_of as ranges_of
    from .recipe import read_tables as read_tables
    from .recipe import reported_phases as reported_phases
    from .recipe import tables_of as tables_of
    from .recipe import tables_of_papers as tables_of_papers
    from .recipe import validate as validate
    from .recipe.build import VECTORS as VECTORS
    from .recipe.schema import DataTable as DataTable
    from .recipe.schema import TuneTable as TuneTable
    from .recipe.schema import problem_of as problem_of
    from .recipe.tables import name_or_value as name_or_value

if TYPE_CHECKING:  # trunks: by the names of options, and what they are like
    from .networks.hf import HF as HF
    from .networks.hf import image_size_of as image_size_of
    from .networks.last_blocks import last_blocks as last_blocks
    from .networks.naming import named_trunk as named_trunk
    from .networks.pretrained import pretrained_images as pretrained_images
    from .networks.texts import text_encoder as text_encoder
    from .networks.trunks import output_size as output_size
    from .recipe.build import build_trunk as build_trunk

if TYPE_CHECKING:  # runs: started, followed, opened again
    from .training import activations as activations
    from .training import signals as signals
    from .training.batches import embed_batches as embed_batches
    from .training.closed_form import refit as refit
    from .training.database import write_csv as write_csv
    from .training.evaluation import nearest as nearest
    from .training.features import FeatureCache as FeatureCache
    from .training.finished import is_finished as is_finished
    from .training.finished import read_metrics as read_metrics
    from .training.finished import tables_of_run as tables_of_run
    from .training.folder import CHOICE as CHOICE
    from .training.folder import RECIPE as RECIPE
    from .training.folder import TRIALS as TRIALS
    from .training.folder import check_unchanged as check_unchanged
    from .training.folder import remove_run as remove_run
    from .training.launch import QUICK as QUICK
    from .training.launch import execute as execute
    from .training.launch import locked as locked
    from .training.launch import train as train
    from .training.listener import Listener as Listener
    from .training.listener import Silence as Silence
    from .training.loaded import LoadedRun as LoadedRun
    from .training.loader import WorkerDataset as WorkerDataset
    from .training.loader import data_loader as data_loader
    from .training.loop import train_run as train_run
    from .training.measured import Measurement as Measurement
    from .training.measured import add_measurement as add_measurement
    from .training.opened import open_run as open_run
    from .training.plan import LOCK as LOCK
    from .training.plan import Plan as Plan
    from .training.plan import check_folder as check_folder
    from .training.plan import default_folder as default_folder
    from .training.plan import restarted as restarted
    from .training.run import Run as Run
    from .training.series import metric_by_epoch as metric_by_epoch
    from .training.signals import PASSED_ON as PASSED_ON
    from .training.signals import handle_signals as handle_signals
    from .training.summary import spread as spread
    from .training.trackers import import_tracker as import_tracker
    from .training.trackers import phases_of as phases_of
    from .training.trial import train_and_validate as train_and_validate

if TYPE_CHECKING:  # data: images, vectors, folders
    from .data import Steps as Steps
    from .data import VectorFile as VectorFile
    from .data import cache_folder as cache_folder
    from .data import image_tensor as image_tensor
    from .data import is_vector_file as is_vector_file
    from .data import open_image as open_image
    from .data import prepare as prepare
    from .data import read_image as read_image
    from .data import read_vectors as read_vectors
    from .data.folder import CLUSTERS_COLUMNS as CLUSTERS_COLUMNS
    from .data.folder import CLUSTERS_TABLE as CLUSTERS_TABLE
    from .data.folder import GONE as GONE
    from .data.folder import SPLIT_FOLDERS as SPLIT_FOLDERS
    from .data.folder import VALIDATION_FOLDERS as VALIDATION_FOLDERS
    from .data.folder import class_levels as class_levels
    from .data.folder import contact_sheets as contact_sheets
    from .data.folder import is_run as is_run
    from .data.folder import listed_sheets as listed_sheets
    from .data.reading import IMAGE_ENDINGS as IMAGE_ENDINGS
    from .data.rows import columns_of_parquet as columns_of_parquet
    from .data.rows import is_empty as is_empty
    from .data.rows import read_rows as read_rows
    from .data.table import TableRow as TableRow
    from .data.table import has_split as has_split
    from .data.table import rows_of_table as rows_of_table
    from .data.thumbnail import placeholder as placeholder
    from .data.thumbnail import thumbnail as thumbnail

if TYPE_CHECKING:  # networks, and what stands behind them
    from .networks.memory_format import use_channels_last as use_channels_last
    from .networks.network import By as By
    from .networks.network import Network as Network
    from .networks.network import Preprocessing as Preprocessing
    from .pml import BaseDistance as BaseDistance
    from .whitening import TotalWhitening as TotalWhitening
    from .whitening import WithinClassWhitening as WithinClassWhitening

if TYPE_CHECKING:  # metrics, neighbors, figures
    from .evaluation import KReciprocal as KReciprocal
    from .evaluation import NearestNeighbors as NearestNeighbors
    from .evaluation import QueryExpansion as QueryExpansion
    from .evaluation import Search as Search
    from .evaluation import best_threshold as best_threshold
    from .evaluation import has_faiss as has_faiss
    from .evaluation import kmeans as kmeans
    from .evaluation import neighbors_under as neighbors_under
    from .evaluation import reranked_under as reranked_under
    from .evaluation.calculator import RetrievalAccuracyCalculator as RetrievalAccuracyCalculator
    from .evaluation.figures import BLUE as BLUE
    from .evaluation.figures import GRAY as GRAY
    from .evaluation.figures import WRONG as WRONG
    from .evaluation.figures import Cell as Cell
    from .evaluation.figures import answer as answer
    from .evaluation.figures import epoch_curves as epoch_curves
    from .evaluation.figures import gallery as gallery
    from .evaluation.fonts import drawable as drawable
    from .evaluation.fonts import font_families as font_families
    from .evaluation.fonts import short_name as short_name
    from .evaluation.metrics import SMALLER_IS_BETTER as SMALLER_IS_BETTER
    from .evaluation.metrics import is_known_metric as is_known_metric
    from .evaluation.metrics import is_of_clusters as is_of_clusters
    from .evaluation.metrics import is_of_protocol as is_of_protocol
    from .evaluation.metrics import title_of as title_of
    from .evaluation.neighbors import nearest_of as nearest_of
    from .evaluation.neighbors import without as without
    from .evaluation.projection import COLORS as COLORS
    from .evaluation.projection import SHAPES as SHAPES
    from .evaluation.projection import flattened as flattened
    from .evaluation.projection import mark as mark
    from .evaluation.recall_sample import RecallSample as RecallSample
    from .evaluation.sampling import sample_indices as sample_indices

if TYPE_CHECKING:  # reports
    from .report import ReportFigure as ReportFigure
    from .report import ReportTable as ReportTable
    from .report import draw as draw
    from .report import percent as percent
    from .report import render as render

if TYPE_CHECKING:  # files, written whole or not at all
    from .files import DamagedError as DamagedError
    from .files import check_writable as check_writable
    from .files import final_path as final_path
    from .files import locked_folder as locked_folder
    from .files import read_json as read_json
    from .files import read_toml as read_toml
    from .files import write_atomically as write_atomically
    from .files import write_json as write_json
    from .files import write_text as write_text
    from .files import writing as writing
    from .files.checksums import sha256_of as sha256_of
    from .files.stat import MISSING as MISSING
    from .files.stat import FileStat as FileStat
    from .files.stat import as_spelled as as_spelled
    from .files.stat import composed as composed
    from .files.stat import doubt_about as doubt_about
    from .files.stat import file_stat as file_stat
    from .files.stat import is_inside as is_inside
    from .files.stat import path_bytes as path_bytes
    from .files.stat import utf8_of as utf8_of

if TYPE_CHECKING:  # devices and processes
    from .distributed import from_rank_0 as from_rank_0
    from .distributed import from_ranks as from_ranks
    from .distributed import num_processes as num_processes
    from .distributed import process_group as process_group
    from .distributed import rank as rank
    from .distributed.allocator import keep_freed_memory as keep_freed_memory
    from .distributed.devices import Precision as Precision
    from .distributed.devices import autocast as autocast
    from .distributed.devices import check_precision as check_precision
    from .distributed.devices import choose_device as choose_device
    from .distributed.processes import share_of as share_of
    from .distributed.threads import threads_for as threads_for

if TYPE_CHECKING:  # plugins, services between tools, and checks of kinds of their own
    from . import registry as registry
    from .registry.services import service as service
    from .retrieval.fit import EmbeddingListener as EmbeddingListener
    from .retrieval.fit import FitService as FitService
    from .retrieval.images import EmbeddedImages as EmbeddedImages
    from .retrieval.images import ImageCluster as ImageCluster
    from .retrieval.images import ImageClusters as ImageClusters
    from .retrieval.mirror import Changes as Changes
    from .retrieval.mirror import Mirror as Mirror
    from .retrieval.mirror import StoresService as StoresService
    from .retrieval.parts import EmbeddedRows as EmbeddedRows
    from .retrieval.parts import FileEmbedder as FileEmbedder
    from .retrieval.parts import ImageListing as ImageListing
    from .retrieval.parts import PartsService as PartsService
    from .retrieval.parts import RowsOfFolder as RowsOfFolder
    from .retrieval.parts import Written as Written
    from .retrieval.run import SearchedRun as SearchedRun
    from .retrieval.run import SearchService as SearchService
    from .retrieval.stores import Numbers as Numbers
    from .retrieval.stores import Vectors as Vectors
    from .testing.contracts import Named as Named
    from .testing.contracts import requires_no_options as requires_no_options
    from .testing.contracts import takes_arguments as takes_arguments
    from .testing.subject import SkipCheck as SkipCheck

__getattr__ = lazily(__name__, "train", "the names of pml_ext.tool")
