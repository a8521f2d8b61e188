"""``pml-ext train --vectors``: what fits a file of vectors, and what of a recipe makes no sense for vectors."""

import numpy as np
import pytest

from pml_ext.errors import ConfigError, DataError
from pml_ext.recipe import build_dataset, build_network, load_recipe, load_recipes, reported_phases, vector_input_of
from pml_ext.recipe.vectors import describe_vectors, settings_for_vectors

from ..overrides import typed


def file_of(place, classes=4, each=10, size=6, **columns):
    labels = np.repeat([f"class {number}" for number in range(classes)], each)
    rows = np.random.default_rng(0).normal(size=(len(labels), size))
    np.savez(place / "mine.npz", embeddings=rows, labels=labels, **columns)
    return place / "mine.npz"


def test_few_classes_are_divided_by_image(tmp_path):
    found = describe_vectors(file_of(tmp_path))
    assert f"data.name=vectors:{tmp_path / 'mine.npz'}" in found.data
    assert "data.split=image" in found.data
    assert found.head == ["model.embedder=mlp", "model.embedding_size=6"]
    assert found.batches == ["sampler.m=5", "sampler.batch_size=20", "sampler.iterations=20"]
    assert found.description[0].endswith("mine.npz: 40 vectors of 6 numbers, 4 classes of 10")
    assert "20 vectors to train, 20 others of the same classes to test" in found.description[1]
    assert "--set data.split=class" in found.description[1]


def test_many_classes_are_held_out_and_get_a_linear_head(tmp_path):
    found = describe_vectors(file_of(tmp_path, classes=30, size=200))
    assert "data.split=class" in found.data
    assert found.head == ["model.embedder=linear", "model.embedding_size=128"]
    assert "15 classes to train, 15 others, never trained on, to test" in found.description[1]


def test_the_split_of_the_file_and_of_the_user_stay(tmp_path):
    parts = np.resize(["train", "train", "test", "validation"], 40)
    found = describe_vectors(file_of(tmp_path, split=parts))
    assert not any(setting.startswith("data.split") for setting in found.data)
    assert "evaluation.select_on=split" in found.data
    assert "train 20 of 4 classes, validation 10 of 4 classes, test 10 of 4 classes" in found.description[1]
    assert describe_vectors(file_of(tmp_path), {"data.split": "class"}).data == [
        f"data.name=vectors:{tmp_path}/mine.npz"
    ]


def test_a_file_written_as_in_a_recipe_and_below_a_folder(tmp_path):
    file_of(tmp_path)
    found = describe_vectors("vectors:mine.npz", root=tmp_path)
    assert found.name == "vectors:mine.npz"
    with pytest.raises(DataError, match=r"other.npz: no such file"):
        describe_vectors(tmp_path / "other.npz")


@pytest.mark.parametrize("recipe", ["pml/vectors", "cbml/digits", "density/digits", "cbml/frozen", "triplets/digits"])
def test_recipes_of_images_train_heads_on_vectors(tmp_path, recipe):
    settings = settings_for_vectors(recipe, describe_vectors(file_of(tmp_path)))
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
        ("model.views=4", "views: it is of a trunk for images"),
        ("model.freeze_batch_norm=true", "freeze_batch_norm: it is of a trunk for images"),
        ('model.freeze=["layer1"]', "freeze: it is of a trunk for images"),
    ],
)
def test_settings_of_images_are_refused_by_name(tmp_path, setting, message):
    fitting = settings_for_vectors("pml/vectors", describe_vectors(file_of(tmp_path)))
    with pytest.raises(ConfigError, match=message) as raised:
        load_recipe("pml/vectors", typed([*fitting, setting]))
    assert "\n" not in str(raised.value)


def test_the_trunk_of_vectors_refuses_images():
    recipe = load_recipe("cbml/digits", {"model.trunk": "identity"})
    with pytest.raises(ConfigError, match="identity is for vectors, and digits has images; wanted data.name = 'vec"):
        vector_input_of(recipe, build_dataset(recipe.data, None))


def test_a_path_alone_is_answered_with_the_name(tmp_path):
    file = file_of(tmp_path)
    with pytest.raises(ConfigError, match=f"for your own data type --set data.name=vectors:{file}"):
        load_recipe("pml/vectors", typed([f"data.name={file}"]))


def test_a_sampler_of_the_user_has_no_fitting_batches(tmp_path):
    override = "sampler.name=shuffle"
    settings = settings_for_vectors("pml/vectors", describe_vectors(file_of(tmp_path), typed([override])))
    assert load_recipe("pml/vectors", typed([*settings, override])).sampler.name == "shuffle"


def test_a_table_goes_over_the_fitting_settings(tmp_path):
    settings = settings_for_vectors("pml/vectors", describe_vectors(file_of(tmp_path)))
    recipe = load_recipe("pml/vectors", typed([*settings, "model={embedding_size=3}", "sampler={m=2, batch_size=8}"]))
    assert (recipe.model.embedding_size, recipe.sampler.batch_size) == (3, 8)
