"""What can be delivered for a folder of images."""

from dataclasses import replace

from pml_ext_fit import candidates
from pml_ext_fit.framing import DEFAULT, Framing
from pml_ext_fit.trunk import LITE0

from .helpers import recipe_of


def test_candidates_are_recipes_the_simplest_first(images, weights):
    known = [*candidates.closed_forms(images, DEFAULT, LITE0), *candidates.trained(images, DEFAULT, LITE0)]
    assert [candidate.title for candidate in known] == [
        "frozen features", "frozen features, whitened", "frozen features, whitened within classes", "last blocks",
        "small network from scratch",
    ]  # fmt: skip
    recipes = [recipe_of(candidate) for candidate in known]
    assert [recipe.model.embedder for recipe in recipes] == ["none", "pca", "within-class", "linear", "linear"]
    assert [recipe.model.freeze for recipe in recipes[:3]] == ["trunk"] * 3
    assert [recipe.model.embedding_size for recipe in recipes[:3]] == [1280] * 3
    assert [recipe.model.shrinkage for recipe in recipes[:3]] == [None, 0.6, 0.6]
    assert {recipe.data.images.crop for recipe in recipes[:4]} == {224}


def test_last_blocks_begin_and_end_in_closed_form(images, weights):
    recipe = recipe_of(candidates.last_blocks(images))
    model = recipe.model
    assert (model.freeze.until, model.start, model.refit, model.views) == (
        "blocks.5",
        "within-class",
        "within-class",
        1,
    )
    assert (recipe.data.images.flip, recipe.data.images.random_crop_scale) == (False, None)
    assert recipe.sampler.iterations == 20


def test_more_blocks_train_from_an_earlier_one(images, weights):
    deeper = candidates.last_blocks(images, first="blocks.3")
    assert deeper.title == "last blocks from blocks.3"
    assert recipe_of(deeper).model.freeze.until == "blocks.3"


def test_candidates_see_images_in_one_way(images):
    framing = Framing(160, squash=True)
    for candidate in [*candidates.closed_forms(images, framing, LITE0), candidates.trained(images, framing, LITE0)[0]]:
        assert candidate.settings["data.images.squash"] is True
        assert candidate.settings["data.images.crop"] == 160
    assert "data.images.squash" not in candidates.trained(images, framing, LITE0)[1].settings


def test_trials_have_fewer_batches_than_runs(images):
    blocks = candidates.last_blocks(images)
    assert blocks.trial_settings(9, 0.75) == {
        "sampler.m": 6,
        "sampler.batch_size": 54,
        "sampler.iterations": 20,
    }
    many = candidates.last_blocks(replace(images, training_images=10_000))
    assert many.trial_settings(9, 0.75)["sampler.iterations"] == 20
