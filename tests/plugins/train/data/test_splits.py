"""Labeled images, and splits of a data set."""

import numpy as np
import pytest
import torch

from pml_ext.errors import DataError
from pml_ext_train.data import DataSplits, LabeledImages, digits, hold_out_classes

IMAGES = torch.zeros(2, 1, 4, 4, dtype=torch.uint8)


def part(images, labels):
    return LabeledImages(images, labels, ["a", "b"], channels=1)


def test_classes_are_held_out_by_seed_or_label():
    train = digits().train
    rest, held_out = hold_out_classes(train, 0.3, seed=3)
    assert (len(set(held_out.labels)), len(set(rest.labels))) == (3, 7)
    assert not set(rest.labels) & set(held_out.labels)
    assert set(hold_out_classes(train, 0.3, seed=4)[1].labels) != set(held_out.labels)
    rest, held_out = hold_out_classes(train, 0.3, which="last")
    assert (set(rest.labels.tolist()), set(held_out.labels.tolist())) == ({*range(7)}, {7, 8, 9})


def test_images_without_labels_are_not_tested():
    about = {"image_size": 4, "channels": 1, "labeled": False}
    images = part(IMAGES, [0, 0])
    assert DataSplits(images, **about).tested() == {}
    with pytest.raises(DataError, match="images without labels cannot be tested; leave out all but train"):
        DataSplits(images, images, **about)


@pytest.mark.parametrize(
    ("images", "labels", "text"),
    [
        (IMAGES, [1, 2], "labels of test are 1 to 2, but there are 2 class_names"),
        (IMAGES, [-1, 0], "labels of test are -1 to 0"),
        (IMAGES[:0], [], "test has no image"),
        (IMAGES.float(), [0, 1], r"images of test are torch.float32 .*; they must be uint8 \[N, 1, H, W\]"),
        (IMAGES.permute(0, 2, 3, 1), [0, 1], "images of test are torch.uint8 of shape"),
        (IMAGES.expand(2, 3, 4, 4), [0, 1], "images of test are torch.uint8 of shape"),
        (None, [], r"test is TensorDataset, not pml_ext\.plugin\.LabeledImages"),
    ],
)
def test_a_part_with_invalid_content_is_refused(images, labels, text):
    wrong = torch.utils.data.TensorDataset(IMAGES) if images is None else part(images, labels)
    with pytest.raises((ValueError, TypeError), match=text):
        DataSplits(part(IMAGES, [0, 1]), wrong, image_size=4, channels=1)


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
