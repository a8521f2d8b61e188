"""What can be delivered for a folder of images."""

from dataclasses import replace

import pytest

from pml_ext_fit import candidates
from pml_ext_fit.images import describe_images

from .helpers import needs_weights, recipe_of


@pytest.mark.parametrize(("images", "views"), [(10, 8), (1_875, 8), (4_052, 3), (15_000, 1), (10**6, 1)])
def test_many_images_get_fewer_views(photos, images, views):
    found = replace(describe_images(photos), training_images=images)
    assert candidates.LastBlocks(found).views == views


def test_candidates_are_recipes_in_the_order_of_cost(photos):
    known = candidates.candidates(describe_images(photos))
    assert [candidate.title for candidate in known] == [
        "frozen features", "frozen features, whitened", "head on frozen features", "last blocks",
        "small network from scratch",
    ]  # fmt: skip
    needs_weights()
    recipes = [recipe_of(candidate) for candidate in known]
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
        assert candidate.settings["data.images.squash"] is True
    assert "data.images.squash" not in known[4].settings


def test_time_is_estimated_by_candidate(photos):
    found = replace(describe_images(photos), training_images=1000, tested_images=100)
    assert candidates.FrozenFeatures(found).seconds(0.5) == 0.5 * 2400
    assert candidates.HeadOnFeatures(found).seconds(0.5) == 0
    needs_weights()
    seen = 64 * found.iterations() * 2 * 8
    assert candidates.LastBlocks(found).seconds(0.5) == 0.5 * (8000 + 0.75 * seen)
