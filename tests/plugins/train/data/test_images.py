"""Labeled images."""

import numpy as np
import pytest
import torch

from pml_ext_train.data import (
    LabeledImages,
)


def test_labels_are_integers_one_for_each_image():
    images = torch.zeros(2, 1, 4, 4, dtype=torch.uint8)
    assert LabeledImages(images, [1.0, 0.0], ["a", "b"]).labels.tolist() == [1, 0]
    for labels, text in (
        ([0.5, 1], "must be integers, indices into class_names; found 0.5"),
        ([0, np.nan], "found nan"),
        (np.eye(2), r"must have one dimension, \[N\], not the shape \[2, 2\]"),
    ):
        with pytest.raises(ValueError, match=text):
            LabeledImages(images, labels, ["a", "b"])
    with pytest.raises(TypeError, match=r"not a NumPy array; type torch\.from_numpy"):
        LabeledImages(images.numpy(), [0, 1], ["a", "b"])
