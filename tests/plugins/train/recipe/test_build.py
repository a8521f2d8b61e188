"""What is built from the tables of a recipe."""

import pytest

from pml_ext.errors import ConfigError
from pml_ext_train.recipe import (
    augmentation_of,
    build_dataset,
    build_loss,
    plugins_in,
    preprocessing_of,
)

from .recipes import one


def test_a_learned_metric_has_the_models_size():
    recipe = one("pddm/digits", "model.embedding_size=24")
    for table in (recipe.loss, type(recipe.loss)(name="pddm")):  # the class says what it needs
        loss, _ = build_loss(table, {"embedding_size": 24, "collect_stats": True})
        assert loss.distance.embedding_size == 24
    assert one("pddm/digits", "evaluation.shortlist=8").evaluation.shortlist == 8
    with pytest.raises(ConfigError, match="loss.miner: hard-quadruplet has parameters"):
        one("pddm/digits", 'loss.miner={name="hard-quadruplet", distance={name="pddm"}}')
    assert one("pddm/digits", "loss.miner.name=hard-quadruplet").loss.miner is not None


PLUGIN_WITH_A_TRANSFORM = """
from pml_ext.plugin import hookimpl

class Noise:
    '''Noise of one strength.'''
    def __init__(self, strength: int = 10):
        self.strength = strength
    def __call__(self, image):
        import torch
        noise = torch.randint(self.strength + 1, image.shape)
        return (image + noise).clamp(max=255).to(torch.uint8)

@hookimpl
def pml_ext_transforms():
    return {"noise": Noise}
"""


@pytest.mark.usefixtures("isolated_registry")
def test_transforms_are_built_with_their_settings(install_plugin):
    install_plugin("noisy", PLUGIN_WITH_A_TRANSFORM)
    inner = "{name='RandomApply', p=1.0, transforms=['RandomInvert', {name='RandomRotation', degrees=15}]}"
    recipe = one("cbml/digits", f"data.augment.transforms=[{{name='noise', strength=3}}, {inner}]")
    preprocessing, cuts = preprocessing_of(recipe, build_dataset(recipe.data, None))
    settings = augmentation_of(recipe.data, preprocessing)
    (steps,) = settings["transforms"]
    noise, apply = (transform.function for transform in steps.transforms)
    assert noise.strength == 3
    assert [type(each).__name__ for each in apply.transforms] == ["RandomInvert", "RandomRotation"]
    assert apply.transforms[1].degrees == [-15.0, 15.0]
    augmented, _ = preprocessing.transforms(cuts, **settings)
    assert '{"name": "noise", "strength": 3}' in repr(augmented)  # tells kept features apart
    assert "noisy" in plugins_in(recipe.as_dict())
    with pytest.raises(ConfigError, match="transforms.0.strength: found 'x'; input should be a valid integer"):
        one("cbml/digits", "data.augment.transforms=[{name='noise', strength='x'}]")


def test_an_unfit_transform_is_named_by_place():
    recipe = one("cbml/digits", "data.augment.transforms=['RandomInvert', {name='Resize', size=9}]")
    preprocessing, _ = preprocessing_of(recipe, build_dataset(recipe.data, None))
    wanted = r"data.augment.transforms.1: Resize returns uint8 \[1, 9, 9\]; it must return uint8 \[1, 8, 8\]"
    with pytest.raises(ConfigError, match=wanted):
        augmentation_of(recipe.data, preprocessing)
