"""The small versions of the papers' rows: the settings that the papers, or their programs, have."""

import pytest

from pml_ext.experiment.recipe import load_recipes, own_optimizer

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


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_are_the_papers(name):
    ((_, recipe),) = load_recipes(name).items()
    for key, wanted in SETTINGS[name].items():
        value = recipe.as_dict()
        for part in key.split("."):
            value = value.get(part)
        assert value == wanted, key
    own = own_optimizer(recipe.optimizer, recipe.loss)
    assert (own.lr, own.settings) == (recipe.optimizer.lr, recipe.optimizer.settings) or name.startswith("cbml")
    assert own.scheduled or not name.startswith("density")
