"""The recipes NAME/blocks: last blocks of a pretrained trunk, from a head in closed form."""

import pytest

from pml_ext.errors import MissingExtraError
from pml_ext_train.recipe import load_recipe

NAMES = ("angular", "cbml", "density", "pddm", "pml/multi-similarity", "triplets")


@pytest.mark.parametrize("name", NAMES)
def test_blocks_differ_in_loss_and_rate(name):
    try:
        recipe = load_recipe(f"{name}/blocks").as_dict()
    except MissingExtraError:
        pytest.skip("the extra photos is not installed, whose trunk the recipes name")
    first = load_recipe("pml/multi-similarity/blocks").as_dict()
    model = recipe["model"]
    assert (model["start"], model["refit"], model["freeze"]["until"]) == ("within-class", "within-class", "blocks.5")
    if name == "pddm":
        first["optimizer"]["lr"] = 2e-4  # the rate of the others makes its embeddings collapse
    for table in ("model", "data", "sampler", "optimizer", "schedule"):
        assert recipe[table] == first[table]
    if name != "pml/multi-similarity":
        assert recipe["loss"] != first["loss"]
