"""Recipes: TOML files with data set, network, loss, sampler, optimizer, schedule and evaluation of a training."""

from ..registry.lazy import require_packages

require_packages(("pydantic",), "train", "recipes")

from .build import build_dataset as build_dataset
from .build import build_loss as build_loss
from .build import build_network as build_network
from .build import build_relation as build_relation
from .build import build_tracker as build_tracker
from .build import flat as flat
from .build import loss_context as loss_context
from .build import merged as merged
from .build import nested as nested
from .build import origin_of as origin_of
from .build import origins_of as origins_of
from .build import own_optimizer as own_optimizer
from .build import preprocessing_of as preprocessing_of
from .build import reported_phases as reported_phases
from .merge import load_recipe as load_recipe
from .merge import load_recipes as load_recipes
from .merge import names_in as names_in
from .merge import pipelines as pipelines
from .merge import plugins_in as plugins_in
from .merge import ranges_of as ranges_of
from .merge import read_tables as read_tables
from .merge import tables_of_papers as tables_of_papers
from .merge import validate as validate
from .merge import variant_tables as variant_tables
from .papers import is_full as is_full
from .papers import papers as papers
from .papers import printed as printed
from .papers import quoted as quoted
from .papers import texts as texts
from .schema import Recipe as Recipe
