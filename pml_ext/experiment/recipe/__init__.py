"""Recipes: TOML files with data set, network, loss, sampler, optimizer, schedule and evaluation of a training."""

from .building import build_dataset as build_dataset
from .building import build_loss as build_loss
from .building import build_network as build_network
from .building import build_relation as build_relation
from .building import build_tracker as build_tracker
from .building import flat as flat
from .building import loss_context as loss_context
from .building import origin_of as origin_of
from .building import own_optimizer as own_optimizer
from .building import preprocessing_of as preprocessing_of
from .loading import load_recipes as load_recipes
from .loading import names_in as names_in
from .loading import pipelines as pipelines
from .loading import plugins_in as plugins_in
from .loading import ranges_of as ranges_of
from .loading import read_tables as read_tables
from .loading import tables_of_papers as tables_of_papers
from .loading import validate as validate
from .loading import variant_tables as variant_tables
from .papers import is_full as is_full
from .papers import papers as papers
from .papers import printed as printed
from .papers import quoted as quoted
from .papers import texts as texts
from .schema import Recipe as Recipe
