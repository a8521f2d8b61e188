"""Vectors to train on: their splits, and their notes."""

import numpy as np
import pytest

from pml_ext.errors import ConfigError
from pml_ext_train.data import vectors

from .vector_files import PARTS, ROWS, npz


def test_vectors_are_split_by_their_file(tmp_path):
    parts = [*PARTS[:3], "validation", *PARTS[4:]]
    splits = vectors(tmp_path, path=str(npz(tmp_path, split=np.array(parts))))
    ids = [part.ids.tolist() for part in (splits.train, splits.validation, splits.test)]
    assert (ids, splits.vector_size) == ([["0", "1", "2"], ["3"], ["4", "5", "6", "7"]], 3)
    vector, label = splits.test[0]
    assert (vector.tolist(), splits.test.class_names[label]) == ([12.0, 13.0, 14.0], "owl")


def test_vectors_are_split_by_class_or_image(tmp_path):
    file = str(npz(tmp_path))
    by_class = vectors(path=file, train_fraction=0.7)
    assert not set(by_class.train.labels) & set(by_class.test.labels)
    by_image = vectors(path=file, split="image", seed=1)
    assert set(by_image.train.labels) == set(by_image.test.labels)
    assert not set(by_image.train.ids) & set(by_image.test.ids)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"texts": np.arange(3)}, "mine.npz: not used: texts; the keys used are embeddings"),
        ({"embeddings": ROWS * ~np.isin(range(8), [2, 5])[:, None]}, "2 of 8 vectors are all 0, 2 first; they"),
        (
            {"labels": np.array([*"abcd", "e", "e", "f", "f"]), "split": np.array(PARTS)},
            "no class has two of the 4 training vectors, so there are no positive pairs",
        ),
    ],
)
def test_unused_keys_and_doubtful_vectors_are_noted(tmp_path, changes, text):
    split = None if "split" in changes else "image"
    assert text in vectors(path=str(npz(tmp_path, **changes)), split=split).note


@pytest.mark.parametrize("option", [{"split": "class"}, {"train_fraction": 0.3}, {"seed": 0}])
def test_split_settings_conflict_with_the_file(tmp_path, option):
    file = npz(tmp_path, split=np.array(PARTS))
    with pytest.raises(ConfigError, match=f"{next(iter(option))}: found .* has its own split; remove one of the two"):
        vectors(path=str(file), **option)
