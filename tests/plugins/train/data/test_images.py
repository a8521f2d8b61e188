"""Labeled images."""

import numpy as np
import pytest
import torch

from pml_ext_train.data import LabeledImages

IMAGES = torch.zeros(2, 1, 4, 4, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("images", "labels", "text"),
    [
        (IMAGES, [0.5, 1], r"labels must be integers \(indices into class_names\), not 0.5"),
        (IMAGES, [0, np.nan], "not nan"),
        (IMAGES, np.eye(2), r"must have one dimension, \[N\], not the shape \[2, 2\]"),
        (IMAGES, [0], "2 images, but 1 labels"),
        (IMAGES.numpy(), [0, 1], r"not a NumPy array; convert it with torch\.from_numpy"),
    ],
)
def test_labels_are_integers_one_per_image(images, labels, text):
    assert LabeledImages(IMAGES, [1.0, 0.0], ["a", "b"]).labels.tolist() == [1, 0]
    with pytest.raises((ValueError, TypeError), match=text):
        LabeledImages(images, labels, ["a", "b"])
