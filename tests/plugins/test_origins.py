"""Settings of packaged recipes: an origin of every one where a table is named."""

import tomllib

import pytest

from pml_ext import registry
from pml_ext.experiment.recipe import Recipe, flat, origin_of, pipelines, read_tables, variant_tables

NO_SETTINGS = ("description", "extends", "paper", "origin", "sweep", "tune")
RECIPES = [name for name in registry.recipes() if read_tables(name).get("paper", {}).get("table")]
IN_NO_PAPER = ("model.norm", "model.dropout", "model.freeze")  # a group's origin, "paper", is not theirs


def stated(tables):
    """The origins that a table of a file states: its own, and those of its pipelines."""
    extends = tables.get("extends", [])
    named = [extends] if isinstance(extends, str) else extends
    files = [tomllib.loads(pipelines()[name].read_text("utf-8")) for name in named if name.startswith("pipelines/")]
    return {key: text for each in [*files, tables] for key, text in each.get("origin", {}).items()}


def settings(tables):
    return flat({key: value for key, value in tables.items() if key not in NO_SETTINGS})


@pytest.mark.parametrize("name", RECIPES)
def test_every_setting_of_a_recipe_that_names_a_table_has_an_origin(name):
    for full, tables in variant_tables(name).items():
        resolved = flat(
            Recipe.model_validate(tables).model_dump(exclude={"description", "paper", "track"}, exclude_none=True)
        )
        origins = {key: origin_of(key, tables.get("origin", {})) for key in resolved}
        assert [key for key, origin in origins.items() if not origin] == [], full
        assert [key for key in IN_NO_PAPER if origins[key].startswith("paper")] == [], full


@pytest.mark.parametrize("name", RECIPES)
def test_a_file_states_the_origin_of_what_it_sets(name):
    """An inherited origin is of the inherited value."""
    tables = tomllib.loads(registry.find("recipe", name)[1].read_text("utf-8"))
    own = stated(tables)
    without = [key for key in settings(tables) if not origin_of(key, own)]
    for entry, choices in tables.get("sweep", {}).items():
        if isinstance(choices, list):
            without += [entry] if not origin_of(entry, own) else []
            continue
        for label, choice in choices.items():
            known = own | stated(choice)
            without += [f"{entry}.{label}: {key}" for key in settings(choice) if not origin_of(key, known)]
    assert without == []
