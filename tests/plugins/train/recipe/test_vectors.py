"""Recipes on a file of vectors: what of a recipe makes no sense for vectors."""

import pytest

from pml_ext.errors import ConfigError
from pml_ext_train.recipe import (
    build_dataset,
    build_network,
    load_recipe,
    load_recipes,
    reported_phases,
    vector_input_of,
)

from ....overrides import typed
from ..data.vector_files import file_of


@pytest.mark.parametrize("recipe", ["fit/vectors", "cbml/digits", "density/digits", "cbml/frozen", "triplets/digits"])
def test_recipes_of_images_train_heads_on_vectors(tmp_path, recipe):
    settings = [f"data.name=vectors:{file_of(tmp_path)}", "data.split=image", "model.trunk=identity"]
    (built,) = load_recipes(recipe, typed(settings)).values()
    splits = build_dataset(built.data, None)
    network = build_network(built.model, vector_input_of(built, splits))
    assert built.model.freeze == "trunk"
    assert network(splits.train.vectors).shape == (len(splits.train), built.model.embedding_size)
    assert {"raw", "pca", "before"} <= set(reported_phases(built))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("data.images.crop=224", "data.images.crop: it is for images, and vectors:.* has vectors; leave it out"),
        ("data.images.flip=true", "data.images.flip: it is for images"),
        ("data.augment.shift=2", "data.augment.shift: it is for images"),
        ("data.augment.transforms=RandomInvert", "data.augment.transforms: it is for images"),
        ("data.views=2", "data.views: it is for images"),
        ("data.cache=memory", "data.cache: it is for images"),
        ("data.workers=2", "data.workers: it is for images"),
        ("data.unreadable=skip", "data.unreadable: it is for images"),
        ("data.image_size=32", "data.image_size: no setting of vectors"),
        ("engine.channels_last=true", "engine.channels_last: it is for images"),
        ("model.trunk=convnet", "model.trunk: convnet is for images, and vectors:.*; --set model.trunk=identity"),
        ("model.trunk.width=3", "model.trunk.width: "),
        ("model.views=4", "views: it is for trunks of images"),
        ("model.freeze_batch_norm=true", "freeze_batch_norm: it is for trunks of images"),
        ('model.freeze=["layer1"]', "freeze: it is for trunks of images"),
    ],
)
def test_settings_of_images_are_refused_by_name(tmp_path, setting, message):
    fitting = [f"data.name=vectors:{file_of(tmp_path)}", "data.split=image"]
    with pytest.raises(ConfigError, match=message) as raised:
        load_recipe("fit/vectors", typed([*fitting, setting]))
    assert "\n" not in str(raised.value)


def test_the_trunk_of_vectors_refuses_images():
    recipe = load_recipe("cbml/digits", {"model.trunk": "identity"})
    with pytest.raises(ConfigError, match="identity is for vectors, but digits has images; set data.name = 'vec"):
        vector_input_of(recipe, build_dataset(recipe.data, None))


def test_a_path_alone_is_answered_with_the_name(tmp_path):
    file = file_of(tmp_path)
    with pytest.raises(ConfigError, match=f"for your own data type --set data.name=vectors:{file}"):
        load_recipe("fit/vectors", typed([f"data.name={file}"]))
