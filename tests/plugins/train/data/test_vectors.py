"""Vectors to train on: their splits, and what is told of them."""

import numpy as np
import pytest

from pml_ext.errors import ConfigError
from pml_ext_train.data import vectors

from .vector_files import PARTS, ROWS, npz


def test_the_split_of_the_file(tmp_path):
    parts = [*PARTS[:3], "validation", *PARTS[4:]]
    splits = vectors(tmp_path, path=str(npz(tmp_path, split=np.array(parts))))
    assert splits.train.ids.tolist() == ["0", "1", "2"]
    assert splits.validation.ids.tolist() == ["3"]
    assert splits.test.ids.tolist() == ["4", "5", "6", "7"]
    assert splits.vector_size == 3
    vector, label = splits.test[0]
    assert vector.tolist() == [12.0, 13.0, 14.0]
    assert splits.test.class_names[label] == "owl"


def test_a_split_by_class_or_by_image(tmp_path):
    file = str(npz(tmp_path))
    by_class = vectors(path=file, train_fraction=0.7)
    assert not set(by_class.train.labels) & set(by_class.test.labels)
    by_image = vectors(path=file, split="image", seed=1)
    assert set(by_image.train.labels) == set(by_image.test.labels)
    assert not set(by_image.train.ids) & set(by_image.test.ids)


def test_other_keys_are_named(tmp_path):
    assert (
        "mine.npz: not used: texts; the keys that are used are embeddings"
        in vectors(path=str(npz(tmp_path, texts=np.arange(3))), split="image").note
    )


def test_vectors_without_a_direction_are_named(tmp_path):
    rows = ROWS.copy()
    rows[[2, 5]] = 0
    assert (
        "2 of 8 vectors are all 0, 2 first: they"
        in vectors(path=str(npz(tmp_path, embeddings=rows)), split="image").note
    )


def test_training_classes_of_one_are_named(tmp_path):
    file = npz(tmp_path, labels=np.array([*"abcd", "e", "e", "f", "f"]), split=np.array(PARTS))
    assert "no class has two of the 4 vectors to train with" in vectors(path=str(file)).note


@pytest.mark.parametrize("option", [{"split": "class"}, {"train_fraction": 0.3}, {"seed": 0}])
def test_a_split_of_both_is_refused(tmp_path, option):
    file = npz(tmp_path, split=np.array(PARTS))
    with pytest.raises(ConfigError, match=f"{next(iter(option))}: found .* has a split of its own; leave one out"):
        vectors(path=str(file), **option)
    with pytest.raises(ConfigError, match="train_fraction must be above 0 and below 1, not 0"):
        vectors(path=str(npz(tmp_path)), train_fraction=0)
