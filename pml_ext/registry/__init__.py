"""The registry: components, recipes, data sets and more, found by name in the installed plugins."""

from ..settings import settings_of as settings_of
from .components import CAPABILITIES as CAPABILITIES
from .components import KINDS as KINDS
from .components import Component as Component
from .components import Paper as Paper
from .components import capabilities as capabilities
from .components import kind_of as kind_of
from .discovery import LOCAL as LOCAL
from .lookup import BuildContext as BuildContext
from .lookup import build as build
from .lookup import candidates as candidates
from .lookup import check_settings as check_settings
from .lookup import class_names as class_names
from .lookup import components as components
from .lookup import factories as factories
from .lookup import factory as factory
from .lookup import fill_settings as fill_settings
from .lookup import find as find
from .lookup import get as get
from .lookup import isolated as isolated
from .lookup import lacking as lacking
from .lookup import plugins as plugins
from .lookup import recipes as recipes
from .lookup import register as register
from .lookup import short_name as short_name
from .lookup import version_of as version_of
