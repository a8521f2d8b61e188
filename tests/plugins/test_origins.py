"""Settings of packaged recipes: an origin of every one where a table is named, and values of the small versions."""

import tomllib

import pytest

from pml_ext import registry
from pml_ext_train.recipe import (
    Recipe,
    flat,
    load_recipes,
    origin_of,
    origins_of,
    own_optimizer,
    pipelines,
    read_tables,
    variant_tables,
)

NO_SETTINGS = ("description", "extends", "paper", "origin", "sweep", "tune")
RECIPES = [name for name in registry.recipes() if read_tables(name).get("paper", {}).get("table")]
SETTINGS = {  # CBML takes the sum where it stands beside the tables; density has ten images of ten classes
    "cbml/omniglot-small-averaging@const": {"loss.mvc_reduction": "sum", "loss.delta": 0.25},
    "cbml/omniglot-small-averaging@log": {"loss.mvc_reduction": "sum", "loss.delta": None},
    "cbml/omniglot-small-mvc-weight@0.1": {"loss.mvc_reduction": "sum"},
    "cbml/multi-similarity-omniglot-small": {"loss.regularizer.reduction": "sum"},
    "density/omniglot-small": {"sampler.m": 10, "sampler.batch_size": 100, "loss.neg_margin": 1},
    "density/omniglot-small-triplet": {"sampler.m": 10, "sampler.batch_size": 100, "loss.margin": 1},
    "density/omniglot-small-n-pair": {"sampler.m": 10, "loss.normalize_embeddings": None, "loss.l2_reg_weight": None},
    "pddm/omniglot-small-as-printed": {
        "sampler.m": 4,
        "sampler.batch_size": 64,
        "optimizer.name": "sgd",
        "optimizer.lr": 1e-4,
        "optimizer.momentum": 0.9,
        "optimizer.weight_decay": 5e-4,
        "loss.num_quadruplets": 1,
    },
}
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
def test_every_setting_of_recipes_has_an_origin(name):
    for full, tables in variant_tables(name).items():
        resolved = flat(
            Recipe.model_validate(tables).model_dump(exclude={"description", "paper", "track"}, exclude_none=True)
        )
        origins = origins_of(resolved, tables.get("origin", {}))
        assert [key for key, origin in origins.items() if not origin] == [], full
        assert [key for key in IN_NO_PAPER if origins[key].startswith("paper")] == [], full
        if resolved["schedule.name"] == "constant":
            unused = ("schedule.gamma", "optimizer.scheduled")
            assert {origins[key].partition(" ")[0] for key in unused} <= {"without", "ours", "ours,", "ours:"}, full
        if resolved["schedule.name"] == "cosine":
            assert origins["schedule.gamma"] == "without effect here", full


@pytest.mark.parametrize("name", RECIPES)
def test_a_file_states_its_settings_origins(name):
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


@pytest.mark.parametrize("name", SETTINGS)
def test_small_versions_have_the_papers_settings(name):
    (recipe,) = load_recipes(name).values()
    values = flat(recipe.as_dict())
    assert {key: values.get(key) for key in SETTINGS[name]} == SETTINGS[name]
    own = own_optimizer(recipe.optimizer, recipe.loss)
    assert (own.lr, own.settings) == (recipe.optimizer.lr, recipe.optimizer.settings) or name.startswith("cbml")
    assert own.scheduled or not name.startswith("density")


def test_sizes_of_small_networks_are_ours():
    for full, tables in variant_tables("triplets/small-networks").items():
        for key in ("model.trunk.blocks", "model.trunk.width"):
            assert origin_of(key, tables["origin"]).startswith("ours"), full
