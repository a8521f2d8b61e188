"""What can be delivered for a folder of images."""

import pytest

from pml_ext import choice
from pml_ext.choice import candidates
from pml_ext.recipe import load_recipe
from pml_ext.recipe.images import describe_images

from ..overrides import typed


def test_many_images_get_fewer_views():
    assert [candidates.views_of(count) for count in (10, 1_875, 4_052, 15_000, 10**6)] == [8, 8, 3, 1, 1]


def test_candidates_are_recipes_in_the_order_of_cost(photos):
    found = describe_images(photos)
    known = candidates.candidates(found)
    assert [candidate.title for candidate in known] == [
        "frozen features", "frozen features, whitened", "head on frozen features", "last blocks",
        "small network from scratch",
    ]  # fmt: skip
    if choice.why_not():
        pytest.skip("the extra photos is not installed, whose trunk the recipes name")
    recipes = [load_recipe(candidate.recipe, typed(candidate.settings)) for candidate in known]
    assert [recipe.model.embedder for recipe in recipes] == ["none", "pca", "linear", "linear", "linear"]
    assert recipes[3].model.freeze.until == "blocks.5"
    assert {recipe.data.images.crop for recipe in recipes[:4]} == {160}
    assert recipes[3].sampler.iterations == 20


def test_candidates_may_see_whole_images(photos):
    found = describe_images(photos)
    assert found.aspect == 1
    known = candidates.candidates(found, squash=True)
    assert known[0].title == "frozen features of whole images"
    for candidate in known[:4]:
        assert "data.images.squash=true" in candidate.settings
    assert "data.images.squash=true" not in known[4].settings
