"""The small versions of the papers' rows: the settings that the papers, or their programs, have."""

import pytest

from pml_ext.experiment.recipe import load_recipes, own_optimizer


def rows(name):
    """``{variant: recipe}``."""
    return {full.partition("@")[2]: recipe for full, recipe in load_recipes(name).items()}


def one(name):
    (recipe,) = load_recipes(name).values()
    return recipe


def test_cbml_takes_the_sum_where_it_stands_beside_the_tables():
    for name in ("cbml/omniglot-small-averaging", "cbml/omniglot-small-mvc-weight"):
        assert {recipe.loss.settings["mvc_reduction"] for recipe in rows(name).values()} == {"sum"}
    assert one("cbml/multi-similarity-omniglot-small").loss.regularizer.settings["reduction"] == "sum"
    averaging = rows("cbml/omniglot-small-averaging")
    assert averaging["const"].loss.settings["delta"] == 0.25
    assert "delta" not in averaging["log"].loss.settings


@pytest.mark.parametrize("loss", ["", "-triplet", "-n-pair"])
def test_density_trains_as_the_paper_says(loss):
    recipe = one(f"density/omniglot-small{loss}")
    assert (recipe.sampler.settings["m"], recipe.sampler.batch_size) == (10, 100)
    targets = own_optimizer(recipe.optimizer, recipe.loss)
    assert (targets.lr, targets.scheduled) == (recipe.optimizer.lr, True)
    margin = {"": "neg_margin", "-triplet": "margin"}.get(loss)
    assert margin is None or recipe.loss.settings[margin] == 1
    assert loss != "-n-pair" or recipe.loss.settings == {}  # normalized, without an l2 term


def test_angular_rows_are_all_raw_or_all_normalized():
    raw, normalized = rows("angular/omniglot-small-raw"), rows("angular/omniglot-small-normalized")
    assert list(raw) == list(normalized) == ["t-i", "t-ii", "ls", "nl", "al", "nl-al"]
    for row in raw:
        losses = raw[row].loss.settings, normalized[row].loss.settings
        where = [each.get("distance", each).get("normalize_embeddings", True) for each in losses]
        assert where == [False, True], row
        assert losses[0]["embedding_reg_weight"] == 0.02
        assert "embedding_reg_weight" not in losses[1]
        assert raw[row].sampler == normalized[row].sampler
    assert {name: row.sampler.name for name, row in raw.items()} == {
        **dict.fromkeys(raw, "pml/m-per-class"),
        "t-i": "hard-negative-pool",
    }


def test_pddm_as_printed():
    recipe = one("pddm/omniglot-small-as-printed")
    assert (recipe.sampler.batch_size, recipe.sampler.settings["m"]) == (64, 4)
    for table in (recipe.optimizer, own_optimizer(recipe.optimizer, recipe.loss)):
        assert (table.name, table.lr, table.settings, table.weight_decay) == ("sgd", 1e-4, {"momentum": 0.9}, 5e-4)
    assert recipe.loss.settings["num_quadruplets"] == 1
