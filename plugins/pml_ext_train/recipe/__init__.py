"""Recipes: TOML files that describe a training."""

from .build import (
    VECTORS as VECTORS,
    augmentation_of as augmentation_of,
    build_dataset as build_dataset,
    build_network as build_network,
    build_trunk as build_trunk,
    preprocessing_of as preprocessing_of,
    vector_input_of as vector_input_of,
)
from .check import (
    check_conflicts as check_conflicts,
    check_listed as check_listed,
    check_listed_loss as check_listed_loss,
)
from .conversion import FILLED_FOR_TRACKER as FILLED_FOR_TRACKER, options_of as options_of
from .load import (
    load_recipe as load_recipe,
    load_recipes as load_recipes,
    naming_settings as naming_settings,
    ranges_of as ranges_of,
    validate as validate,
)
from .losses import (
    build_loss as build_loss,
    build_optimizer as build_optimizer,
    build_relation as build_relation,
    check_class_weights as check_class_weights,
    loss_context as loss_context,
    own_optimizer as own_optimizer,
)
from .names import names_in as names_in, plugins_in as plugins_in
from .override import (
    Override as Override,
    Overrides as Overrides,
    overrides_of as overrides_of,
    parse_override as parse_override,
    tables_of as tables_of,
)
from .papers import (
    Quoted as Quoted,
    is_full as is_full,
    names_of_tables as names_of_tables,
    paper_values as paper_values,
    papers as papers,
    printed as printed,
    quoted as quoted,
    tables_of_papers as tables_of_papers,
    texts as texts,
)
from .phases import (
    reported_phases as reported_phases,
    stage_before_whole as stage_before_whole,
    trains_pretrained_trunk as trains_pretrained_trunk,
)
from .read import pipelines as pipelines, read_tables as read_tables, variant_tables as variant_tables
from .schema import (
    DataTable as DataTable,
    Freeze as Freeze,
    LossTable as LossTable,
    NamedTable as NamedTable,
    Recipe as Recipe,
    ScheduleTable as ScheduleTable,
    StageTable as StageTable,
    TuneTable as TuneTable,
    cut_of as cut_of,
    frozen_patterns as frozen_patterns,
    wrong_setting as wrong_setting,
)
from .sweep import without_variant as without_variant
from .tables import (
    flat as flat,
    merged as merged,
    name_or_value as name_or_value,
    nested as nested,
    origin_of as origin_of,
    origins_of as origins_of,
    overridden as overridden,
)
