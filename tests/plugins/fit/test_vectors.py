"""What fits a file of vectors: split, batches and head, and what can be delivered."""

import numpy as np
import pytest

from pml_ext.errors import DataError
from pml_ext_fit.vectors import closed_forms, describe_vectors
from pml_ext_train.recipe import load_recipe

from ...overrides import typed
from ..train.data.vector_files import file_of


def test_few_classes_are_divided_by_image(tmp_path):
    found = describe_vectors(file_of(tmp_path))
    assert found.data == {"data.name": f"vectors:{tmp_path / 'mine.npz'}", "data.split": "image"}
    assert found.head == {"model.embedder": "mlp", "model.embedding_size": 6}
    assert found.batches == {"sampler.m": 5, "sampler.batch_size": 20, "sampler.iterations": 20}
    assert found.description[0].endswith("mine.npz: 40 vectors of 6 numbers, 4 classes of 10")
    assert "20 vectors to train, 20 others of the same classes to test" in found.description[1]
    assert "--set data.split=class" in found.description[1]


def test_many_classes_get_a_linear_head(tmp_path):
    found = describe_vectors(file_of(tmp_path, classes=30, size=200))
    assert found.data["data.split"] == "class"
    assert found.head == {"model.embedder": "linear", "model.embedding_size": 128}
    assert "15 classes to train, 15 others, never trained on, to test" in found.description[1]


def test_splits_of_file_and_user_stay(tmp_path):
    parts = np.resize(["train", "train", "test", "validation"], 40)
    found = describe_vectors(file_of(tmp_path, split=parts))
    assert "data.split" not in found.data
    assert found.data["evaluation.select_on"] == "split"
    assert "train 20 of 4 classes, validation 10 of 4 classes, test 10 of 4 classes" in found.description[1]
    assert describe_vectors(file_of(tmp_path), typed(["data.split=class"])).data == {
        "data.name": f"vectors:{tmp_path}/mine.npz"
    }


def test_a_file_named_as_in_a_recipe(tmp_path):
    file_of(tmp_path)
    found = describe_vectors("vectors:mine.npz", root=tmp_path)
    assert found.name == "vectors:mine.npz"
    with pytest.raises(DataError, match=r"other.npz: no such file"):
        describe_vectors(tmp_path / "other.npz")


def test_closed_forms_are_recipes_the_simplest_first(tmp_path):
    known = closed_forms(describe_vectors(file_of(tmp_path)))
    titles = ["vectors, unwhitened", "vectors, whitened", "vectors, whitened within classes"]
    assert [candidate.title for candidate in known] == titles
    models = [load_recipe(candidate.recipe, candidate.settings).model for candidate in known]
    assert [model.embedder for model in models] == ["none", "pca", "within-class"]
    assert {model.embedding_size for model in models} == {6}
